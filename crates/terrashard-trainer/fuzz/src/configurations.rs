//! What is tried with any text as a configuration.

use std::path::Path;

use terrashard_trainer::config::Config;

/// A configuration: it is refused in one line, or what it is written as reads back as itself.
pub fn config(bytes: &[u8]) {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return;
    };
    let parse =
        |text: &str| Config::parse(text, Path::new("input.toml"), Path::new("/scenes"), &[]);
    match parse(text) {
        Ok(config) => {
            let written = config.to_toml();
            let again = parse(&written).unwrap_or_else(|error| panic!("{error}: {written}"));
            // Numbers may be NaN, so texts are compared.
            assert_eq!(again.to_toml(), written);
        }
        Err(error) => {
            let message = error.to_string();
            assert_eq!(message.lines().count(), 1, "{message}");
        }
    }
}
