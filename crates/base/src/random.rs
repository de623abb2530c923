//! Randomness, for names that must differ and secrets that nobody may guess.

use crate::{Error, ErrorKind, Result};

/// Fills `bytes` with random ones of the system, for a purpose that an error names: "drawing a nonce".
///
/// # Errors
///
/// `Io` if the system has none.
///
/// ```
/// let mut bytes = [0; 16];
/// sheave_base::random::fill("drawing a name", &mut bytes)?;
/// assert_ne!(bytes, [0; 16]);
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub fn fill(purpose: &str, bytes: &mut [u8]) -> Result<()> {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::simulated::current() {
        system.fill(bytes);
        return Ok(());
    }
    getrandom::fill(bytes).map_err(|error| Error::new(ErrorKind::Io, format!("{purpose}: {error}")))
}
