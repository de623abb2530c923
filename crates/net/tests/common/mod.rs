//! Real processes that talk over real links: the running test binary plays every part.

#![allow(dead_code, reason = "each test binary uses its part")]

#[path = "../../../process/tests/common/callers.rs"]
mod callers;

use sheave_base::{Error, LinkId, Result, Tag};
use sheave_net::Transport;
use sheave_net::{Address, Envelope, ListenConfig, Message, Node, NodeConfig, Outgoing, Wanted};
use sheave_process::{Child, Command, Job, Output};
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::{SmallVec, smallvec};
use std::time::{Duration, Instant};

/// Which part a copy of the test binary plays.
const ROLE: &str = "SHEAVE_TEST_ROLE";
const ADDRESS: &str = "SHEAVE_TEST_ADDRESS";

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) fn soon() -> Instant {
    Instant::now() + Duration::from_secs(60)
}

/// The part that this process plays, if it is not the test itself.
pub(crate) fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// The address that this process was given.
pub(crate) fn address(index: usize) -> Address {
    let all = std::env::var(ADDRESS).expect("an actor is started with addresses");
    all.split(' ').nth(index).expect("enough addresses").parse().expect("the test made it")
}

/// A job whose processes are gone when it is dropped.
pub(crate) fn job() -> Job {
    Job::builder().output(Output::Capture).start().expect("a job")
}

/// Starts a copy of this binary in which the test function `actor` plays `role`.
#[track_caller]
pub(crate) fn start(job: &Job, role: &str, addresses: &[&Address]) -> Child {
    let addresses: Vec<String> = addresses.iter().map(ToString::to_string).collect();
    let command = Command::new(std::env::current_exe().expect("this binary"))
        .args(["--exact", &callers::in_this_file("actor"), "--nocapture", "--test-threads=1"])
        .name(role)
        .env(ROLE, role)
        .env(ADDRESS, addresses.join(" "));
    job.spawn(command).expect("a process")
}

/// What an actor says to its test, and what the test waits for.
pub(crate) fn say(text: &str) {
    use std::io::Write;
    writeln!(std::io::stdout(), "\n[actor] {text}").expect("the test listens");
}

/// Says what a test has measured; for the reader of its output.
pub(crate) fn note(text: &str) {
    use std::io::Write;
    let _ = writeln!(std::io::stdout(), "{text}");
}

/// Waits for an actor's word and returns what follows it.
pub(crate) fn hear(child: &Child, text: &str) -> String {
    let marked = format!("[actor] {text}");
    let line = child.wait_for_stdout(&marked, soon()).unwrap_or_else(|error| {
        panic!("{error}\n{}\n{}", child.stdout_lines().join("\n"), child.stderr_lines().join("\n"))
    });
    line.split(&marked).nth(1).unwrap_or_default().trim().to_owned()
}

/// A node that others can reach.
pub(crate) fn listening(config: NodeConfig) -> (Node, Address) {
    let node = Node::start(config).expect("a node");
    let address = node.listen(ListenConfig::default()).expect("a free port");
    (node, address)
}

/// A config with a secret of the tests' own, so that no cookie is made.
pub(crate) fn config(name: &str, transport: Transport) -> NodeConfig {
    let mut config = NodeConfig::named(name);
    config.transport = transport;
    let secret = sheave_base::Secret::new(b"the secret of these tests").expect("long enough");
    config.secret = Some(sheave_base::secret::Resolved { secret, source: "the test".into() });
    config
}

/// The next link that a peer makes.
pub(crate) fn accepted(node: &Node) -> LinkId {
    node.accept().wait_timeout(Duration::from_secs(60)).expect("a peer connects")
}

pub(crate) fn wanted(source: Option<LinkId>, tag: u64) -> Wanted {
    Wanted { source, context: 0, tag: Tag(tag) }
}

pub(crate) fn send(node: &Node, link: LinkId, tag: u64, tensor: Tensor, mode: Mode) -> Result<()> {
    node.send(link, Outgoing::tensor(Envelope::data(0, Tag(tag)), tensor, mode), Some(soon()), None)
}

pub(crate) fn receive(node: &Node, source: Option<LinkId>, tag: u64) -> Result<Message> {
    node.recv(wanted(source, tag), SmallVec::new(), Some(soon()), None)
}

pub(crate) fn receive_into(node: &Node, source: Option<LinkId>, tag: u64, place: &Tensor) -> Result<Message> {
    node.recv(wanted(source, tag), smallvec![place.clone()], Some(soon()), None)
}

/// A tensor of one number.
pub(crate) fn number(node: &Node, value: u64) -> Tensor {
    let mut tensor = Tensor::empty(node.arena(), Dtype::I64, [1]).expect("room");
    tensor.as_mut_slice::<i64>().expect("fresh")[0] = value as i64;
    tensor
}

pub(crate) fn number_in(message: &Message) -> u64 {
    message.parts[0].to_vec::<i64>().expect("one number")[0] as u64
}

fn usage() -> libc::rusage {
    // SAFETY: the call fills the struct, for which all zeroes are valid.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        libc::getrusage(libc::RUSAGE_SELF, &raw mut usage);
        usage
    }
}

/// Context switches of this process so far: those it asked for by sleeping, and those that took the core from it.
pub(crate) fn switches() -> [u64; 2] {
    let usage = usage();
    [usage.ru_nvcsw as u64, usage.ru_nivcsw as u64]
}

/// How long all threads of this process have computed so far.
pub(crate) fn cpu_time() -> Duration {
    let usage = usage();
    let span = |time: libc::timeval| Duration::new(time.tv_sec as u64, time.tv_usec as u32 * 1000);
    span(usage.ru_utime) + span(usage.ru_stime)
}

/// How long this thread has waited for a core, in nanoseconds; zero if the kernel does not count it.
pub(crate) fn kept_waiting_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_whitespace().nth(1).and_then(|waited| waited.parse().ok()).unwrap_or(0)
}

/// Page faults of this process so far.
pub(crate) fn page_faults() -> u64 {
    let usage = usage();
    (usage.ru_minflt + usage.ru_majflt) as u64
}

/// Resident memory of this process in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<u64>().expect("a number") * 1024
}

/// The error that an operation ended with, and after how long.
pub(crate) fn failure<T: std::fmt::Debug>(operation: impl FnOnce() -> Result<T>) -> (Error, Duration) {
    let begun = Instant::now();
    let error = operation().expect_err("the operation cannot succeed");
    (error, begun.elapsed())
}
