//! Whether what callers saw of an object may have been: whether each call can have had its effect at one moment between
//! its begin and its end (Herlihy and Wing).
//!
//! The search is that of Wing and Gong with Lowe's memory: it takes the calls that may come next one after the other,
//! and never looks again at a place where the same calls have led to the same state. A call that has not ended may have
//! its effect at any time after its begin, or never.

use std::collections::HashSet;
use std::hash::Hash;

/// What an object does when nobody else uses it.
pub trait Model {
    /// What it has.
    type State: Clone + Eq + Hash;
    /// A call, with its outcome if that is known.
    type Call;

    /// What it has at first.
    fn initial(&self) -> Self::State;

    /// What it has after a call; none if the call cannot end so from this state.
    fn step(&self, state: &Self::State, call: &Self::Call) -> Option<Self::State>;
}

/// A call with its times, of which each is one of its own.
#[derive(Clone, Debug)]
pub struct Operation<C> {
    pub call: C,
    pub begun: u64,
    /// None if it has not ended, as far as anybody knows.
    pub ended: Option<u64>,
}

/// Which calls have had their effect, by their places in the order of their begins.
#[derive(Clone, PartialEq, Eq, Hash)]
struct Done(Vec<u64>);

impl Done {
    fn has(&self, at: usize) -> bool {
        self.0[at / 64] >> (at % 64) & 1 == 1
    }

    fn with(&self, at: usize) -> Self {
        let mut with = self.clone();
        with.0[at / 64] |= 1 << (at % 64);
        with
    }
}

/// Whether there is an order of the calls in which each comes between its begin and its end, and the model does what
/// they have seen.
#[must_use]
pub fn is_linearizable<M: Model>(model: &M, history: &[Operation<M::Call>]) -> bool {
    let mut order: Vec<&Operation<M::Call>> = history.iter().collect();
    order.sort_by_key(|operation| operation.begun);
    let first = (Done(vec![0; order.len().div_ceil(64)]), model.initial());
    let mut seen = HashSet::from([first.clone()]);
    let mut places = vec![first];
    while let Some((done, state)) = places.pop() {
        let (next, is_over) = candidates(&order, &done);
        if is_over {
            return true;
        }
        // The one that has begun first is tried first.
        for at in next.into_iter().rev() {
            if let Some(state) = model.step(&state, &order[at].call) {
                let place = (done.with(at), state);
                if seen.insert(place.clone()) {
                    places.push(place);
                }
            }
        }
    }
    false
}

/// The calls that may come next, and whether all that have ended have come.
fn candidates<C>(order: &[&Operation<C>], done: &Done) -> (Vec<usize>, bool) {
    let (mut next, mut first_end) = (Vec::new(), u64::MAX);
    for (at, operation) in order.iter().enumerate().filter(|(at, _)| !done.has(*at)) {
        if operation.begun > first_end {
            break;
        }
        next.push(at);
        first_end = first_end.min(operation.ended.unwrap_or(u64::MAX));
    }
    (next, first_end == u64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sheave_base::clock::SeededEntropy;

    /// A register that is read, written, and written by comparing.
    struct Register;

    #[derive(Clone, Debug)]
    enum Call {
        Read(i64),
        Write(i64),
        /// From, to, and whether it was done, if that is known.
        Swap(i64, i64, Option<bool>),
    }

    impl Model for Register {
        type State = i64;
        type Call = Call;

        fn initial(&self) -> i64 {
            0
        }

        fn step(&self, state: &i64, call: &Call) -> Option<i64> {
            match *call {
                Call::Read(value) => (value == *state).then_some(value),
                Call::Write(value) => Some(value),
                Call::Swap(from, to, known) => {
                    let is_done = from == *state;
                    known.is_none_or(|known| known == is_done).then_some(if is_done { to } else { *state })
                }
            }
        }
    }

    fn at(call: Call, begun: u64, ended: impl Into<Option<u64>>) -> Operation<Call> {
        Operation { call, begun, ended: ended.into() }
    }

    fn holds(history: &[Operation<Call>]) -> bool {
        is_linearizable(&Register, history)
    }

    #[test]
    fn calls_beside_each_other_come_in_any_order() {
        use Call::{Read, Write};
        assert!(holds(&[]));
        assert!(holds(&[at(Write(1), 0, 9), at(Read(0), 1, 2), at(Read(1), 3, 4)]));
        assert!(holds(&[at(Write(1), 0, 5), at(Write(2), 1, 4), at(Read(1), 6, 7)]));
        assert!(!holds(&[at(Write(1), 0, 9), at(Read(1), 1, 2), at(Read(0), 3, 4)]), "what was read is there");
        assert!(!holds(&[at(Write(1), 0, 1), at(Read(0), 2, 3)]), "what was written is there");
        assert!(!holds(&[at(Write(1), 0, 1), at(Write(2), 2, 3), at(Read(1), 4, 5)]));
    }

    #[test]
    fn one_swap_of_two_is_done() {
        use Call::{Read, Swap};
        let swaps = |one, other| [at(Swap(0, 1, Some(one)), 0, 5), at(Swap(0, 2, Some(other)), 1, 6)];
        assert!(holds(&swaps(true, false)) && holds(&swaps(false, true)));
        assert!(!holds(&swaps(true, true)) && !holds(&swaps(false, false)));
        let [one, other] = swaps(true, false);
        assert!(!holds(&[one, other, at(Read(2), 7, 8)]));
    }

    #[test]
    fn a_call_that_has_not_ended_may_have_happened() {
        use Call::{Read, Swap, Write};
        for seen in [0, 1] {
            assert!(holds(&[at(Write(1), 0, None), at(Read(seen), 5, 6)]));
            assert!(holds(&[at(Swap(0, 1, None), 0, None), at(Read(seen), 5, 6)]));
        }
        assert!(holds(&[at(Write(1), 0, None), at(Read(0), 1, 2), at(Read(1), 3, 4)]), "late");
        assert!(!holds(&[at(Write(1), 0, None), at(Read(1), 1, 2), at(Read(0), 3, 4)]), "once");
        assert!(!holds(&[at(Read(1), 0, 1), at(Write(1), 2, None)]), "not before it begins");
    }

    /// Histories of a real register hold; with one outcome that cannot be they do not.
    #[test]
    fn good_histories_are_told_from_bad_ones() {
        for seed in 0..200 {
            let mut dice = SeededEntropy::new(seed);
            let (mut state, mut history, mut clock) = (0, Vec::new(), 0_u64);
            for number in 1..120_i64 {
                let call = match dice.below(3) {
                    0 => Call::Read(state),
                    1 => Call::Write(number),
                    _ => {
                        let from = if dice.below(2) == 0 { state } else { number - 1 };
                        Call::Swap(from, number, Some(from == state))
                    }
                };
                state = Register.step(&state, &call).expect("it is what the state says");
                // It takes effect now, begins a while before and ends a while later.
                clock += 100;
                let (before, behind) = (dice.below(400), dice.below(400));
                let (begun, effect) = (clock.saturating_sub(before), clock);
                history.push(Operation {
                    call,
                    begun: 1000 * begun + number as u64,
                    ended: Some(1000 * (effect + behind) + number as u64 + 500),
                });
            }
            assert!(holds(&history), "seed {seed}");
            let place = dice.below(history.len() as u64) as usize;
            history[place].call = Call::Read(-1);
            assert!(!holds(&history), "seed {seed}");
        }
    }
}
