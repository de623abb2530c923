//! Waits on a processor that is made of arithmetic.

use super::*;
use std::cell::Cell;

const MOST: WaitPolicy = WaitPolicy { spin: Duration::from_micros(5), yielding: Duration::from_micros(150) };

/// What a poll takes.
const POLL: Duration = Duration::from_nanos(100);

/// Who else wants the core.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Others {
    Nobody,
    /// The rank that is waited for: it goes on only when it is given the core.
    Peer,
    /// One who computes for a whole time slice.
    Stranger,
}

struct Played {
    now: Cell<Instant>,
    others: Cell<Others>,
    given: Cell<u32>,
    lost: Cell<Duration>,
}

impl Played {
    fn pass(&self, span: Duration) {
        self.now.set(self.now.get() + span);
    }
}

impl Processor for &Played {
    fn now(&self) -> Instant {
        self.now.get()
    }

    fn give_way(&self) {
        self.given.set(self.given.get() + 1);
        let turn = match self.others.get() {
            Others::Nobody => Duration::from_nanos(400),
            Others::Peer => Duration::from_micros(2),
            Others::Stranger => Duration::from_millis(4),
        };
        if self.others.get() == Others::Stranger {
            self.lost.set(self.lost.get() + turn);
        }
        self.pass(turn);
    }

    fn relax(&self) {}
}

fn played() -> Played {
    Played {
        now: Cell::new(Instant::now()),
        others: Cell::new(Others::Nobody),
        given: Cell::new(0),
        lost: Cell::new(Duration::ZERO),
    }
}

/// How a wait has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Ended {
    /// While it kept its core.
    Kept,
    /// After it had given its core away.
    GaveWay,
    /// After a sleep.
    Slept,
}

/// What a sleep takes until the message that ended it is seen, beyond the message's own time.
const WAKE: Duration = Duration::from_micros(20);

/// Plays one wait for something that comes after `length`, and returns how it ended and how long it took. Where a peer
/// wants the core, it comes with the first turn that the peer is given.
fn wait(patience: &Patience<&Played>, length: Duration) -> (Ended, Duration) {
    let played = patience.processor;
    let begun = played.now.get();
    let (given, is_peer) = (played.given.get(), played.others.get() == Others::Peer);
    let has_come = || {
        if is_peer { played.given.get() > given } else { played.now.get() >= begun + length }
    };
    let mut course = patience.begin();
    loop {
        played.pass(POLL);
        if has_come() {
            let ended = if course.turns > 0 { Ended::GaveWay } else { Ended::Kept };
            course.is_over();
            return (ended, played.now.get() - begun);
        }
        if !course.goes_on(false) {
            break;
        }
    }
    // A peer is given the core by the sleep.
    let left =
        if is_peer { Duration::from_micros(2) } else { (begun + length).saturating_duration_since(played.now.get()) };
    played.pass(left + WAKE);
    (Ended::Slept, played.now.get() - begun)
}

/// The times of so many waits of this length, from the shortest.
fn waits(patience: &Patience<&Played>, count: usize, length: Duration) -> Vec<Duration> {
    let mut times: Vec<Duration> = (0..count).map(|_| wait(patience, length).1).collect();
    times.sort_unstable();
    times
}

#[test]
fn f36_a_stranger_costs_few_time_slices_and_is_forgotten_when_it_has_gone() {
    let played = played();
    let patience = Patience::on(&played, MOST);
    played.others.set(Others::Stranger);
    let times = waits(&patience, 10_000, Duration::from_micros(30));
    // Giving way at every wait would lose 40 s.
    assert!(played.lost.get() <= Duration::from_millis(60), "{:?} were lost in 10,000 waits", played.lost.get());
    let p99 = times[times.len() * 99 / 100];
    assert!(p99 <= Duration::from_micros(80), "{p99:?}");
    played.others.set(Others::Nobody);
    // What was learnt is forgotten after the longest penalty.
    played.pass(PENALTY_MAX);
    waits(&patience, 100, Duration::from_micros(30));
    assert_eq!(wait(&patience, Duration::from_micros(30)).0, Ended::GaveWay);
    assert!(wait(&patience, Duration::from_micros(30)).1 < Duration::from_micros(32));
}

#[test]
fn f36_one_pause_is_paid_for_with_twice_its_length_and_the_next_with_more() {
    let played = played();
    let patience = Patience::on(&played, MOST);
    let goes = || wait(&patience, Duration::from_micros(30)).0;
    let pause = || {
        played.others.set(Others::Stranger);
        wait(&patience, Duration::from_micros(30));
        played.others.set(Others::Nobody);
        assert_eq!(goes(), Ended::Slept);
    };
    pause();
    played.pass(Duration::from_millis(8));
    assert_eq!(goes(), Ended::GaveWay);
    pause();
    played.pass(Duration::from_millis(8));
    assert_eq!(goes(), Ended::Slept);
    played.pass(Duration::from_millis(8));
    waits(&patience, 520, Duration::from_micros(30));
    // Forgotten by now.
    pause();
    played.pass(Duration::from_millis(8));
    assert_eq!(goes(), Ended::GaveWay);
}

#[test]
fn with_more_ranks_than_cores_a_long_turn_is_borne() {
    let played = played();
    let patience = Patience::on(&played, WaitPolicy::for_ranks(4, 2));
    played.others.set(Others::Stranger);
    waits(&patience, 100, Duration::from_micros(30));
    assert!(!patience.is_beside_strangers());
    assert_eq!(wait(&patience, Duration::from_micros(30)).0, Ended::GaveWay);
}

#[test]
fn f36_a_core_that_is_taken_away_tells_of_strangers_too() {
    let played = played();
    let patience = Patience::on(&played, WaitPolicy { spin: Duration::from_millis(1), ..MOST });
    let mut course = patience.begin();
    for _ in 0..40 {
        assert!(course.goes_on(false));
        played.pass(POLL);
    }
    played.pass(Duration::from_millis(3));
    while course.goes_on(false) {
        played.pass(POLL);
    }
    assert!(patience.is_beside_strangers());
    assert_eq!(played.given.get(), 0, "who takes the core is not given it");
    assert!(!patience.give_way());
}

#[test]
fn f37_a_core_that_the_peer_needs_is_kept_shorter_and_shorter_whatever_is_set() {
    for spin_us in [5, 20, 100, 1000] {
        let played = played();
        let patience = Patience::on(&played, WaitPolicy { spin: Duration::from_micros(spin_us), ..MOST });
        played.others.set(Others::Peer);
        let times: Vec<Duration> = (0..40).map(|_| wait(&patience, Duration::ZERO).1).collect();
        assert!(times[0] >= Duration::from_micros(spin_us), "{:?}", times[0]);
        let last = times[39];
        assert!(last <= Duration::from_micros(6), "{spin_us}: {last:?}");
        // On cores of their own it is kept again.
        played.others.set(Others::Nobody);
        waits(&patience, 40, Duration::from_nanos(1500));
        assert_eq!(wait(&patience, Duration::from_nanos(spin_us.min(4) * 1000)).0, Ended::Kept, "{spin_us}");
    }
}

#[test]
fn f37_long_waits_do_not_make_short_ones_give_their_cores_away() {
    let played = played();
    let patience = Patience::on(&played, MOST);
    waits(&patience, 100, Duration::from_micros(50));
    assert_eq!(wait(&patience, Duration::from_micros(3)).0, Ended::Kept);
    // Nor does a peer on the same core, once it has gone.
    played.others.set(Others::Peer);
    waits(&patience, 40, Duration::ZERO);
    played.others.set(Others::Nobody);
    waits(&patience, 40, Duration::from_micros(3));
    assert_eq!(wait(&patience, Duration::from_micros(3)).0, Ended::Kept);
}

#[test]
fn f37_a_core_is_given_away_at_once_where_that_was_learnt_and_kept_again_whatever_comes_how_soon() {
    for nanos in (100..3000).step_by(100) {
        let played = played();
        let patience = Patience::on(&played, MOST);
        played.others.set(Others::Peer);
        let last = (0..40).map(|_| wait(&patience, Duration::ZERO).1).last().expect("there are some");
        assert!(last <= Duration::from_nanos(2600), "{last:?}, of which the peer had 2 µs");
        played.others.set(Others::Nobody);
        waits(&patience, 40, Duration::from_nanos(nanos));
        assert_eq!(wait(&patience, Duration::from_nanos(nanos)).0, Ended::Kept, "{nanos} ns");
    }
}

#[test]
fn f37_a_wait_gives_its_core_away_for_as_long_as_it_may_whatever_the_last_ones_were() {
    let played = played();
    let patience = Patience::on(&played, MOST);
    waits(&patience, 200, Duration::from_millis(2));
    let (ended, time) = wait(&patience, Duration::from_micros(140));
    assert_eq!(ended, Ended::GaveWay);
    assert!(time < Duration::from_micros(142), "{time:?}");
}

/// Whoever is waited for and is on this core has had its turn by then, or gets none while this wait polls.
#[test]
fn a_core_is_given_away_in_vain_after_some_turns_in_which_nothing_has_moved() {
    for most in [MOST, WaitPolicy::for_ranks(8, 2)] {
        let played = played();
        let patience = Patience::on(&played, most);
        let mut course = patience.begin();
        for moved in [true, false] {
            let begun = played.given.get();
            while !course.gives_way_in_vain() {
                assert!(course.goes_on(false), "it polls for longer");
                played.pass(POLL);
            }
            assert_eq!(played.given.get() - begun, TURNS_IN_VAIN);
            assert!(course.goes_on(moved));
            assert_eq!(course.gives_way_in_vain(), !moved);
        }
    }
}

#[test]
fn what_nothing_was_learnt_about_goes_by_the_policy() {
    let played = played();
    let patience = Patience::on(&played, MOST);
    assert_eq!(patience.most(), MOST);
    assert_eq!(wait(&patience, Duration::from_micros(3)).0, Ended::Kept);
    assert_eq!(wait(&patience, Duration::from_micros(100)).0, Ended::GaveWay);
    let (ended, time) = wait(&patience, Duration::from_micros(400));
    assert_eq!(ended, Ended::Slept);
    assert_eq!(time, Duration::from_micros(400) + WAKE);
    patience.limit(WaitPolicy::for_ranks(8, 2));
    assert!(!patience.may_keep());
    assert_eq!(wait(&patience, Duration::from_micros(3)).0, Ended::GaveWay);
    let never = Patience::on(&played, WaitPolicy { spin: Duration::ZERO, yielding: Duration::ZERO });
    let given = played.given.get();
    assert_eq!(wait(&never, Duration::from_micros(100)).0, Ended::Slept);
    assert_eq!(played.given.get(), given);
}
