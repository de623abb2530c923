//! `sheave bench collective`: operations of groups, and those of OpenMPI, Gloo and a bare loop in turn with them.
//!
//! [`job`] and [`part`] are ours, [`gloo`] and [`limit`] others; OpenMPI's program lies beside Gloo's script in
//! `benches/peers`, where a page says how everything is timed, which is the same everywhere.

mod case;
mod effort;
mod gloo;
mod job;
mod limit;
mod part;
mod table;

use super::child::{no_times, record};
use super::link::show_progress;
use super::peer::{self, Peer, PeerTransport};
use super::report::{self, Row};
use super::{CollectiveArguments, Transport};
use crate::Failure;
pub(super) use case::Case;
use case::{Memory, Operation};
use gloo::Gloo;
pub(super) use job::follow;
use job::{Cell, Setting, measure};
pub(super) use limit::follow as follow_limit;
use sheave_base::Result;
use sheave_collective::Kind;
use std::time::Duration;

const OPENMPI: &str = include_str!("../../../../../benches/peers/openmpi_collective.c");

const RANKS: [u32; 2] = [2, 4];

/// Time for a peer's job to start, and then for each size, on a slow machine.
const PEER_START: Duration = Duration::from_secs(60);
const PEER_SIZE: Duration = Duration::from_secs(30);

const HOW_TO_GET_GLOO: &str = "gloo does not run beside: apt-get install python3-torch, and --gloo /usr/bin/python3";

/// What is measured, and how often.
struct Plan {
    transports: Vec<Transport>,
    ranks: Vec<u32>,
    cases: Vec<Case>,
    bytes: Vec<usize>,
    /// Everything is measured so many times, in turn with the peers.
    turns: u32,
    /// Time for one cell in one turn.
    budget: Duration,
    pin: bool,
}

struct Peers {
    openmpi: Option<Peer>,
    gloo: Option<Gloo>,
    has_limit: bool,
}

/// Measures and reports.
pub(super) fn run(arguments: &CollectiveArguments) -> std::result::Result<(), Failure> {
    let plan = Plan::new(arguments)?;
    let peers = Peers::new(arguments)?;
    let mut measured = Measured::default();
    for turn in 1..=plan.turns {
        for operation in plan.operations() {
            for &ranks in &plan.ranks {
                show_progress(&format!("turn {turn} of {}: {} of {ranks}", plan.turns, operation.name()));
                plan.measure_ours_and_openmpi(operation, ranks, peers.openmpi.as_ref(), &mut measured)?;
                if let Some(gloo) = peers.gloo.as_ref().filter(|_| Gloo::does(operation)) {
                    plan.measure_gloo(gloo, operation, ranks, &mut measured);
                }
                if peers.has_limit && ranks == 2 && plan.transports.contains(&Transport::Shm) {
                    plan.measure_limit(operation, &mut measured)?;
                }
            }
        }
    }
    show_progress("");
    let rows = measured.rows;
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { table::write(&rows, &mut stdout) }
}

/// Median nanoseconds of an operation with tensors in the arena for each of these sizes that so many ranks can do,
/// with a table of algorithms; empty for a kind that is not measured.
pub(crate) fn medians_ns(
    kind: Kind,
    ranks: u32,
    transport: Transport,
    sizes_bytes: &[usize],
    table: &str,
    budget: Duration,
) -> Result<Vec<(usize, u64)>> {
    let Some(operation) = Operation::ALL.into_iter().find(|operation| operation.name() == kind.name()) else {
        return Ok(Vec::new());
    };
    let case = Case::new(operation, Memory::Arena);
    let sizes_bytes = operation.sizes_bytes(sizes_bytes, ranks);
    let cells: Vec<Cell> = sizes_bytes.iter().map(|&bytes| Cell { case, bytes }).collect();
    // As many ranks as cores soon have one each; until then they would measure the scheduler.
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    let setting = Setting { pin: ranks as usize <= cores, table: Some(table.to_owned()) };
    let times = measure(ranks, transport, &cells, budget, &setting)?;
    let median = |mut times: Vec<u64>| {
        times.sort_unstable();
        times.get(times.len() / 2).copied().unwrap_or(u64::MAX)
    };
    Ok(sizes_bytes.into_iter().zip(times.into_iter().map(median)).collect())
}

impl Peers {
    fn new(arguments: &CollectiveArguments) -> std::result::Result<Self, Failure> {
        if arguments.no_peer {
            return Ok(Self { openmpi: None, gloo: None, has_limit: false });
        }
        let gloo = match &arguments.gloo {
            Some(python) if python.is_file() => Some(Gloo::new(python, arguments.pin)?),
            Some(python) => return Err(Failure::Usage(format!("--gloo: there is no file {}", python.display()))),
            None => {
                crate::say(HOW_TO_GET_GLOO, true);
                None
            }
        };
        Ok(Self { openmpi: peer::if_there(Peer::of(OPENMPI, arguments.pin)), gloo, has_limit: true })
    }
}

impl Plan {
    fn new(arguments: &CollectiveArguments) -> std::result::Result<Self, Failure> {
        if arguments.transport.contains(&Transport::Inproc) {
            return Err(Failure::Usage("the ranks of a collective are processes: use shm or tcp".to_owned()));
        }
        let is_chosen =
            |transport: &Transport| arguments.transport.is_empty() || arguments.transport.contains(transport);
        let mut ranks = if arguments.ranks.is_empty() { RANKS.to_vec() } else { arguments.ranks.clone() };
        ranks.sort_unstable();
        ranks.dedup();
        let cases = if arguments.case.is_empty() { Case::USUAL.to_vec() } else { arguments.case.clone() };
        let (turns, budget_ms) = if arguments.quick { (1, 10) } else { (3, 150) };
        let plan = Self {
            transports: [Transport::Shm, Transport::Tcp].into_iter().filter(is_chosen).collect(),
            ranks,
            cases: Case::all().filter(|case| cases.contains(case)).collect(),
            bytes: arguments.bytes.clone(),
            turns: arguments.turns.unwrap_or(turns),
            budget: Duration::from_millis(budget_ms),
            pin: arguments.pin,
        };
        if plan.ranks.iter().all(|ranks| plan.operations().all(|operation| plan.cells(operation, *ranks).is_empty())) {
            let (bytes, ranks) = (&plan.bytes, &plan.ranks);
            return Err(Failure::Usage(format!("no chosen case has {ranks:?} ranks and tensors of {bytes:?} bytes")));
        }
        Ok(plan)
    }

    fn operations(&self) -> impl Iterator<Item = Operation> {
        Operation::ALL.into_iter().filter(|operation| self.cases.iter().any(|case| case.operation == *operation))
    }

    /// What is measured of an operation.
    fn cells(&self, operation: Operation, ranks: u32) -> Vec<Cell> {
        let cases = self.cases.iter().filter(|case| case.operation == operation);
        let sizes_bytes = operation.sizes_bytes(&self.bytes, ranks);
        cases.flat_map(|&case| sizes_bytes.iter().map(move |&bytes| Cell { case, bytes })).collect()
    }

    fn measure_ours_and_openmpi(
        &self,
        operation: Operation,
        ranks: u32,
        openmpi: Option<&Peer>,
        measured: &mut Measured,
    ) -> Result<()> {
        let cells = self.cells(operation, ranks);
        if cells.is_empty() {
            return Ok(());
        }
        for &transport in &self.transports {
            let beside = if transport == Transport::Tcp { PeerTransport::Tcp } else { PeerTransport::Shm };
            let times = measure(ranks, transport, &cells, self.budget, &Setting { pin: self.pin, table: None })
                .map_err(|error| error.context(format!("{ranks} ranks over {}", transport.name())))?;
            for (&Cell { case, bytes }, times) in cells.iter().zip(times) {
                let (name, target) = (case.name(), case.target(transport, ranks, bytes));
                let compared_with = Some((operation.name(), beside.name()));
                measured
                    .add(Row { compared_with, target, ..row(name, bytes, ranks, transport.name(), "rust") }, &times);
            }
            let Some(openmpi) = openmpi else { continue };
            let sizes_bytes = operation.sizes_bytes(&self.bytes, ranks);
            let mut arguments = vec![operation.name().to_owned(), self.budget.as_micros().to_string()];
            arguments.extend(sizes_bytes.iter().map(ToString::to_string));
            let times = openmpi.run_among(ranks, beside, &arguments, limit_of(&sizes_bytes));
            measured.add_peer(times, operation, ranks, beside.name(), "c");
        }
        Ok(())
    }

    fn measure_gloo(&self, gloo: &Gloo, operation: Operation, ranks: u32, measured: &mut Measured) {
        let sizes_bytes = operation.sizes_bytes(&self.bytes, ranks);
        if !sizes_bytes.is_empty() {
            let times = gloo.run(operation, ranks, &sizes_bytes, self.budget, limit_of(&sizes_bytes));
            measured.add_peer(times, operation, ranks, gloo::TRANSPORT, "python");
        }
    }

    fn measure_limit(&self, operation: Operation, measured: &mut Measured) -> Result<()> {
        let sizes_bytes = operation.sizes_bytes(&self.bytes, 2);
        if operation != Operation::AllReduce || sizes_bytes.is_empty() {
            return Ok(());
        }
        let times = limit::measure(&sizes_bytes, self.budget).map_err(|error| error.context("the bare loop"))?;
        for (memory, bytes, times) in times {
            measured.add(row(limit::case(memory), bytes, 2, Transport::Shm.name(), "rust"), &times);
        }
        Ok(())
    }
}

fn limit_of(sizes_bytes: &[usize]) -> Duration {
    PEER_START + PEER_SIZE * u32::try_from(sizes_bytes.len()).unwrap_or(u32::MAX)
}

fn row(case: &'static str, bytes: usize, ranks: u32, transport: &'static str, language: &'static str) -> Row {
    let (compared_with, target, times) = (None, None, no_times());
    Row { bench: "collective", case, bytes, ranks, transport, language, compared_with, target, times }
}

/// Rows, in the order in which they were first measured.
#[derive(Default)]
struct Measured {
    rows: Vec<Row>,
}

impl Measured {
    /// Adds times to the row like this one.
    fn add(&mut self, row: Row, times_ns: &[u64]) {
        let key = |row: &Row| (row.case, row.bytes, row.ranks, row.transport);
        let known = self.rows.iter().position(|known| key(known) == key(&row));
        let at = known.unwrap_or_else(|| {
            self.rows.push(row);
            self.rows.len() - 1
        });
        for time_ns in times_ns {
            record(&mut self.rows[at].times, Duration::from_nanos(*time_ns));
        }
    }

    /// A peer that fails leaves its column empty.
    fn add_peer(
        &mut self,
        times: Result<Vec<(usize, Vec<u64>)>>,
        operation: Operation,
        ranks: u32,
        transport: &'static str,
        language: &'static str,
    ) {
        match times {
            Ok(measured) => {
                for (bytes, times) in measured {
                    self.add(row(operation.name(), bytes, ranks, transport, language), &times);
                }
            }
            Err(error) => {
                let what = format!("a run of {} of {transport} is left out: {error}", operation.name());
                crate::say(&what, true);
            }
        }
    }
}
