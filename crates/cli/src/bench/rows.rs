//! Rows of a benchmark, some of which are compared with what they may take, or with a peer's.

use super::child::{no_times, record};
use super::report::{self, Row};
use crate::Failure;
use std::time::Duration;

/// Where times belong.
#[derive(Clone, Copy)]
pub(super) struct Place {
    pub(super) case: &'static str,
    pub(super) bytes: usize,
    pub(super) ranks: u32,
    /// The transport, or whose the row is.
    pub(super) at: &'static str,
    pub(super) language: &'static str,
}

/// The rows so far.
pub(super) struct Rows {
    bench: &'static str,
    rows: Vec<Row>,
}

impl Rows {
    pub(super) fn new(bench: &'static str) -> Self {
        Self { bench, rows: Vec::new() }
    }

    /// Adds times to the row of this place.
    pub(super) fn add(&mut self, place: Place, times_ns: &[u64]) {
        self.add_to(place, None, None, times_ns);
    }

    /// As [`Rows::add`], of times that stand beside those of the row at `way`, which says nothing of what they should
    /// be.
    pub(super) fn add_compared(&mut self, place: Place, way: &'static str, times_ns: &[u64]) {
        self.add_to(place, Some(way), None, times_ns);
    }

    /// As [`Rows::add`], of times that should be no longer than `allowed`, which has a row of its own at `way`.
    pub(super) fn add_within(&mut self, place: Place, way: &'static str, allowed: Duration, times_ns: &[u64]) {
        self.add_to(place, Some(way), Some(1.0), times_ns);
        let row = self.row(Place { at: way, ..place }, None, None);
        if self.rows[row].times.is_empty() {
            record(&mut self.rows[row].times, allowed);
        }
    }

    /// As [`Rows::add`], of times that should be at most this share of those of the row at `way`.
    pub(super) fn add_beside(&mut self, place: Place, way: &'static str, share: f64, times_ns: &[u64]) {
        self.add_to(place, Some(way), Some(share), times_ns);
    }

    fn add_to(&mut self, place: Place, beside: Option<&'static str>, target: Option<f64>, times_ns: &[u64]) {
        let row = self.row(place, beside, target);
        times_ns.iter().for_each(|time_ns| record(&mut self.rows[row].times, Duration::from_nanos(*time_ns)));
    }

    fn row(&mut self, place: Place, beside: Option<&'static str>, target: Option<f64>) -> usize {
        let Place { case, bytes, ranks, at: transport, language } = place;
        let compared_with = beside.map(|way| (case, way));
        let (bench, times) = (self.bench, no_times());
        let row = Row { bench, case, bytes, ranks, transport, language, compared_with, target, times };
        report::place(&mut self.rows, row)
    }

    /// Prints them as a table or as lines of JSON.
    pub(super) fn print(&self, json: bool) -> Result<(), Failure> {
        let mut stdout = std::io::stdout().lock();
        if json { report::json(&self.rows, &mut stdout) } else { report::table(&self.rows, &mut stdout) }
    }
}
