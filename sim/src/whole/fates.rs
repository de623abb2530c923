//! What befalls the processes of a job whose first one starts the others.

use crate::lockstep::Trouble;
use sheave_base::clock::SeededEntropy;
use std::time::Duration;

/// What has happened is known everywhere by then, if nothing befalls the word of it.
pub(super) const PROMPT: Duration = Duration::from_secs(1);

/// As long a silence may stay unnoticed.
pub(super) const SILENCE: Duration = Duration::from_millis(2600);

#[derive(Clone, Copy, Default)]
struct Fate {
    is_troubled: bool,
    has_ended: bool,
}

/// The processes of a job by their numbers. The first one is never troubled by what is drawn here.
#[derive(Default)]
pub(super) struct Fates {
    processes: Vec<Fate>,
    stirred: Duration,
}

impl Fates {
    /// The number of a process that is started.
    pub(super) fn starts(&mut self) -> usize {
        self.processes.push(Fate::default());
        self.processes.len() - 1
    }

    pub(super) fn ends(&mut self, process: usize) {
        if let Some(fate) = self.processes.get_mut(process) {
            fate.has_ended = true;
        }
    }

    /// Until then others may wait because of what has happened.
    pub(super) fn stirs(&mut self, until: Duration) {
        self.stirred = self.stirred.max(until);
    }

    /// Until when others may wait because of what has happened.
    pub(super) fn stirred(&self) -> Duration {
        self.stirred
    }

    pub(super) fn is_troubled(&self, process: usize) -> bool {
        self.processes.get(process).is_some_and(|fate| fate.is_troubled)
    }

    /// How many have met with trouble.
    pub(super) fn troubled(&self) -> usize {
        self.processes.iter().filter(|fate| fate.is_troubled).count()
    }

    /// Whether all but the first have ended, or have met with trouble.
    pub(super) fn have_ended(&self) -> bool {
        self.processes[1..].iter().all(|fate| fate.has_ended || fate.is_troubled)
    }

    /// Draws what befalls one of those that run and whom nothing has befallen, if there is one: it is cut off from the
    /// first, stops for a while, or is killed.
    pub(super) fn befalls(&mut self, dice: &mut SeededEntropy, now: Duration) -> Option<Trouble> {
        let lives = |process: &usize| !self.processes[*process].is_troubled && !self.processes[*process].has_ended;
        let living: Vec<usize> = (1..self.processes.len()).filter(lives).collect();
        if living.is_empty() {
            return None;
        }
        let process = living[dice.below(living.len() as u64) as usize];
        let (trouble, span) = match dice.below(4) {
            0 => (Trouble::Cut(0, process), SILENCE),
            1 => {
                let spans = [dice.below(300), 500 + dice.below(2500)];
                let span = Duration::from_millis(spans[dice.below(2) as usize]);
                (Trouble::Stop(process, span), span + SILENCE)
            }
            _ => (Trouble::Kill(process), PROMPT),
        };
        self.processes[process].is_troubled = true;
        self.stirs(now + span);
        Some(trouble)
    }
}
