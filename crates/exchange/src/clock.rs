//! When the stages of a request happened.

/// Nanoseconds of this host's monotonic clock. Readings of different hosts have nothing to do with each other.
///
/// ```
/// let begun = sheave_exchange::monotonic_ns();
/// assert!(sheave_exchange::monotonic_ns() >= begun);
/// ```
#[must_use]
pub fn monotonic_ns() -> u64 {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::Monotonic);
    // The clock counts from the start of the host.
    now.tv_sec.cast_unsigned() * 1_000_000_000 + now.tv_nsec.cast_unsigned()
}

/// The eight points in time of a request and one server's answer to it, in nanoseconds.
///
/// The first two and the last two are of the worker's clock, the others of the server's: differences between the two
/// mean nothing, except that `(answer_arrived - sent) - (answer_sent - arrived)` is the time on the way, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stamps {
    /// The worker's call began.
    pub begun: u64,
    /// The request was about to be given to its link.
    pub sent: u64,
    /// The request was there, at the server.
    pub arrived: u64,
    /// The server's program had it.
    pub taken: u64,
    /// The server's program answered.
    pub answered: u64,
    /// The answer was about to be given to its link.
    pub answer_sent: u64,
    /// The answer was there, at the worker.
    pub answer_arrived: u64,
    /// The worker's program had it; zero before.
    pub ended: u64,
}

impl Stamps {
    /// All eight, in the order of the fields.
    #[must_use]
    pub fn as_array(&self) -> [u64; 8] {
        [
            self.begun,
            self.sent,
            self.arrived,
            self.taken,
            self.answered,
            self.answer_sent,
            self.answer_arrived,
            self.ended,
        ]
    }
}

/// The server's four stamps, as they come with an answer.
pub(crate) const SERVER_STAMPS_BYTES: usize = 32;

pub(crate) fn encode(stamps: [u64; 4]) -> Vec<u8> {
    stamps.iter().flat_map(|stamp| stamp.to_le_bytes()).collect()
}

pub(crate) fn decode(bytes: &[u8]) -> Option<[u64; 4]> {
    let bytes: &[u8; SERVER_STAMPS_BYTES] = bytes.try_into().ok()?;
    let mut stamps = [0; 4];
    for (stamp, word) in stamps.iter_mut().zip(bytes.as_chunks().0) {
        *stamp = u64::from_le_bytes(*word);
    }
    Some(stamps)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stamps_travel_whole_or_not_at_all() {
        let stamps = [1, u64::MAX, 3, 4];
        assert_eq!(decode(&encode(stamps)), Some(stamps));
        assert_eq!(decode(&encode(stamps)[1..]), None);
        assert_eq!(decode(&[]), None);
    }
}
