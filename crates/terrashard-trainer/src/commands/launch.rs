//! `launch`.

use std::time::Duration;

use terrashard_collectives::bootstrap::Output;

use crate::arguments::{LaunchArguments, OutputFlag};
use crate::error::Result;
use crate::launching::{self, LaunchOptions};

pub(super) fn launch(arguments: LaunchArguments) -> Result<()> {
    let LaunchArguments {
        ranks,
        output,
        end_within,
        command,
    } = arguments;
    launching::launch(&LaunchOptions {
        ranks,
        output: match output {
            OutputFlag::First => Output::First,
            OutputFlag::All => Output::All,
        },
        end_within: Duration::from_secs(end_within),
        command,
    })
}
