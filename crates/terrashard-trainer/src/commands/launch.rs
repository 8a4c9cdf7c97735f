//! `launch`.

use std::time::Duration;

use terrashard_collectives::bootstrap::Output;

use crate::arguments::{LaunchArguments, OutputFlag};
use crate::error::Result;
use crate::launching::{self, Again, LaunchOptions};

pub(super) fn launch(arguments: LaunchArguments) -> Result<()> {
    let LaunchArguments {
        ranks,
        output,
        end_within,
        restarts,
        elastic,
        command,
    } = arguments;
    launching::launch(&LaunchOptions {
        ranks,
        output: match output {
            OutputFlag::First => Output::First,
            OutputFlag::All => Output::All,
        },
        end_within: Duration::from_secs(end_within),
        restarts,
        again: match elastic {
            true => Again::OneFewer,
            false => Again::AsMany,
        },
        command,
    })
}
