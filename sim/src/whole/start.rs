//! How the ranks of a job begin.

use super::ledger::Ledger;
use super::scenario::Scenario;
use crate::jobs::{pause, rank_config};
use sheave_base::ErrorKind;
use sheave_mesh::Mesh;
use std::time::Duration;

/// Joins the mesh of a job as one of its ranks. There is none where this process, or one that it waited for, has met
/// with trouble; without any it is a fault.
pub(super) fn join(scenario: &Scenario, process: usize, ledger: &Ledger) -> Option<Mesh> {
    ledger.now();
    match Mesh::join(rank_config(process, scenario.hosts[process], scenario.ranks() as u32)) {
        Ok(mesh) => {
            ledger.joined(process, mesh.me().node);
            Some(mesh)
        }
        Err(error) => {
            ledger.is_ready(process);
            if ledger.is_troubled() {
                assert_ne!(error.kind(), ErrorKind::Internal, "{error}");
            } else {
                ledger.fault(format!("{process} could not join: {error}"));
            }
            None
        }
    }
}

/// Waits until all processes that live are ready, as this one is.
pub(super) fn await_others(process: usize, ledger: &Ledger) {
    ledger.is_ready(process);
    while !ledger.are_all_ready() {
        pause(Duration::from_millis(1));
    }
}
