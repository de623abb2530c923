//! `sheave bench store`: two workers push to one server and pull from it, and MXNet's do the same in turn.
//!
//! [`job`] is one job of ours, [`table`] what it does with rows, [`mxnet`] a job of the peer's.

mod job;
mod mxnet;
mod table;

use super::child::{no_times, record};
use super::link::show_progress;
use super::report::{self, Row};
use super::{StoreArguments, Transport};
use crate::Failure;
use clap::ValueEnum;
use hdrhistogram::Histogram;
pub(super) use job::follow;
pub(super) use mxnet::Mxnet;
use serde::{Deserialize, Serialize};
use sheave_store::{Compression, Kind};
use std::collections::BTreeMap;
use std::time::Duration;

/// What `sheave bench store` measures.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
pub(crate) enum StoreCase {
    /// One key in a synchronous store.
    PushPull,
    /// One key in an asynchronous store.
    PushPullAsync,
    /// Ten thousand keys in one call to a synchronous store.
    #[value(name = "push_pull_10000")]
    ManyKeys,
    /// Ten thousand keys in one call to an asynchronous store.
    #[value(name = "push_pull_10000_async")]
    ManyKeysAsync,
    /// One key in a synchronous store, pushed in 2 bits.
    #[value(name = "push_pull_2bit")]
    TwoBit,
    /// One key in a synchronous store, pushed in half precision.
    #[value(name = "push_pull_fp16")]
    Fp16,
    /// Ten thousand rows of a table of a million, 64 f32 each, in a synchronous store with plain gradient descent; each
    /// worker has its own rows.
    #[value(name = "push_pull_rows")]
    Rows,
}

/// Other stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum StorePeer {
    /// MXNet 1.9.1, over TCP.
    Mxnet,
}

/// What is measured at once.
struct Cell {
    keys: usize,
    /// Of each key; of a table what is pushed.
    bytes: usize,
    iterations: usize,
}

const fn cell(keys: usize, bytes: usize, iterations: usize) -> Cell {
    Cell { keys, bytes, iterations }
}

const ONE_KEY: [Cell; 5] = [
    cell(1, 1 << 10, 10_000),
    cell(1, 64 << 10, 4_000),
    cell(1, 1 << 20, 1_000),
    cell(1, 5_760_000, 400),
    cell(1, 64 << 20, 30),
];
const ONE_BIG_KEY: [Cell; 1] = [cell(1, 5_760_000, 400)];
const TABLE: [Cell; 1] = [cell(1, table::ROWS * table::COLUMNS * 4, 100)];
const MANY_KEYS: [Cell; 1] = [cell(10_000, 64, 200)];

impl StoreCase {
    fn name(self) -> &'static str {
        match self {
            Self::PushPull => "push_pull",
            Self::PushPullAsync => "push_pull_async",
            Self::ManyKeys => "push_pull_10000",
            Self::ManyKeysAsync => "push_pull_10000_async",
            Self::TwoBit => "push_pull_2bit",
            Self::Fp16 => "push_pull_fp16",
            Self::Rows => "push_pull_rows",
        }
    }

    fn kind(self) -> Kind {
        match self {
            Self::PushPull | Self::ManyKeys | Self::TwoBit | Self::Fp16 | Self::Rows => Kind::DistSync,
            Self::PushPullAsync | Self::ManyKeysAsync => Kind::DistAsync,
        }
    }

    fn compression(self) -> Compression {
        match self {
            Self::TwoBit => Compression::TwoBit { threshold: 0.5 },
            Self::Fp16 => Compression::Fp16,
            _ => Compression::None,
        }
    }

    fn cells(self) -> &'static [Cell] {
        match self {
            Self::PushPull | Self::PushPullAsync => &ONE_KEY,
            Self::ManyKeys | Self::ManyKeysAsync => &MANY_KEYS,
            Self::TwoBit | Self::Fp16 => &ONE_BIG_KEY,
            Self::Rows => &TABLE,
        }
    }

    /// Those of these sizes, or all.
    fn cells_of(self, sizes: &[usize]) -> impl Iterator<Item = &'static Cell> {
        self.cells().iter().filter(|cell| sizes.is_empty() || sizes.contains(&cell.bytes))
    }

    /// Whether servers take steps of an optimizer: an asynchronous store of MXNet cannot be without one, and rows that
    /// are not pushed would vanish there.
    fn has_optimizer(self) -> bool {
        self == Self::Rows || self.kind() == Kind::DistAsync
    }

    /// The job of MXNet's script that does the same.
    fn mxnet_job(self) -> Option<&'static str> {
        match self {
            Self::PushPull => Some("dist_sync"),
            Self::PushPullAsync => Some("dist_async"),
            Self::ManyKeys => Some("dist_sync_keys"),
            Self::ManyKeysAsync => Some("dist_async_keys"),
            Self::TwoBit => Some("dist_sync_2bit"),
            Self::Rows => Some("dist_sync_rows"),
            // It has no such compression.
            Self::Fp16 => None,
        }
    }

    /// The case whose peer stands beside this one: half precision is set beside none.
    fn compared_with(self) -> Self {
        if self == Self::Fp16 { Self::PushPull } else { self }
    }

    /// What our median should be at most, in MXNet's, which talks over TCP.
    fn target(self, transport: Transport, bytes: usize) -> Option<f64> {
        match (self, transport, bytes) {
            (Self::PushPull, Transport::Shm, 5_760_000) => Some(0.2),
            (Self::PushPull, Transport::Tcp, 5_760_000) | (Self::ManyKeys, ..) => Some(0.5),
            _ => None,
        }
    }
}

/// Where the peer's rows stand in the column of transports.
pub(super) const MXNET: &str = "mxnet-tcp";

/// Times by case, size and transport, in the order of the report.
type Times = BTreeMap<(StoreCase, usize, &'static str), Histogram<u64>>;

/// Measures and reports.
pub(super) fn run(arguments: &StoreArguments) -> std::result::Result<(), Failure> {
    if arguments.transport.contains(&Transport::Inproc) {
        return Err(Failure::Usage("the processes of a store do not meet inproc; use shm or tcp".to_owned()));
    }
    let is_chosen = |transport: &Transport| arguments.transport.is_empty() || arguments.transport.contains(transport);
    let transports: Vec<Transport> = [Transport::Shm, Transport::Tcp].into_iter().filter(is_chosen).collect();
    let sizes = &arguments.bytes;
    let is_chosen = |case: &StoreCase| {
        (arguments.case.is_empty() || arguments.case.contains(case)) && case.cells_of(sizes).next().is_some()
    };
    let cases: Vec<StoreCase> = StoreCase::value_variants().iter().copied().filter(is_chosen).collect();
    if cases.is_empty() {
        return Err(Failure::Usage(format!("--bytes: no chosen case has keys of {sizes:?} bytes")));
    }
    let peer = match (arguments.peer, &arguments.peer_python) {
        (Some(StorePeer::Mxnet), Some(python)) if python.is_file() => Some(Mxnet::new(python.clone())?),
        (Some(_), Some(python)) => {
            return Err(Failure::Usage(format!("--peer-python: there is no file {}", python.display())));
        }
        _ => {
            crate::say(mxnet::HOW_TO_GET_IT, true);
            None
        }
    };
    let (rounds, thrift) = if arguments.quick { (1, 10) } else { (2, 2) };
    let mut times = Times::new();
    for round in 1..=rounds {
        for &case in &cases {
            for &transport in &transports {
                show_progress(&format!("round {round} of {rounds}: {} over {}", case.name(), transport.name()));
                let measured = job::measure(case, transport, thrift, sizes)
                    .map_err(|error| error.context(format!("{} over {}", case.name(), transport.name())))?;
                for (cell, measured) in case.cells_of(sizes).zip(measured) {
                    let all = times.entry((case, cell.bytes, transport.name())).or_insert_with(no_times);
                    // Histograms of the same digits; it grows with its values.
                    let _ = all.add(measured);
                }
            }
            if let (Some(peer), Some(job)) = (&peer, case.mxnet_job()) {
                show_progress(&format!("round {round} of {rounds}: {} of mxnet", case.name()));
                measure_peer(peer, case, job, thrift, &mut times);
            }
        }
    }
    // The peer measures all sizes of a case.
    times.retain(|(_, bytes, _), _| sizes.is_empty() || sizes.contains(bytes));
    show_progress("");
    let rows = rows(&times);
    let mut stdout = std::io::stdout().lock();
    if arguments.json { report::json(&rows, &mut stdout) } else { report::table(&rows, &mut stdout) }
}

/// A peer that fails leaves its column empty.
fn measure_peer(peer: &Mxnet, case: StoreCase, job: &str, thrift: usize, times: &mut Times) {
    match peer.run(job, thrift, job::EXPECTED.workers, job::EXPECTED.servers) {
        Ok(measured) => {
            for (bytes, rounds_ns) in measured {
                let all = times.entry((case, bytes, MXNET)).or_insert_with(no_times);
                rounds_ns.into_iter().for_each(|round_ns| record(all, Duration::from_nanos(round_ns)));
            }
        }
        Err(error) => crate::say(&format!("a run of {job} of mxnet is left out: {error}"), true),
    }
}

fn rows(times: &Times) -> Vec<Row> {
    let row = |(&(case, bytes, transport), times): (&(StoreCase, usize, &'static str), &Histogram<u64>)| {
        let ours = [Transport::Shm, Transport::Tcp].into_iter().find(|ours| ours.name() == transport);
        Row {
            bench: "store",
            case: case.name(),
            bytes,
            ranks: job::EXPECTED.workers,
            transport,
            language: if ours.is_some() { "rust" } else { "python" },
            compared_with: ours.map(|_| (case.compared_with().name(), MXNET)),
            target: ours.and_then(|ours| case.target(ours, bytes)),
            times: times.clone(),
        }
    };
    let mut rows: Vec<Row> = times.iter().map(row).collect();
    // Stable: ours come before the peer's.
    rows.sort_by_key(|row| (row.transport == MXNET, row.transport));
    rows.sort_by_key(|row| (StoreCase::value_variants().iter().position(|case| case.name() == row.case), row.bytes));
    rows
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_command_line() {
        for case in StoreCase::value_variants() {
            assert_eq!(case.to_possible_value().map(|value| value.get_name().to_owned()), Some(case.name().to_owned()));
        }
    }

    #[test]
    fn rows_stand_beside_the_peer_and_have_the_published_targets() {
        let mut times = Times::new();
        for (case, transport) in [
            (StoreCase::Fp16, "tcp"),
            (StoreCase::PushPull, MXNET),
            (StoreCase::PushPull, "tcp"),
            (StoreCase::PushPull, "shm"),
        ] {
            times.insert((case, 5_760_000, transport), no_times());
        }
        let rows = rows(&times);
        let seen: Vec<_> = rows.iter().map(|row| (row.case, row.transport, row.target)).collect();
        let expected = [
            ("push_pull", "shm", Some(0.2)),
            ("push_pull", "tcp", Some(0.5)),
            ("push_pull", MXNET, None),
            ("push_pull_fp16", "tcp", None),
        ];
        assert_eq!(seen, expected);
        assert!(rows.iter().all(|row| row.transport == MXNET || row.compared_with == Some(("push_pull", MXNET))));
    }
}
