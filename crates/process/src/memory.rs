//! Letting go of memory that the guard shares with its supervisor only because it was forked from it.
//!
//! An arena or a ring that the supervisor gives back would stay in memory for as long as the guard maps it too. Nothing
//! that the guard runs on is a shared mapping: code, data, stacks and heaps are private ones.

use rustix::fs::{Mode, OFlags};

/// Unmaps every shared mapping of this process, as far as `/proc` tells of them. Allocates nothing.
///
/// Only a fresh fork that touches none of its parent's data may call this.
pub(crate) fn drop_shared_mappings() {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let Ok(file) = rustix::fs::open(c"/proc/self/maps", flags, Mode::empty()) else { return };
    let mut parser = Parser::default();
    let mut buffer = [0_u8; 4096];
    // The kernel goes on by address, so that what is unmapped meanwhile confuses nobody.
    while let Ok(length @ 1..) = rustix::io::read(&file, &mut buffer) {
        for byte in buffer.iter().take(length) {
            if let Some((start, end)) = parser.feed(*byte) {
                unmap(start, end);
            }
        }
    }
}

fn unmap(start: usize, end: usize) {
    let here = (&raw const start).addr();
    if (start..end).contains(&here) || end <= start {
        return;
    }
    // SAFETY: the range is one whole shared mapping, and by the caller's promise nobody in this process uses it.
    let _ = unsafe { rustix::mm::munmap(std::ptr::with_exposed_provenance_mut(start), end - start) };
}

/// Reads lines such as `7f00-7f10 rw-s 00000000 00:01 1025 /memfd:arena (deleted)` byte by byte.
#[derive(Default)]
struct Parser {
    field: u8,
    start: usize,
    end: usize,
    mode: [u8; 4],
    mode_length: usize,
}

impl Parser {
    /// The range of a shared mapping, at the end of its line.
    fn feed(&mut self, byte: u8) -> Option<(usize, usize)> {
        match (self.field, byte) {
            (_, b'\n') => {
                let parsed = std::mem::take(self);
                return (parsed.mode[3] == b's').then_some((parsed.start, parsed.end));
            }
            (0, b'-') | (1 | 2, b' ') => self.field += 1,
            (0, digit) => self.start = push_digit(self.start, digit),
            (1, digit) => self.end = push_digit(self.end, digit),
            (2, letter) => {
                if let Some(slot) = self.mode.get_mut(self.mode_length) {
                    *slot = letter;
                    self.mode_length += 1;
                }
            }
            _ => {}
        }
        None
    }
}

fn push_digit(number: usize, digit: u8) -> usize {
    let value = match digit {
        b'0'..=b'9' => digit - b'0',
        b'a'..=b'f' => digit - b'a' + 10,
        _ => 0,
    };
    (number << 4) | usize::from(value)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_shared_mappings_are_found() {
        let text = b"5581a000-5581b000 r-xp 00000000 fe:00 42 /bin/a-b s\n\
            7f3c00000000-7f3c00400000 rw-s 00000000 00:01 1025 /memfd:arena (deleted)\n\
            7ffd1000-7ffd2000 rw-p 00000000 00:00 0 [stack]\n7fff0000-7fff1000 r--s 0 0 0\n";
        let mut parser = Parser::default();
        let found: Vec<_> = text.iter().filter_map(|byte| parser.feed(*byte)).collect();
        assert_eq!(found, [(0x7f3c_0000_0000, 0x7f3c_0040_0000), (0x7fff_0000, 0x7fff_1000)]);
    }
}
