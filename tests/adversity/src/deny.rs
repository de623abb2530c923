//! A filter that lets a system call fail with `EPERM`, as containers have them.

use sheave_base::{Error, ErrorKind, Result};

/// The calls that can be denied, by name.
const CALLS: [(&str, libc::c_long); 8] = [
    ("memfd_create", libc::SYS_memfd_create),
    ("pidfd_open", libc::SYS_pidfd_open),
    ("pidfd_send_signal", libc::SYS_pidfd_send_signal),
    ("eventfd2", libc::SYS_eventfd2),
    ("signalfd4", libc::SYS_signalfd4),
    ("sched_setaffinity", libc::SYS_sched_setaffinity),
    ("fallocate", libc::SYS_fallocate),
    ("madvise", libc::SYS_madvise),
];

/// From now on this process and its children cannot make the system call of this name.
pub(crate) fn deny(name: &str) -> Result<()> {
    let known = CALLS.iter().find(|(known, _)| *known == name).ok_or_else(|| {
        let names = CALLS.map(|(known, _)| known).join(", ");
        Error::new(ErrorKind::InvalidArgument, format!("cannot deny {name:?}; expected one of {names}"))
    })?;
    let call = u32::try_from(known.1).map_err(|error| Error::new(ErrorKind::Internal, error.to_string()))?;
    let code = |code: u32| u16::try_from(code).unwrap_or(u16::MAX);
    let (load, equal, give) = (code(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS), 0x15, 0x06);
    // The number of the call stands at the beginning of what the filter sees.
    let mut filter = [
        libc::sock_filter { code: load, jt: 0, jf: 0, k: 0 },
        libc::sock_filter { code: equal, jt: 0, jf: 1, k: call },
        libc::sock_filter { code: give, jt: 0, jf: 0, k: libc::SECCOMP_RET_ERRNO | libc::EPERM as u32 },
        libc::sock_filter { code: give, jt: 0, jf: 0, k: libc::SECCOMP_RET_ALLOW },
    ];
    let program = libc::sock_fprog { len: 4, filter: filter.as_mut_ptr() };
    // SAFETY: these requests read nothing but their numbers.
    let promised = unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
    // SAFETY: the program and its four instructions live until the call, which copies them, has returned.
    let denied = unsafe { libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) };
    if promised != 0 || denied != 0 {
        return Err(Error::new(ErrorKind::Unsupported, "the kernel takes no seccomp filters"));
    }
    Ok(())
}
