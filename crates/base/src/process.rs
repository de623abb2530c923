//! The identity of this process.

/// The system's number of this process.
///
/// ```
/// assert_eq!(sheave_base::process::id(), std::process::id());
/// ```
#[must_use]
pub fn id() -> u32 {
    #[cfg(feature = "simulated")]
    if let Some(system) = crate::simulated::current() {
        return system.process();
    }
    std::process::id()
}
