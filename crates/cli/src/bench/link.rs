//! `sheave bench link`: rounds of ours and the peer's in turn, so that both see the same machine.

use super::child::no_times;
use super::pair::{self, Pair};
use super::peer::{self, Peer, PeerTransport};
use super::report::{self, Row};
use super::traffic::{Cell, Side};
use super::{Case, Effort, LinkArguments, SIZES_BYTES, Transport, window};
use crate::Failure;
use hdrhistogram::Histogram;
use sheave_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::io::{IsTerminal, Write};

/// What is measured, and over what.
struct Plan {
    transports: Vec<Transport>,
    cases: Vec<Case>,
    sizes_bytes: Vec<usize>,
    effort: Effort,
    pin: bool,
}

/// Times by case, size and transport, in the order of the report.
#[derive(Default)]
struct Times {
    ours: BTreeMap<(usize, usize, usize), Histogram<u64>>,
    peers: BTreeMap<(usize, &'static str), Histogram<u64>>,
}

/// Measures and reports.
pub(super) fn run(arguments: &LinkArguments) -> std::result::Result<(), Failure> {
    let plan = Plan::new(arguments)?;
    let peer = if arguments.no_peer || !plan.cases.contains(&Case::PingPong) {
        None
    } else {
        peer::if_there(Peer::build(plan.pin))
    };
    let mut times = Times::default();
    for round in 1..=plan.effort.rounds {
        for &transport in &plan.transports {
            show_progress(&format!("round {round} of {}: {}", plan.effort.rounds, transport.name()));
            plan.measure_ours(transport, &mut times)?;
            // Threads have no peer of their own; the peer's shared memory stands beside both.
            let beside = match transport {
                Transport::Inproc if plan.transports.contains(&Transport::Shm) => None,
                Transport::Inproc | Transport::Shm => Some(PeerTransport::Shm),
                Transport::Tcp => Some(PeerTransport::Tcp),
            };
            if let (Some(peer), Some(beside)) = (&peer, beside) {
                plan.measure_peer(peer, beside, &mut times);
            }
        }
    }
    show_progress("");
    let rows = plan.rows(&times);
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

impl Plan {
    fn new(arguments: &LinkArguments) -> std::result::Result<Self, Failure> {
        let chosen = |chosen: &[Transport]| if chosen.is_empty() { Transport::ALL.to_vec() } else { chosen.to_vec() };
        let transports = chosen(&arguments.transport);
        let cases = if arguments.case.is_empty() { Case::ALL.to_vec() } else { arguments.case.clone() };
        let mut sizes_bytes = if arguments.bytes.is_empty() { SIZES_BYTES.to_vec() } else { arguments.bytes.clone() };
        sizes_bytes.sort_unstable();
        sizes_bytes.dedup();
        let runs = |case: &Case| transports.iter().any(|transport| case.runs_over(*transport));
        if let Some(case) = cases.iter().find(|case| !runs(case)) {
            return Err(Failure::Usage(format!(
                "{} does not run over tcp: memory cannot change hands there",
                case.name()
            )));
        }
        Ok(Self { transports, cases, sizes_bytes, effort: Effort::new(arguments.quick), pin: arguments.pin })
    }

    fn measure_ours(&self, transport: Transport, times: &mut Times) -> Result<()> {
        let pair = Pair::make(transport, self.pin)?;
        // A thread of its own, so that only this side is pinned and not what is started later.
        let measured = std::thread::scope(|scope| {
            let leader = scope.spawn(|| {
                if self.pin {
                    pair::pin_to_core(0)?;
                }
                self.lead(&pair.side, transport, times)
            });
            leader.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the measuring thread panicked")))
        });
        // The other side knows better why it ended.
        let finished = pair.finish();
        measured.and(finished)
    }

    fn lead(&self, side: &Side, transport: Transport, times: &mut Times) -> Result<()> {
        for (case_index, &case) in Case::ALL.iter().enumerate() {
            if !self.cases.contains(&case) || !case.runs_over(transport) {
                continue;
            }
            for &bytes in &self.sizes_bytes {
                let recorded = times.ours.entry((case_index, bytes, transport as usize)).or_insert_with(no_times);
                let iterations = self.effort.iterations(case, bytes);
                let cell = Cell { case, bytes, iterations, budget: self.effort.budget, window: window(bytes) };
                side.lead(cell, recorded).map_err(|error| {
                    error.context(format!("{} of {bytes} bytes over {}", case.name(), transport.name()))
                })?;
            }
        }
        side.end()
    }

    /// A peer that fails leaves its column empty.
    fn measure_peer(&self, peer: &Peer, transport: PeerTransport, times: &mut Times) {
        let sizes: Vec<(usize, usize)> =
            self.sizes_bytes.iter().map(|&bytes| (bytes, self.effort.iterations(Case::PingPong, bytes))).collect();
        match peer.run(transport, &sizes, self.effort) {
            Ok(measured) => {
                for (bytes, round_trips_ns) in measured {
                    let recorded = times.peers.entry((bytes, transport.name())).or_insert_with(no_times);
                    for round_trip_ns in round_trips_ns {
                        // The histogram grows with its values, so that it refuses none.
                        let _ = recorded.record(round_trip_ns);
                    }
                }
            }
            Err(error) => crate::say(&format!("{} is left out: {error}", transport.name()), true),
        }
    }

    fn rows(&self, times: &Times) -> Vec<Row> {
        let mut rows: Vec<Row> = Vec::new();
        for (&(case, bytes, transport), recorded) in &times.ours {
            let transport = Transport::ALL[transport];
            let compared_with = match transport {
                Transport::Inproc | Transport::Shm => PeerTransport::Shm,
                Transport::Tcp => PeerTransport::Tcp,
            };
            rows.push(Row {
                bench: "link",
                case: Case::ALL[case].name(),
                bytes,
                ranks: 2,
                transport: transport.name(),
                language: "rust",
                compared_with: (Case::ALL[case] != Case::Stream)
                    .then_some((Case::PingPong.name(), compared_with.name())),
                target: None,
                times: recorded.clone(),
            });
        }
        for (&(bytes, transport), recorded) in &times.peers {
            rows.push(Row {
                bench: "link",
                case: Case::PingPong.name(),
                bytes,
                ranks: 2,
                transport,
                language: "c",
                compared_with: None,
                target: None,
                times: recorded.clone(),
            });
        }
        // Stable: ours come before the peer's.
        rows.sort_by_key(|row| (Case::ALL.iter().position(|case| case.name() == row.case), row.bytes));
        rows
    }
}

/// One line that overwrites itself, for people who watch.
pub(super) fn show_progress(text: &str) {
    let mut stderr = std::io::stderr().lock();
    if stderr.is_terminal() {
        let _ = write!(stderr, "\r\x1b[K{text}").and_then(|()| stderr.flush());
    }
}
