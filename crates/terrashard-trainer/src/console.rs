//! What is printed: standard output and standard error, either of which may be closed before the program ends.

use std::io::{self, ErrorKind, Write};

use crate::error::{Error, Result};

/// Prints to standard output. A reader that has gone, as of `terrashard … | head -1`, has all it wants: that is no error.
///
/// # Errors
/// [`Error::Write`] if it cannot be written for another reason, such as a full disk.
pub fn print(text: &str) -> Result<()> {
    let mut out = io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Error::write("standard output")(error))
        }
        _ => Ok(()),
    }
}

/// Prints a line to standard error. Where nobody can read it, there is nobody to tell.
pub fn tell(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}
