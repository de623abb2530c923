//! How often everything is done, on our side and on the peers'.

use std::time::Duration;

/// Rounds that do not count: they make links, touch memory, and say how long a round takes.
pub(super) const WARM_ROUNDS: usize = 3;
/// A median of fewer says nothing.
const ROUNDS_MIN: usize = 5;
/// More say nothing new.
const ROUNDS_MAX: usize = 400;
/// Short operations in a row, timed as one.
const LOOPED: usize = 100;

/// Rounds that fit into `budget`, each as long as `last`.
pub(super) fn rounds(budget: Duration, last: Duration) -> usize {
    let fitting = budget.as_nanos() / last.as_nanos().max(1);
    usize::try_from(fitting).unwrap_or(ROUNDS_MAX).clamp(ROUNDS_MIN, ROUNDS_MAX)
}

/// Operations of one round.
pub(super) fn looped(bytes: usize) -> usize {
    if bytes >= super::case::REWRITTEN_BYTES { 1 } else { LOOPED }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_fit_into_the_budget_within_bounds() {
        let budget = Duration::from_millis(100);
        assert_eq!(rounds(budget, Duration::from_millis(2)), 50);
        assert_eq!(rounds(budget, Duration::from_secs(3)), ROUNDS_MIN);
        assert_eq!(rounds(budget, Duration::ZERO), ROUNDS_MAX);
    }

    #[test]
    fn the_peers_do_everything_as_often() {
        let numbers = [
            ("WARM_ROUNDS = ", WARM_ROUNDS),
            ("ROUNDS_MIN = ", ROUNDS_MIN),
            ("ROUNDS_MAX = ", ROUNDS_MAX),
            ("LOOPED = ", LOOPED),
            ("REWRITTEN_BYTES = ", crate::bench::collective::case::REWRITTEN_BYTES),
        ];
        for program in [super::super::OPENMPI, super::super::gloo::PROGRAM] {
            for (name, number) in numbers {
                let said = program.split(name).nth(1).expect("the program has this number");
                let digits: String = said.chars().take_while(char::is_ascii_digit).collect();
                assert_eq!(digits, number.to_string(), "{name}");
            }
        }
    }
}
