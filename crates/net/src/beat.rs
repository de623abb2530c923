//! The node's own thread: serves links while nobody waits, shows the node's life to its peers and watches theirs.

use crate::counters::Counters;
use crate::entry::Entry;
use crate::node::Inner;
use crate::probe;
use crate::progress::{Rhythm, Turn, span_until};
use sheave_base::clock;
use sheave_base::thread::Thread;
use sheave_base::{Error, ErrorKind, Result, contain};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// A peer whose silence could not be told is looked at again after this part of a beat: soon enough for a death to be
/// found in time, and not so often that beats disturb a thread that polls its link all the time.
const LOOKS_PER_BEAT: u32 = 8;

/// What this thread knows of stops of its process.
#[derive(Clone, Copy)]
struct Stop {
    /// For how long there was no long one.
    awake: Duration,
    has_just_ended: bool,
}

/// Starts the thread. It ends when the node is stopping.
pub(crate) fn spawn(inner: Arc<Inner>) -> Result<Thread> {
    sheave_base::thread::start("sheave-progress", move || run(&inner))
}

fn run(inner: &Inner) {
    let beat = inner.config.liveness.beat;
    let mut awake_since = clock::now();
    let mut next_beat = awake_since + beat;
    let mut rhythm = Rhythm::default();
    while !inner.stopping.load(Ordering::SeqCst) {
        let next = inner.next_due().map_or(next_beat, |due| due.min(next_beat));
        // Users' code is contained where it is called. Whatever else panics must not end this thread, whose peers would
        // find a silent process.
        if contain::told("a turn of the progress thread", || turn(inner, &mut rhythm, next)).is_none() {
            inner.progress.thread_lets_go();
        }
        let now = clock::now();
        if now >= next_beat {
            // After a stop of this whole process the peers' signs of life are still to be read: they get one more beat.
            let overslept = now.duration_since(next_beat);
            // Nobody can have shown it one while it was stopped for long; and a job that is stopped and continued as a
            // whole is not continued in one moment.
            if overslept > inner.config.liveness.timeout / 2 {
                awake_since = now;
            }
            let stop = Stop { awake: now.duration_since(awake_since), has_just_ended: overslept > beat };
            next_beat = now + beat;
            let verdict = contain::told("a beat of the progress thread", || beat_all(inner, stop)).flatten();
            next_beat = verdict.map_or(next_beat, |verdict| next_beat.min(now + verdict));
        }
    }
}

/// One turn of the thread, until `next` at most.
fn turn(inner: &Inner, rhythm: &mut Rhythm, next: Instant) {
    let limit = span_until(clock::now(), inner.config.liveness.beat, Some(next));
    let busy = inner.links.all().iter().any(|entry| entry.pollers.load(Ordering::Relaxed) > 0);
    match inner.progress.thread_turn(rhythm, limit, busy, || inner.arm_all()) {
        Turn::Led { woken } => {
            if woken {
                Counters::add(&inner.counters.progress_wakeups, 1);
            }
            inner.linger(next);
            inner.serve_all();
        }
        Turn::Ticked => {
            inner.linger(next);
            let found = inner.serve_all();
            rhythm.looked(found);
        }
        Turn::Rested => {}
    }
}

/// Returns in how long a peer is to be declared dead, if that is before the next beat.
fn beat_all(inner: &Inner, stop: Stop) -> Option<Duration> {
    inner.listening.sweep();
    let liveness = inner.config.liveness;
    let mut verdict: Option<Duration> = None;
    for entry in inner.links.all().iter() {
        inner.poll(entry);
        let silence = entry.link.beat();
        // Who has found the link busy meanwhile has left to us what is in it.
        inner.settle(entry);
        let Some(silence) = silence else {
            // Who is on the point of being declared dead must not gain a whole beat by chance.
            verdict = verdict.into_iter().chain([liveness.beat / LOOKS_PER_BEAT]).min();
            continue;
        };
        let silence = silence.min(stop.awake);
        inner.probe(entry, silence);
        // A sign of life is due with each beat. On a path that is cut the cut is what must not last too long, and it
        // may have begun right before the next sign, so the last moment counts; and whoever can be reached again is
        // found by the next attempt.
        let is_cut = silence > liveness.beat && entry.link.is_stuck();
        let more = if is_cut { liveness.beat + probe::attempt(entry) } else { Duration::ZERO };
        let patience = liveness.timeout + more;
        if silence <= patience || stop.has_just_ended {
            let left = patience.saturating_sub(silence) + Duration::from_millis(1);
            verdict = verdict.into_iter().chain(is_cut.then_some(left)).min();
        } else if !is_traced(inner, entry) {
            declare_dead(inner, entry, silence);
        }
    }
    verdict.filter(|verdict| *verdict < liveness.beat)
}

/// Whether somebody looks into the peer's process with a debugger: it is silent because its user has stopped it.
fn is_traced(inner: &Inner, entry: &Entry) -> bool {
    let Some(tracer) = entry.link.tracer() else { return false };
    if !entry.is_noticed.swap(true, Ordering::SeqCst) {
        let peer = entry.link.peer();
        inner.notice(&format!("{peer} is silent, but process {tracer} traces it, so it is not held for dead"));
    }
    true
}

fn declare_dead(inner: &Inner, entry: &Arc<Entry>, silence: Duration) {
    let reason = Error::new(ErrorKind::PeerLost, format!("no sign of life for {:.1} s", silence.as_secs_f64()))
        .peer(entry.link.peer().clone())
        .hint("the process is stopped or its host is gone; SHEAVE_LIVENESS_TIMEOUT_MS sets how long to wait");
    entry.link.abandon(&reason);
    inner.link_ended(entry, &reason);
}
