//! `sheave bench`: what is measured, how often, and by which command line.

mod child;
mod collective;
mod exchange;
mod link;
mod mesh;
mod pair;
mod particle;
mod peer;
mod pool;
mod python;
mod report;
mod rows;
mod rpc;
mod runs;
mod script;
mod servers;
mod session;
mod store;
mod torch;
mod traffic;

use crate::Failure;
use clap::{Args, ValueEnum};
pub(crate) use collective::medians_ns;
use serde::{Deserialize, Serialize};
use std::time::Duration;

/// Sizes that are measured unless the user names some.
const SIZES_BYTES: [usize; 8] = [8, 64, 1 << 10, 8 << 10, 64 << 10, 1 << 20, 16 << 20, 64 << 20];

/// Largest message: a window of two, its captures and its places still fit in a node's arena.
const BYTES_MAX: usize = 512 << 20;

#[derive(Debug, clap::Subcommand)]
pub(crate) enum Command {
    /// Measures messages between two nodes: round trips and one-way streams.
    ///
    /// Two nodes exchange messages of one tensor, as threads (inproc) or as two processes (shm, tcp). `ping_pong`
    /// receives in place, into memory of the arena that both sides use again and again; `ping_pong_move` passes one
    /// tensor of the arena to and fro by move; both give the time of a round trip. `stream` sends windows one way and
    /// gives the time per message. If OpenMPI is installed its own ping-pong runs in turn with ours.
    Link(LinkArguments),
    /// Measures a key-value store: two workers and one server, as processes of their own beside a scheduler.
    ///
    /// Both workers push and pull the same keys at once, and the server sums, or takes a step of SGD with each push in
    /// the cases called async: the time is that of worker 0, from the call to the end of its work. `push_pull` has one
    /// key, `push_pull_10000` has ten thousand of this size in one call, `push_pull_2bit` and `push_pull_fp16` compress
    /// what is pushed. With a peer its rounds run in turn with ours.
    Store(StoreArguments),
    /// Measures a mesh of processes: its start, its barriers, its calls.
    ///
    /// `start_up` is the time from the start of the first of one scheduler, one server and two workers until all have
    /// passed their first barrier. `barrier` is one barrier of all ranks, as rank 0 sees it; `call` the round trip of
    /// an empty call to an inline service, `call_executor` to one that runs on the callee's executor;
    /// `call_pipelined` the time per empty call to an inline service where 64 are outstanding.
    Mesh(MeshArguments),
    /// Measures collective operations, beside OpenMPI, Gloo and a bare loop.
    ///
    /// Two and four processes take part, with f32 tensors in the arena, or in memory of each process alone in the cases
    /// called private. From 64 KiB on every rank rewrites its input before each operation, outside the timer; shorter
    /// ones are timed a hundred in a row; roots take turns; the time is that of the slowest rank. Sizes are those of
    /// one rank's input; of a scatter those of one rank's output. If OpenMPI is installed its operations run in turn
    /// with ours over the same transport, Gloo's if a Python with torch is named, and two processes without any
    /// library beside all_reduce. The table has ratios and targets.
    Collective(CollectiveArguments),
    /// Measures an exchange: workers push a tensor to all servers, which answer into a tensor of the workers'.
    ///
    /// The time is that of worker 0, from the call of `push_pull` to the end of `wait`. Pushes land in memory that the
    /// servers have registered, from the arena (`registered`) or from memory of each process alone (`private`); in
    /// `moved` one tensor of the arena goes to and fro without a copy. The phases are those of one request and answer:
    /// `network` is both ways together. One worker and one server stand beside what they may take, and over TCP beside
    /// a published reading of ps-lite.
    Exchange(ExchangeArguments),
    /// Measures sheave from Python: all_reduce, a store, the import, the start of a job.
    ///
    /// `all_reduce` sums numpy arrays that lie in sheave's arena, `all_reduce_numpy` plain ones, among two processes;
    /// mpi4py's Allreduce of plain arrays runs beside. `push_pull` is a push and a pull of one key by two workers with
    /// one server, in plain arrays, beside MXNet's. `import` is what `import sheave` takes, and `start` the time from
    /// `sheave launch -n 4` to the last process's first barrier, both beyond what bare interpreters take; they stand
    /// beside what they may take.
    Python(python::Arguments),
    /// Measures calls between Python processes.
    ///
    /// `registered` calls a service by its key, with plain values; `pickled` sends a function along; `echo` an array
    /// there and back; `outstanding` is the time per call where 100 are in flight. `groups` makes a group of eight
    /// processes, and `services` has one process register a thousand services and another one find them. Each stands
    /// beside what it may take, and torch.distributed.rpc and Ray run in turn where a Python with them is named.
    Rpc(rpc::Arguments),
    /// Measures the commands of a session of two workers: threads, processes, and those of two nodes over TCP.
    ///
    /// `call` is a command and a wait for both workers, as the controller sees it; `pipelined` the time per command
    /// where ten thousand are issued before a wait; `fetch` gets a tensor from the last worker, `fetch_shared` its
    /// memory, and `start` begins a session and waits for its first result. Rust is measured always, and Python where
    /// one is named, each beside what it may take; TVM's Disco runs in turn where a Python with it is named.
    Session(session::Arguments),
    /// Measures tasks of a pool of two Python processes.
    ///
    /// `tasks` is the time per task where 10,000 that do nothing are mapped in chunks of one, and `awaited` that of one
    /// until its result is there. `array` takes an array of 16 MiB, `echoed` brings it back too, and `shared` takes one
    /// that workers reach where it lies. Each stands beside what it may take; the pools of the standard library run in
    /// turn, and those of loky and torch where a Python with them is named.
    Pool(pool::Arguments),
    /// Measures a table of versioned objects between Python processes.
    ///
    /// `push_pull` pushes a new version of a state dictionary of 5.76 MB and pulls it into arrays of the client's;
    /// `unchanged` pulls where there is nothing newer; in `accepted` four clients compare and push one counter, and the
    /// time is that from one accepted push to the next. Over shared memory each stands beside what it may take. The
    /// same table over torch.distributed.rpc runs in turn where a Python with torch is named.
    Servers(servers::Arguments),
    /// Measures particles, in Rust and from Python.
    ///
    /// `send` is the time to send a message that does nothing, of a thousand in a row, and `send_wait` that until its
    /// answer is there; `across` goes to a particle of another process. `get` is a copy of 1 MB of parameters that have
    /// changed, `get_unchanged` the same where they have not, and `create` makes a thousand particles. `epoch` trains
    /// eight small networks for an epoch on one thread, beside a plain loop; `processes` does so in two processes, with
    /// a thread each, beside one. `svgd` is the update of 32 particles of a million parameters, beside its two matrix
    /// products. With --push a program of PusH runs beside: with the original, as `push`, and with sheave's face for
    /// it, as `face`. Its `create` makes a thousand particles with a network each, where ours have none.
    Particle(particle::Arguments),
    /// Measures torch.distributed over sheave, beside gloo.
    ///
    /// `all_reduce` sums tensors in torch's memory in place, `all_reduce_arena` those that `sheave.torch.empty` made,
    /// and `all_reduce_unrecorded` short ones without torch's flight recorder. `reduce_scatter` and `all_gather` are
    /// what FSDP2 does for 16 MiB of parameters, `ddp` is a step of DistributedDataParallel with eight layers of 1024
    /// by 1024 and a batch of four, and `init` the start of a group of four. The time is that of the slowest rank, and
    /// each stands beside what it may take, or beside the share of gloo's time that it may.
    Torch(torch::Arguments),
    /// A worker or a node of a session that is measured.
    #[command(hide = true)]
    SessionChild,
    /// The second process of a measurement.
    #[command(hide = true)]
    LinkChild,
    /// One rank of a group that is measured.
    #[command(hide = true)]
    CollectiveChild,
    /// One of the two processes of a bare loop.
    #[command(hide = true)]
    LimitChild,
    /// Another process of an exchange.
    #[command(hide = true)]
    ExchangeChild,
    /// Another process of a job with a store.
    #[command(hide = true)]
    StoreChild,
    /// One process of a mesh that is measured.
    #[command(hide = true)]
    MeshChild,
}

impl Command {
    /// Whether this is a part of a measurement that another process began.
    pub(crate) fn is_part(&self) -> bool {
        match self {
            Self::Link(_)
            | Self::Store(_)
            | Self::Mesh(_)
            | Self::Collective(_)
            | Self::Exchange(_)
            | Self::Python(_)
            | Self::Rpc(_)
            | Self::Session(_)
            | Self::Pool(_)
            | Self::Servers(_)
            | Self::Particle(_)
            | Self::Torch(_) => false,
            Self::LinkChild
            | Self::CollectiveChild
            | Self::LimitChild
            | Self::ExchangeChild
            | Self::StoreChild
            | Self::MeshChild
            | Self::SessionChild => true,
        }
    }
}

/// What `sheave bench collective` measures.
#[derive(Args, Clone, Debug)]
pub(crate) struct CollectiveArguments {
    /// Measure this transport only, shm or tcp; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    /// Measure this case only, such as all_reduce, broadcast_private or ping_pong; may be given several times.
    #[arg(long, value_name = "NAME", value_parser = collective::Case::from_name)]
    case: Vec<collective::Case>,
    /// Measure this size only, such as 8, 64KiB or 16MiB; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Vec<usize>,
    /// Measure among so many ranks only; may be given several times.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=64))]
    ranks: Vec<u32>,
    /// Fewer iterations.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Measure everything so often, in turn with the peers; 3 unless given, or 1 with --quick.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: Option<u32>,
    /// Keep each rank on a core of its own, counted round, those of the peers too.
    #[arg(long)]
    pin: bool,
    /// Run neither OpenMPI nor the bare loop beside.
    #[arg(long, conflicts_with = "gloo")]
    no_peer: bool,
    /// Run Gloo beside, by a Python in which torch is installed.
    #[arg(long, value_name = "PYTHON")]
    gloo: Option<std::path::PathBuf>,
}

/// What `sheave bench exchange` measures.
#[derive(Args, Clone, Debug)]
pub(crate) struct ExchangeArguments {
    /// Measure this transport only, shm or tcp; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<exchange::Case>,
    /// Measure this size only, such as 1KiB or 16MiB; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Vec<usize>,
    /// Measure with as many workers and servers only, 1 or 2; may be given several times.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=2))]
    workers: Vec<u32>,
    /// Fewer iterations.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Measure everything so often; 3 unless given, or 1 with --quick.
    #[arg(long, value_name = "NUMBER", value_parser = clap::value_parser!(u32).range(1..=100))]
    turns: Option<u32>,
    /// Keep each process on a core of its own, counted round.
    #[arg(long)]
    pin: bool,
    /// Measure it from Python too, by one in which sheave is installed.
    #[arg(long, value_name = "PYTHON")]
    python: Option<std::path::PathBuf>,
}

/// What `sheave bench mesh` measures.
#[derive(Args, Clone, Debug)]
pub(crate) struct MeshArguments {
    /// Measure this transport only; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<MeshCase>,
    /// Fewer iterations.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
}

/// What is done with a mesh.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
pub(crate) enum MeshCase {
    /// Processes start and meet once.
    StartUp,
    /// All ranks meet.
    Barrier,
    /// Empty calls to an inline service.
    Call,
    /// Empty calls to a service on the executor.
    CallExecutor,
    /// Empty calls to an inline service, 64 outstanding: the time per call.
    CallPipelined,
}

impl MeshCase {
    const ALL: [Self; 5] = [Self::StartUp, Self::Barrier, Self::Call, Self::CallExecutor, Self::CallPipelined];

    fn name(self) -> &'static str {
        match self {
            Self::StartUp => "start_up",
            Self::Barrier => "barrier",
            Self::Call => "call",
            Self::CallExecutor => "call_executor",
            Self::CallPipelined => "call_pipelined",
        }
    }

    /// Processes of the mesh.
    fn ranks(self) -> &'static [u32] {
        match self {
            Self::StartUp => &[4],
            Self::Barrier => &[2, 4],
            Self::Call | Self::CallExecutor | Self::CallPipelined => &[2],
        }
    }
}

/// What `sheave bench link` measures.
#[derive(Args, Clone, Debug)]
pub(crate) struct LinkArguments {
    /// Measure this transport only; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<Case>,
    /// Measure this size only, such as 8, 64KiB or 16MiB; may be given several times.
    #[arg(long, value_name = "SIZE", value_parser = parse_bytes)]
    bytes: Vec<usize>,
    /// Fewer iterations: all is done within 20 seconds.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Keep each side on a core of its own.
    #[arg(long)]
    pin: bool,
    /// Do not run OpenMPI beside.
    #[arg(long)]
    no_peer: bool,
}

/// What `sheave bench store` measures.
#[derive(Args, Clone, Debug)]
pub(crate) struct StoreArguments {
    /// Measure this transport only, shm or tcp; may be given several times.
    #[arg(long, value_name = "NAME")]
    transport: Vec<Transport>,
    /// Measure this case only; may be given several times.
    #[arg(long, value_name = "NAME")]
    case: Vec<store::StoreCase>,
    /// Measure keys of this size only; may be given several times.
    #[arg(long, value_name = "NUMBER")]
    bytes: Vec<usize>,
    /// Fewer iterations: all is done within 30 seconds, without a peer.
    #[arg(long)]
    quick: bool,
    /// Print one JSON object per line instead of a table.
    #[arg(long)]
    json: bool,
    /// Run another store beside.
    #[arg(long, value_name = "NAME", requires = "peer_python")]
    peer: Option<store::StorePeer>,
    /// The Python in whose environment the peer is installed.
    #[arg(long, value_name = "PATH", requires = "peer")]
    peer_python: Option<std::path::PathBuf>,
}

/// How the bytes travel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub(crate) enum Transport {
    /// Two threads of one process.
    Inproc,
    /// Two processes and shared memory.
    Shm,
    /// Two processes and a TCP connection over loopback.
    Tcp,
}

impl Transport {
    const ALL: [Self; 3] = [Self::Inproc, Self::Shm, Self::Tcp];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Inproc => "inproc",
            Self::Shm => "shm",
            Self::Tcp => "tcp",
        }
    }
}

/// What is done with the messages.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
pub(crate) enum Case {
    /// Round trips by copy, received in place.
    PingPong,
    /// Round trips of one tensor by move.
    PingPongMove,
    /// Windows of messages one way.
    Stream,
}

impl Case {
    const ALL: [Self; 3] = [Self::PingPong, Self::PingPongMove, Self::Stream];

    fn name(self) -> &'static str {
        match self {
            Self::PingPong => "ping_pong",
            Self::PingPongMove => "ping_pong_move",
            Self::Stream => "stream",
        }
    }

    /// Memory changes hands only on one machine without a wire in between.
    fn runs_over(self, transport: Transport) -> bool {
        self != Self::PingPongMove || transport != Transport::Tcp
    }
}

/// How much is measured.
#[derive(Clone, Copy, Debug)]
struct Effort {
    /// Everything is measured so many times, in turn with the peer.
    rounds: usize,
    /// Divides the iterations.
    thrift: usize,
    /// Time for one case of one size in one round, after which it ends early.
    budget: Duration,
}

impl Effort {
    fn new(quick: bool) -> Self {
        if quick {
            Self { rounds: 1, thrift: 10, budget: Duration::from_millis(60) }
        } else {
            Self { rounds: 6, thrift: 6, budget: Duration::from_millis(800) }
        }
    }

    /// Round trips, or windows, of one round.
    fn iterations(self, case: Case, bytes: usize) -> usize {
        let per_run: usize = match bytes {
            0..=0x2000 => 40_000,
            0x2001..=0x1_0000 => 16_000,
            0x1_0001..=0x10_0000 => 2_000,
            0x10_0001..=0x100_0000 => 160,
            _ => 48,
        };
        let per_window = if case == Case::Stream { 8 } else { 1 };
        (per_run / self.thrift / per_window).max(3)
    }
}

/// Messages under way at once in a stream: enough to fill a link, few enough to fit into memory.
fn window(bytes: usize) -> usize {
    ((64usize << 20) / bytes.max(1)).clamp(2, 64)
}

pub(crate) fn parse_bytes(text: &str) -> Result<usize, String> {
    let digits = text.trim_end_matches(|letter: char| letter.is_ascii_alphabetic());
    let unit = match text[digits.len()..].to_ascii_lowercase().as_str() {
        "" | "b" => 1usize,
        "k" | "kib" => 1 << 10,
        "m" | "mib" => 1 << 20,
        other => return Err(format!("unknown unit '{other}', use B, KiB or MiB")),
    };
    let number: usize = digits.parse().map_err(|_| "a size is a whole number of bytes, KiB or MiB".to_owned())?;
    let bytes = number.checked_mul(unit).filter(|bytes| (1..=BYTES_MAX).contains(bytes));
    bytes.ok_or_else(|| format!("a size is between 1 byte and {} MiB", BYTES_MAX >> 20))
}

/// Runs what the command line asks for.
pub(crate) fn run(command: Command) -> Result<(), Failure> {
    match command {
        Command::Link(arguments) => link::run(&arguments),
        Command::Store(arguments) => store::run(&arguments),
        Command::Mesh(arguments) => mesh::run(&arguments),
        Command::Collective(arguments) => collective::run(&arguments),
        Command::Exchange(arguments) => exchange::run(&arguments),
        Command::Python(arguments) => python::run(&arguments),
        Command::Rpc(arguments) => rpc::run(&arguments),
        Command::Session(arguments) => session::run(&arguments),
        Command::Pool(arguments) => pool::run(&arguments),
        Command::Servers(arguments) => servers::run(&arguments),
        Command::Particle(arguments) => particle::run(&arguments),
        Command::Torch(arguments) => torch::run(&arguments),
        Command::SessionChild => session::run_child(),
        Command::LinkChild => child::run(),
        Command::CollectiveChild => collective::follow(),
        Command::LimitChild => collective::follow_limit(),
        Command::MeshChild => mesh::follow(),
        Command::StoreChild => store::follow(),
        Command::ExchangeChild => exchange::follow(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("8"), Ok(8));
        assert_eq!(parse_bytes("64KiB"), Ok(65_536));
        assert_eq!(parse_bytes("16m"), Ok(16 << 20));
        for bad in ["", "0", "-1", "1.5k", "8 GiB", "1GiB", "KiB", "99999999999999999999", "17592186044416m"] {
            assert!(parse_bytes(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn windows_stay_within_memory() {
        for bytes in SIZES_BYTES {
            assert!((2..=64).contains(&window(bytes)) && window(bytes) * bytes <= 128 << 20, "{bytes}");
        }
    }

    #[test]
    fn every_size_is_measured_at_least_a_few_times() {
        for (case, bytes) in Case::ALL.into_iter().flat_map(|case| SIZES_BYTES.map(|bytes| (case, bytes))) {
            assert!(Effort::new(true).iterations(case, bytes) >= 3);
            assert!(Effort::new(false).iterations(case, bytes) >= Effort::new(true).iterations(case, bytes));
        }
    }
}
