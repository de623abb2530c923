//! What a test takes away from its own process, descriptors, memory and threads, and what is read of it.

#![allow(dead_code, reason = "each test binary uses its part")]

use crate::common::say;
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use sheave_base::Result;
use sheave_mesh::Mesh;

/// The variable that says what the short process lacks: `descriptors 3` are left, `MiB 4` are, `memory`,
/// [`LACKS_A_THREAD`], or something that its test knows.
pub(crate) const LACKS: &str = "SHEAVE_TEST_LACKS";
/// The variable that says when.
pub(crate) const WHEN: &str = "SHEAVE_TEST_WHEN";
/// The variable that says which process, where that is not the last one.
pub(crate) const SHORT: &str = "SHEAVE_TEST_SHORT";

/// Room for what is sent, and not for the stack of a thread.
pub(crate) const LACKS_A_THREAD: &str = "thread";

pub(crate) const NO_DESCRIPTOR: &str = "no file descriptor left";
pub(crate) const NO_MEMORY: &str = "gives this process no more memory";
pub(crate) const NO_THREAD: &str = "starts no more threads";
/// All that a link can say at its end.
pub(crate) const LACKS_SOMETHING: &str = "it lacks file descriptors, memory or threads";

/// The value of a variable that the test has set.
pub(crate) fn variable(name: &str) -> String {
    std::env::var(name).expect("the test has set it")
}

/// Takes away from this process what the test says, if it is the one and this is the moment. All meet before and
/// after, over links that there are: nobody needs anything else of it before it is short. Who is through first may
/// begin already with what the short one has nothing for.
pub(crate) fn be_short(mesh: &Mesh, when: &str, is_short: bool) -> Result<()> {
    if when != variable(WHEN) {
        return Ok(());
    }
    mesh.world().barrier()?;
    if is_short {
        match variable(LACKS).split_once(' ') {
            Some(("descriptors", free)) => leave_descriptors(free.parse().expect("a number")),
            Some(("MiB", free)) => leave_memory(free.parse::<u64>().expect("a number") << 20),
            None if variable(LACKS) == LACKS_A_THREAD => leave_no_thread(1 << 20),
            _ => leave_no_memory(),
        }
        say("short");
    }
    mesh.world().barrier()
}

fn limit_to(resource: Resource, limit: u64) {
    let before = getrlimit(resource);
    setrlimit(resource, Rlimit { current: Some(limit), ..before }).expect("lower than before");
}

/// Lets this process have so many descriptors more than it has.
pub(crate) fn leave_descriptors(free: u64) {
    // The numbers that are free below the highest one count too.
    let listed = std::fs::read_dir("/proc/self/fd").expect("it is there").filter_map(Result::ok);
    let open: Vec<u64> = listed.filter_map(|entry| entry.file_name().to_str()?.parse().ok()).collect();
    // One of them was the listing's own.
    let is_open = |number: &u64| std::fs::symlink_metadata(format!("/proc/self/fd/{number}")).is_ok();
    let open: Vec<u64> = open.into_iter().filter(is_open).collect();
    let next_free = (0..).filter(|number| !open.contains(number)).nth(free as usize);
    limit_to(Resource::Nofile, next_free.expect("there are more"));
}

/// Lets this process map less than a thread's stack more than it has, and start no thread.
pub(crate) fn leave_no_memory() {
    leave_no_thread(256 << 10);
}

/// Lets this process map so many bytes more than it has, less than a thread's stack, and start no thread.
pub(crate) fn leave_no_thread(bytes: u64) {
    leave_memory(bytes);
    // Stacks of threads that have ended are kept for new ones, which need no memory then: these take them all.
    let stays = || {
        std::thread::Builder::new().spawn(|| {
            loop {
                std::thread::park();
            }
        })
    };
    let taken = (0..STACKS_KEPT_MAX).take_while(|_| stays().is_ok()).count();
    assert!(taken < STACKS_KEPT_MAX, "the limit keeps no thread from being started");
}

/// More than the C library keeps of stacks of the usual size.
const STACKS_KEPT_MAX: usize = 100;

/// Lets this process map so many bytes more than it has.
pub(crate) fn leave_memory(bytes: u64) {
    let mapped = std::fs::read_to_string("/proc/self/statm").expect("it is there");
    let pages: u64 = mapped.split(' ').next().and_then(|pages| pages.parse().ok()).expect("a number");
    limit_to(Resource::As, pages * rustix::param::page_size() as u64 + bytes);
}

/// Lets this process write files of so many bytes; a longer one is an error. `None` takes that back.
pub(crate) fn leave_files_of(bytes: Option<u64>) {
    let before = getrlimit(Resource::Fsize);
    // SAFETY: ignoring a signal changes no state of this program's own. Without it the system ends the process.
    unsafe { libc::signal(libc::SIGXFSZ, libc::SIG_IGN) };
    let current = bytes.or(before.maximum);
    setrlimit(Resource::Fsize, Rlimit { current, ..before }).expect("not above the highest");
}

/// Puts a file system of so many bytes on this folder, which this thread alone sees; false if the system lets it not.
pub(crate) fn small_disk(folder: &std::path::Path, bytes: u64) -> bool {
    use std::os::unix::ffi::OsStrExt;
    let text = |bytes: &[u8]| std::ffi::CString::new(bytes).expect("a path has no zero");
    let (folder, kind, root) = (text(folder.as_os_str().as_bytes()), text(b"tmpfs"), text(b"/"));
    let size = text(format!("size={bytes}").as_bytes());
    let nothing = std::ptr::null();
    // SAFETY: all pointers are to texts that end with a zero and outlive the calls, or null where that is allowed. The
    // thread has mounts of its own before it changes any.
    unsafe {
        libc::unshare(libc::CLONE_NEWNS) == 0
            && libc::mount(nothing, root.as_ptr(), nothing, libc::MS_REC | libc::MS_PRIVATE, nothing.cast()) == 0
            && libc::mount(kind.as_ptr(), folder.as_ptr(), kind.as_ptr(), 0, size.as_ptr().cast()) == 0
    }
}
