//! Thirty-two nodes call each other in every way that there is, while some of them die, several at a time, and while
//! links between living ones are cut. Every call ends once and as it may, every error names a culprit, and nothing is
//! left: no thread, no descriptor, no object, no memory of an arena.
//!
//! The nodes are threads of one process, so that one ledger sees both ends of every call. A node that is *killed*
//! abandons its mesh, which is to the others what the end of a process is.

mod guests;
mod job;
mod ledger;
mod part;
mod services;

use crate::common::note;
use crate::seeds;
use job::{Media, torture};
use sheave_base::config::Transport;
use std::time::Duration;

const MEDIA: [Media; 3] = [Media::Process, Media::Link(Transport::Shm), Media::Link(Transport::Tcp)];

fn each_medium(seed: u64, span: Duration) {
    for media in MEDIA {
        let report = torture(seed, media, span);
        note(&format!("seed {seed}, {media:?}: {report}"));
    }
}

#[test]
fn fresh_seeds_of_torture() {
    // One seed: its twenty seconds are those of three media.
    seeds::fresh_seeds(Duration::ZERO, 1, |seed| each_medium(seed, Duration::from_secs(4)));
}

#[test]
#[ignore = "soak suite: takes ten minutes"]
fn many_fresh_seeds_of_torture() {
    seeds::fresh_seeds(Duration::from_secs(600), 1, |seed| each_medium(seed, Duration::from_secs(20)));
}
