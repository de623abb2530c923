//! How many tests passed, failed and were skipped, and how each runner says so.

use std::fmt;
use std::ops::AddAssign;

/// Counts of tests; shown as `N passed, N failed, N skipped`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tally {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
    pub(crate) skipped: u64,
}

impl Tally {
    pub(crate) fn is_empty(self) -> bool {
        self == Tally::default()
    }

    /// Reads a list of counts such as `3 passed (1 slow), 1 failed, 2 skipped`; `None` when it holds a word that no
    /// runner is known to use, so that nothing is left out of the sum unseen.
    fn from_counts(counts: &str) -> Option<Tally> {
        let mut tally = Tally::default();
        for count in without_brackets(counts).split(',') {
            let (number, word) = count.trim().split_once(' ')?;
            let number: u64 = number.parse().ok()?;
            match word.trim() {
                "passed" | "xpassed" => tally.passed += number,
                "failed" | "error" | "errors" | "timed out" | "exec failed" => tally.failed += number,
                "skipped" | "ignored" | "xfailed" | "deselected" => tally.skipped += number,
                "warning" | "warnings" => {}
                _ => return None,
            }
        }
        Some(tally)
    }

    /// Reads cargo-nextest's line `Summary [ 0.1s] 3 tests run: 2 passed, 1 timed out, 4 skipped`.
    pub(crate) fn from_nextest(line: &str) -> Option<Tally> {
        let (_, counts) = line.trim().strip_prefix("Summary")?.split_once(" run: ")?;
        Tally::from_counts(counts)
    }

    /// Reads pytest's last line, `2 passed, 1 failed, 3 skipped in 0.12s`, with or without its rule of `=`.
    pub(crate) fn from_pytest(line: &str) -> Option<Tally> {
        let (counts, _) = line.trim_matches(['=', ' ']).rsplit_once(" in ")?;
        Tally::from_counts(counts)
    }

    /// Counts a line of Rust's own test runner that reports the end of one test; false for every other line.
    pub(crate) fn count_libtest(&mut self, line: &str) -> bool {
        let Some((name, result)) = line.rsplit_once(" ... ") else { return false };
        if !name.starts_with("test ") {
            return false;
        }
        match result.split([',', ' ']).next() {
            Some("ok") => self.passed += 1,
            Some("FAILED") => self.failed += 1,
            Some("ignored") => self.skipped += 1,
            _ => return false,
        }
        true
    }
}

impl AddAssign for Tally {
    fn add_assign(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
        self.skipped += other.skipped;
    }
}

impl fmt::Display for Tally {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{} passed, {} failed, {} skipped", self.passed, self.failed, self.skipped)
    }
}

fn without_brackets(text: &str) -> String {
    let mut depth = 0_u32;
    let outside = |letter: &char| {
        match letter {
            '(' => depth += 1,
            ')' => depth = depth.saturating_sub(1),
            _ => return depth == 0,
        }
        false
    };
    text.chars().filter(outside).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tally(passed: u64, failed: u64, skipped: u64) -> Option<Tally> {
        Some(Tally { passed, failed, skipped })
    }

    #[test]
    fn nextest_summaries() {
        let read = Tally::from_nextest;
        assert_eq!(read("     Summary [   0.012s] 3 tests run: 3 passed, 0 skipped"), tally(3, 0, 0));
        let mixed = "Summary [ 61.0s] 9/12 tests run: 6 passed (1 slow, 2 leaky), 1 failed, 2 timed out, 4 skipped";
        assert_eq!(read(mixed), tally(6, 3, 4));
        assert_eq!(read("Summary [ 1.0s] 1 test run: 1 failed, 1 exec failed, 0 skipped"), tally(0, 2, 0));
        assert_eq!(read("Summary [ 1.0s] 1 test run: 1 dreamt"), None);
        assert_eq!(read("PASS [ 0.1s] summary run: 1 passed"), None);
    }

    #[test]
    fn pytest_summaries() {
        let read = Tally::from_pytest;
        assert_eq!(read("5 passed in 0.03s"), tally(5, 0, 0));
        assert_eq!(read("=== 1 failed, 2 passed, 1 error, 3 warnings in 61.2s (0:01:01) ==="), tally(2, 2, 0));
        assert_eq!(read("2 passed, 1 xfailed, 3 skipped in 0.1s"), tally(2, 0, 4));
        assert_eq!(read("no tests ran in 0.01s"), None);
    }

    #[test]
    fn libtest_lines() {
        let mut tally = Tally::default();
        assert!(tally.count_libtest("test src/lib.rs - Thing (line 3) ... ok"));
        assert!(tally.count_libtest("test src/lib.rs - Thing (line 9) - compile ... FAILED"));
        assert!(tally.count_libtest("test slow ... ignored, needs two machines"));
        assert!(!tally.count_libtest("test slow has been running for over 60 seconds"));
        assert!(!tally.count_libtest("test result: ok. 1 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out"));
        assert_eq!(Some(tally), self::tally(1, 1, 1));
    }
}
