//! A port for the processes of a job to meet at.

use crate::{Error, ErrorKind, Result};
use std::net::{Ipv4Addr, TcpListener};
use std::ops::Range;

/// The lowest port that is chosen.
const LOWEST: u16 = 10_000;
/// Fewer than these are no choice.
const FEW: usize = 100;
/// Ports that are tried before it is said that there is none.
const TRIES: usize = 1000;

/// A TCP port of 127.0.0.1 that nobody listens on, and that the system gives to nobody who asks for any port.
///
/// The processes of a job ask for such ports themselves, before the one that others meet at listens on this one; if it
/// were among those, it would be taken by one of them now and then.
///
/// # Errors
///
/// `LimitExceeded` if no free port is found.
///
/// ```
/// let port = sheave_base::port::free()?;
/// assert!(std::net::TcpListener::bind(("127.0.0.1", port)).is_ok());
/// # Ok::<(), sheave_base::Error>(())
/// ```
pub fn free() -> Result<u16> {
    let text = std::fs::read_to_string("/proc/sys/net/ipv4/ip_local_port_range").unwrap_or_default();
    let ports = choice(&text);
    for _ in 0..TRIES {
        let number = getrandom::u32().map_err(|error| Error::new(ErrorKind::Io, format!("drawing a port: {error}")))?;
        let span = u32::from(ports.end - ports.start);
        // Less than the span, which fits.
        let port = ports.start + (number % span) as u16;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    let what = format!("no free port among those from {} to {}", ports.start, ports.end);
    Err(Error::new(ErrorKind::LimitExceeded, what).hint("end processes that listen, or name a port"))
}

/// Ports outside of the system's own range, of which this text tells the first and the last.
fn choice(range: &str) -> Range<u16> {
    let mut bounds = range.split_whitespace().map_while(|bound| bound.parse::<u16>().ok());
    let (Some(first), Some(last)) = (bounds.next(), bounds.next()) else { return LOWEST..u16::MAX };
    let below = LOWEST..first.max(LOWEST);
    let above = last.saturating_add(1).max(LOWEST)..u16::MAX;
    let larger = if below.len() >= above.len() { below } else { above };
    if larger.len() < FEW { LOWEST..u16::MAX } else { larger }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ports_of_the_system_are_left_alone_where_others_are() {
        assert_eq!(choice("32768\t60999\n"), 10_000..32_768);
        assert_eq!(choice("1024 40000"), 40_001..65_535);
        assert_eq!(choice("1024 65535"), 10_000..65_535);
        assert_eq!(choice("9000 9100"), 10_000..65_535);
        assert_eq!(choice("what"), 10_000..65_535);
    }

    #[test]
    fn many_are_free_and_differ() {
        let ports: std::collections::HashSet<u16> = (0..50).map(|_| free().expect("a port")).collect();
        assert!(ports.len() > 25, "{ports:?}");
    }
}
