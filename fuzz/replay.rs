//! Replays the corpus of a fuzz target on stable Rust. The unit tests of each room with a target include this file.
//!
//! Seeds are written by those tests with `SHEAVE_BLESS=1`, from what the room itself writes; inputs that long fuzzing
//! finds are added beside them by hand and replay too. Each input runs as it is, cut off anywhere, with any one bit
//! flipped, and in some random mixtures with others; `SHEAVE_TEST_SECONDS` makes the mixtures go on for that long, and
//! `SHEAVE_TEST_SEED` draws them again.
//!
//! Every run is held against a bound on what it may ask the allocator for.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    reason = "a test says what it has run, and which input has failed"
)]

use allocation::requested_bytes;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

#[path = "allocation.rs"]
mod allocation;

/// The whole corpus is replayed with changed bits, so an input has to be small.
const SEED_BYTES_MAX: usize = 4096;

/// Random mixtures that a replay tries where nobody says for how long.
const MIXTURES: u64 = 2_000;

/// A target: what it does with an input, and what that may ask the allocator for.
#[derive(Clone, Copy)]
pub(crate) struct Target {
    /// The folder of its corpus.
    pub(crate) name: &'static str,
    pub(crate) run: fn(&[u8]),
    /// Bytes that any run may ask for, whatever it is given.
    pub(crate) fixed_bytes: usize,
    /// Bytes that a run may ask for besides, for each byte of its input.
    pub(crate) ratio: usize,
}

/// Shows the input that a target has failed for.
struct Shown<'a>(&'static str, &'a [u8]);

impl Drop for Shown<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            let hex: String = self.1.iter().map(|byte| format!("{byte:02x}")).collect();
            eprintln!("{} failed for {} bytes: {hex}", self.0, self.1.len());
        }
    }
}

impl Target {
    fn directory(&self) -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fuzz/corpus").join(self.name)
    }

    /// Runs one input.
    pub(crate) fn check(&self, input: &[u8]) {
        let _shown = Shown(self.name, input);
        let ((), requested) = requested_bytes(|| (self.run)(input));
        let allowed = self.fixed_bytes + self.ratio * input.len();
        assert!(
            requested <= allowed,
            "{requested} bytes of memory for {} of input; {allowed} are allowed",
            input.len()
        );
    }

    /// Holds the seeds in the corpus against those that the current format makes.
    pub(crate) fn seeds_are_current(&self, seeds: &[(&str, Vec<u8>)]) {
        let directory = self.directory();
        for (name, bytes) in seeds {
            let path = directory.join(name);
            if std::env::var_os("SHEAVE_BLESS").is_some() {
                std::fs::create_dir_all(&directory).expect("it can be made");
                std::fs::write(&path, bytes).expect("it can be written");
            }
            let found = std::fs::read(&path).expect("it is there; SHEAVE_BLESS=1 writes it");
            assert!(found == *bytes, "fuzz/corpus/{}/{name} is no longer what is written", self.name);
        }
    }

    fn corpus(&self) -> Vec<Vec<u8>> {
        let entries = std::fs::read_dir(self.directory()).expect("there is a corpus");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("it can be read").path()).collect();
        paths.sort();
        assert!(!paths.is_empty(), "no corpus for {}", self.name);
        let read = |path: PathBuf| {
            let input = std::fs::read(&path).expect("it can be read");
            assert!(input.len() <= SEED_BYTES_MAX, "{} is too long for a seed", path.display());
            input
        };
        paths.into_iter().map(read).collect()
    }

    /// Replays every input that is checked in, and what is near it.
    pub(crate) fn replay(&self) {
        let mut corpus = self.corpus();
        let mut runs = 0u64;
        for input in &mut corpus {
            self.check(input);
            runs += 1;
            if cfg!(miri) {
                // What it looks for shows in one case as well as in thousands, each of which takes it long.
                continue;
            }
            (0..input.len()).for_each(|length| self.check(&input[..length]));
            for bit in 0..input.len() * 8 {
                input[bit / 8] ^= 1 << (bit % 8);
                self.check(input);
                input[bit / 8] ^= 1 << (bit % 8);
            }
            runs += 9 * input.len() as u64;
        }
        runs += self.mix(&corpus);
        println!("{}: {} inputs, {runs} runs", self.name, corpus.len());
    }

    /// Runs random mixtures of the corpus. Returns how many.
    fn mix(&self, corpus: &[Vec<u8>]) -> u64 {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok());
        let until = number("SHEAVE_TEST_SECONDS").map(|seconds| Instant::now() + Duration::from_secs(seconds));
        let drawn = || std::time::UNIX_EPOCH.elapsed().map_or(1, |since| since.as_nanos() as u64);
        let seed = number("SHEAVE_TEST_SEED").unwrap_or_else(drawn);
        println!("{}: SHEAVE_TEST_SEED={seed}", self.name);
        let mut random = Random(seed | 1);
        let most = if cfg!(miri) { 20 } else { MIXTURES };
        let mut runs = 0;
        while until.map_or(runs < most, |until| Instant::now() < until) {
            let mut input = corpus[random.below(corpus.len())].clone();
            for _ in 0..=random.below(6) {
                random.change(&mut input, corpus);
            }
            input.truncate(SEED_BYTES_MAX);
            self.check(&input);
            runs += 1;
        }
        runs
    }
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0
    }

    fn below(&mut self, bound: usize) -> usize {
        (self.next() >> 16) as usize % bound.max(1)
    }

    fn change(&mut self, input: &mut Vec<u8>, corpus: &[Vec<u8>]) {
        const TELLING: [u64; 12] = [0, 1, 7, 8, 63, 64, 255, 1 << 16, 1 << 32, u64::MAX >> 1, u64::MAX - 63, u64::MAX];
        let at = self.below(input.len() + 1);
        match self.below(7) {
            0 if at < input.len() => input[at] ^= 1 << self.below(8),
            1 if at < input.len() => input[at] = self.next() as u8,
            2 => input.insert(at, self.below(16) as u8),
            3 => {
                input.drain(at..(at + self.below(9)).min(input.len()));
            }
            4 => {
                let width = [1, 2, 4, 8][self.below(4)];
                let bytes = TELLING[self.below(TELLING.len())].to_le_bytes();
                input.iter_mut().skip(at).zip(&bytes[..width]).for_each(|(to, from)| *to = *from);
            }
            5 => {
                let other = &corpus[self.below(corpus.len())];
                let from = self.below(other.len());
                input.truncate(at);
                input.extend_from_slice(&other[from..]);
            }
            _ => {
                let piece = input[at..(at + 1 + self.below(32)).min(input.len())].to_vec();
                input.splice(at..at, piece);
            }
        }
    }
}
