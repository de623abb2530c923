//! Seeds that nobody has tried before, for as long as a test may take.

use std::hash::{BuildHasher, RandomState};
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::SeqCst};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The first seed, instead of one that is drawn.
const FIRST: &str = "SHEAVE_TEST_SEED";
/// How many seeds, instead of as many as fit into the time.
const COUNT: &str = "SHEAVE_TEST_SEEDS";
/// The time in seconds, instead of the test's own.
const SECONDS: &str = "SHEAVE_TEST_SECONDS";

fn told(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

/// Runs `run` on fresh seeds in turn, on as many threads as `beside` says, and says which they were and how to run one
/// of them again. It begins no seed once `budget` is over.
pub(crate) fn fresh_seeds(budget: Duration, beside: u64, run: impl Fn(u64) + Clone + Send + 'static) {
    // Small enough to be typed, and for what a test computes from it.
    let first = told(FIRST).unwrap_or_else(|| RandomState::new().hash_one(0) >> 32);
    let end = told(COUNT).map(|count| first.saturating_add(count));
    let deadline = Instant::now() + told(SECONDS).map_or(budget, Duration::from_secs);
    let next = Arc::new(AtomicU64::new(first));
    let turns = {
        let next = Arc::clone(&next);
        move || {
            // At least one, however late it is.
            while next.load(SeqCst) == first || end.is_some() || Instant::now() < deadline {
                let seed = next.fetch_add(1, SeqCst);
                if end.is_some_and(|end| seed >= end) {
                    break;
                }
                if let Err(panic) = catch_unwind(AssertUnwindSafe(|| run(seed))) {
                    say(&format!("seed {seed} fails; {FIRST}={seed} {COUNT}=1 runs it again"));
                    resume_unwind(panic);
                }
            }
        }
    };
    let threads: Vec<_> = (0..beside).map(|_| std::thread::spawn(turns.clone())).collect();
    let outcomes: Vec<_> = threads.into_iter().map(JoinHandle::join).collect();
    let end = end.unwrap_or_else(|| next.load(SeqCst));
    say(&format!("seeds {first} to {}; {FIRST}={first} {COUNT}={} runs them again", end - 1, end - first));
    outcomes.into_iter().for_each(|outcome| outcome.unwrap_or_else(|panic| resume_unwind(panic)));
}

fn say(text: &str) {
    let _ = writeln!(std::io::stdout(), "{text}");
}
