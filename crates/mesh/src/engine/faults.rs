//! Planted bugs, for a simulator to prove that it finds them.
//!
//! They are there with the feature `planted-faults` alone, which nothing that is shipped asks for. Without it there is
//! nothing to plant, and the answer to every question is no.

/// Which bugs are planted.
#[doc(hidden)]
#[cfg(feature = "planted-faults")]
#[derive(Clone, Copy, Debug, Default)]
pub struct Faults {
    pub skip_epoch_check: bool,
    pub count_messages: bool,
    pub drop_one_death_notice: bool,
    pub release_one_early: bool,
    pub leave_undecided: bool,
}

#[cfg(feature = "planted-faults")]
impl Faults {
    pub(super) fn none() -> Self {
        Self::default()
    }

    pub(super) fn skips_epoch_check(self) -> bool {
        self.skip_epoch_check
    }

    pub(super) fn counts_messages(self) -> bool {
        self.count_messages
    }

    /// True once.
    pub(super) fn drops_death_notice(&mut self) -> bool {
        std::mem::take(&mut self.drop_one_death_notice)
    }

    pub(super) fn releases_one_early(self) -> bool {
        self.release_one_early
    }

    pub(super) fn leaves_undecided(self) -> bool {
        self.leave_undecided
    }
}

/// None.
#[cfg(not(feature = "planted-faults"))]
#[derive(Clone, Copy, Debug)]
pub(super) struct Faults;

#[cfg(not(feature = "planted-faults"))]
impl Faults {
    pub(super) const fn none() -> Self {
        Self
    }

    pub(super) const fn skips_epoch_check(self) -> bool {
        false
    }

    pub(super) const fn drops_death_notice(self) -> bool {
        false
    }

    pub(super) const fn releases_one_early(self) -> bool {
        false
    }

    pub(super) const fn leaves_undecided(self) -> bool {
        false
    }
}
