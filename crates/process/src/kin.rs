//! Who is whose child, read from `/proc` without allocating, so that the guard may do it.

use rustix::fs::{Mode, OFlags, RawDir};
use rustix::io::Errno;
use std::ffi::CStr;
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, OwnedFd};

/// One living child as `/proc/<pid>/stat` shows it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Kin {
    /// Its process id.
    pub(crate) pid: i32,
    /// Its process group.
    pub(crate) group: i32,
}

/// Calls `visit` for every living child of the process `parent`.
///
/// The ids of the calling process's *own* children cannot be given to strangers before it reaps them.
pub(crate) fn for_each_child(parent: i32, mut visit: impl FnMut(Kin)) -> Result<(), Errno> {
    for_each_process(|directory, pid| {
        if let Some(stat) = read_stat(directory, pid)
            && stat.parent == parent
            && stat.alive
        {
            visit(Kin { pid, group: stat.group });
        }
    })
}

/// Calls `visit` with `/proc` and the id of every process in it.
pub(crate) fn for_each_process(mut visit: impl FnMut(&OwnedFd, i32)) -> Result<(), Errno> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let directory = rustix::fs::open(c"/proc", flags, Mode::empty())?;
    let mut space = [MaybeUninit::uninit(); 8192];
    let mut entries = RawDir::new(directory.as_fd(), &mut space);
    while let Some(entry) = entries.next() {
        if let Some(pid) = parse_number(entry?.file_name().to_bytes()) {
            visit(&directory, pid);
        }
    }
    Ok(())
}

/// Opens `/proc/<pid>/<file>`.
pub(crate) fn open(directory: &OwnedFd, pid: i32, file: &[u8]) -> Result<OwnedFd, Errno> {
    let mut path = [0_u8; 32];
    let mut length = 0;
    let mut divisor = 1_000_000_000;
    while divisor > 0 {
        if pid >= divisor {
            path[length] = b'0' + u8::try_from(pid / divisor % 10).unwrap_or(0);
            length += 1;
        }
        divisor /= 10;
    }
    for byte in b"/".iter().chain(file) {
        *path.get_mut(length).ok_or(Errno::NAMETOOLONG)? = *byte;
        length += 1;
    }
    let path = CStr::from_bytes_until_nul(&path).map_err(|_| Errno::NAMETOOLONG)?;
    rustix::fs::openat(directory, path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())
}

struct Stat {
    parent: i32,
    group: i32,
    alive: bool,
}

fn read_stat(directory: &OwnedFd, pid: i32) -> Option<Stat> {
    let file = open(directory, pid, b"stat").ok()?;
    let mut line = [0_u8; 512];
    let length = rustix::io::read(&file, &mut line).ok()?;
    parse_stat(line.get(..length)?)
}

/// The name in parentheses may hold anything, also parentheses: only what follows the last one counts.
fn parse_stat(line: &[u8]) -> Option<Stat> {
    let name_end = line.iter().rposition(|byte| *byte == b')')?;
    let mut fields = line.get(name_end + 2..)?.split(|byte| *byte == b' ');
    let state = fields.next()?;
    Some(Stat {
        parent: parse_number(fields.next()?)?,
        group: parse_number(fields.next()?)?,
        alive: !matches!(state, b"Z" | b"X" | b"x"),
    })
}

fn parse_number(digits: &[u8]) -> Option<i32> {
    if digits.is_empty() {
        return None;
    }
    digits.iter().try_fold(0_i32, |number, digit| {
        digit.is_ascii_digit().then(|| number.checked_mul(10)?.checked_add(i32::from(digit - b'0')))?
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_with_parentheses_do_not_confuse() {
        let stat = parse_stat(b"42 (a) Z 7 (b)) S 17 23 23 0 -1").unwrap();
        assert_eq!((stat.parent, stat.group, stat.alive), (17, 23, true));
        assert!(!parse_stat(b"42 (gone) Z 17 23").unwrap().alive);
        assert!(parse_stat(b"42 (cut").is_none() && parse_stat(b"").is_none() && parse_stat(b"1 (x)").is_none());
    }

    #[test]
    fn numbers_have_bounds() {
        assert_eq!(parse_number(b"4194304"), Some(4_194_304));
        assert_eq!(parse_number(b"99999999999"), None);
        assert_eq!(parse_number(b"12a"), None);
        assert_eq!(parse_number(b""), None);
    }

    #[test]
    fn this_process_is_found_under_its_parent() {
        let own = i32::try_from(std::process::id()).unwrap();
        let parent = rustix::process::getppid().unwrap().as_raw_nonzero().get();
        let mut seen = Vec::new();
        for_each_child(parent, |kin| seen.push(kin.pid)).unwrap();
        assert!(seen.contains(&own), "{own} is not among {seen:?}");
    }
}
