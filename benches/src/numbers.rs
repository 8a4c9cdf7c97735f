//! Numbers on the command line.

/// A whole number of at least 1.
///
/// # Errors
/// What was expected.
pub fn count(text: &str) -> Result<usize, String> {
    let number: Option<usize> = text.parse().ok();
    let positive = number.filter(|number| *number > 0);
    positive.ok_or_else(|| "expected a whole number of at least 1".into())
}

/// A count that may be written as `1e6`.
///
/// # Errors
/// What was expected.
pub fn size(text: &str) -> Result<usize, String> {
    match text.parse::<f64>() {
        Ok(value) if (1.0..=1e12).contains(&value) && value.fract() == 0.0 => Ok(value as usize),
        _ => Err("expected a whole number from 1 to 1e12, such as 1e6".into()),
    }
}
