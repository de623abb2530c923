//! A smaller scenario that goes wrong too.

use super::scenario::Scenario;
use crate::lockstep::Trouble;

/// Leaves out what is not needed for `is_wrong`: troubles, processes, rounds, steps, one after the other, for as long
/// as anything can be left out.
#[must_use]
pub fn shrink(scenario: &Scenario, is_wrong: impl Fn(&Scenario) -> bool) -> Scenario {
    let mut smallest = scenario.clone();
    while let Some(smaller) = smaller_than(&smallest).into_iter().find(&is_wrong) {
        smallest = smaller;
    }
    smallest
}

/// Scenarios with a little less, those that leave out most first.
fn smaller_than(scenario: &Scenario) -> Vec<Scenario> {
    let mut smaller = Vec::new();
    let last = scenario.hosts.len() - 1;
    if last >= 2 {
        let mut less = scenario.clone();
        less.hosts.pop();
        if less.guests.pop().is_none() {
            less.guests.clear();
        }
        less.hits.retain(|hit| !of(&hit.trouble).contains(&last));
        less.quits = less.quits.filter(|(process, ..)| *process != last);
        smaller.push(less);
    }
    for at in 0..scenario.hits.len() {
        let mut less = scenario.clone();
        less.hits.remove(at);
        smaller.push(less);
    }
    if scenario.quits.is_some() {
        smaller.push(Scenario { quits: None, ..scenario.clone() });
    }
    if scenario.rounds > 1 {
        smaller.push(Scenario { rounds: scenario.rounds - 1, ..scenario.clone() });
    }
    if scenario.steps > 1 {
        smaller.push(Scenario { steps: scenario.steps - 1, ..scenario.clone() });
    }
    smaller
}

/// The processes that a trouble meets.
fn of(trouble: &Trouble) -> Vec<usize> {
    match *trouble {
        Trouble::Kill(process) | Trouble::Crash(process) | Trouble::Stop(process, _) => vec![process],
        Trouble::Cut(one, other) | Trouble::Silence(one, other) => vec![one, other],
        Trouble::Heal => Vec::new(),
    }
}
