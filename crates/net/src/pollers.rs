//! On which cores threads of one node poll.
//!
//! Threads that wait on one node poll the same links. Two of them on one core do nothing for each other, and keep the
//! core in turns from whoever they wait for, who may want it. So a wait that has given its core away in vain notes
//! where it is, and sleeps if another one is there: that one polls for both, and ends the sleeper's wait as its own.
//!
//! The notes are hints, and order nothing. Two that find each other at once both sleep, as each would alone.

use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

/// Waits that are noted at a time: as many as a core of a small host has threads that wait. Others just poll.
const NOTED_MAX: usize = 8;

/// Waits of one node that poll, by their cores, counted from one; zero is free.
#[derive(Default)]
pub(crate) struct Pollers([AtomicU32; NOTED_MAX]);

/// The note of one wait, until it is dropped.
pub(crate) struct Noted<'a>(Option<&'a AtomicU32>);

impl Pollers {
    /// A wait polls on this core. True if another one does, too.
    pub(crate) fn note<'a>(&'a self, noted: &mut Noted<'a>, core: u32) -> bool {
        let own = core.saturating_add(1);
        match noted.0 {
            Some(slot) => slot.store(own, Relaxed),
            None => {
                let free = self.0.iter().find(|slot| slot.compare_exchange(0, own, Relaxed, Relaxed).is_ok());
                noted.0 = free;
            }
        }
        let is_another = |slot: &&AtomicU32| noted.0.is_none_or(|noted| !std::ptr::eq(noted, *slot));
        self.0.iter().filter(is_another).any(|slot| slot.load(Relaxed) == own)
    }
}

impl Noted<'_> {
    pub(crate) fn nowhere() -> Self {
        Self(None)
    }
}

impl Drop for Noted<'_> {
    fn drop(&mut self) {
        if let Some(slot) = self.0 {
            slot.store(0, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_on_one_core_find_each_other() {
        let pollers = Pollers::default();
        let (mut one, mut other) = (Noted::nowhere(), Noted::nowhere());
        assert!(!pollers.note(&mut one, 0) && !pollers.note(&mut one, 0), "it is alone");
        assert!(!pollers.note(&mut other, 1), "that is another core");
        assert!(pollers.note(&mut other, 0) && pollers.note(&mut one, 0));
        drop(one);
        assert!(!pollers.note(&mut other, 0));
    }

    #[test]
    fn there_is_no_note_for_very_many() {
        let pollers = Pollers::default();
        let mut noted: Vec<Noted<'_>> = (0..NOTED_MAX).map(|_| Noted::nowhere()).collect();
        noted.iter_mut().zip(0..).for_each(|(noted, core)| assert!(!pollers.note(noted, core)));
        let mut late = Noted::nowhere();
        assert!(pollers.note(&mut late, 3) && !pollers.note(&mut late, u32::MAX));
        drop(late);
        assert!(!pollers.note(&mut noted[3], 3));
    }
}
