//! What is measured, and what it may take.

use super::{ALLOWED, PS_LITE};
use crate::bench::Transport;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// Where tensors lie.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, ValueEnum, Serialize, Deserialize)]
#[value(rename_all = "snake_case")]
pub(crate) enum Case {
    /// Pushed from the arena into registered memory, answered from the arena into the arena.
    Registered,
    /// As registered, but worker and server have their tensors in memory of their own.
    Private,
    /// One tensor of the arena is given to the server, which gives it back.
    Moved,
}

/// One measurement of a job.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(super) struct Cell {
    pub(super) case: Case,
    pub(super) bytes: usize,
    pub(super) iterations: usize,
}

/// What a median should be at most: `target` times a reading.
#[derive(Clone, Copy, Debug)]
pub(super) struct Goal {
    pub(super) reading_ns: u64,
    pub(super) target: f64,
    pub(super) beside: &'static str,
}

const SMALL: usize = 1 << 10;
const BATCH: usize = 896 << 10;
const LARGE: usize = 16 << 20;

impl Case {
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Registered => "registered",
            Self::Private => "private",
            Self::Moved => "moved",
        }
    }

    pub(super) fn goal(self, workers: u32, bytes: usize, transport: &str, language: &str) -> Option<Goal> {
        // Each language's own, since a row is found by its name.
        let at = usize::from(language == "python");
        let allowed = |reading_ns| Some(Goal { reading_ns, target: 1.0, beside: ALLOWED[at] });
        let ps_lite = |reading_ns, target| Some(Goal { reading_ns, target, beside: PS_LITE[at] });
        if workers != 1 {
            return None;
        }
        match (language, self, bytes, transport) {
            ("rust", Self::Registered, SMALL, "shm") => allowed(3_000),
            ("rust", Self::Registered, BATCH, "shm") => allowed(180_000),
            ("rust", Self::Moved, BATCH, "shm") => allowed(30_000),
            ("python", Self::Registered, SMALL, "shm") => allowed(15_000),
            ("python", Self::Registered, BATCH, "shm") => allowed(200_000),
            ("python", Self::Moved, BATCH, "shm") => allowed(45_000),
            (_, Self::Registered, SMALL, "tcp") => ps_lite(52_000, 0.5),
            (_, Self::Registered, BATCH, "tcp") => ps_lite(524_000, 0.75),
            (_, Self::Registered, LARGE, "tcp") => ps_lite(37_000_000, 0.4),
            _ => None,
        }
    }
}

/// The measurements of one job.
pub(super) fn cells(
    cases: &[Case],
    sizes: &[usize],
    (workers, servers): (u32, u32),
    transport: Transport,
    thrift: usize,
) -> Vec<Cell> {
    let mut cells = Vec::new();
    for &case in cases {
        // Memory changes hands on one machine, and goes to one server.
        if case == Case::Moved && (transport == Transport::Tcp || workers + servers > 2) {
            continue;
        }
        let usual = [SMALL, BATCH, LARGE];
        for &bytes in if sizes.is_empty() { &usual[..] } else { sizes } {
            let iterations: usize = match bytes {
                0..=0x1_0000 => 40_000,
                0x1_0001..=0x20_0000 => 1_000,
                _ => 80,
            };
            let iterations = (iterations / thrift / (workers * servers) as usize).max(5);
            cells.push(Cell { case, bytes, iterations });
        }
    }
    cells
}
