//! Actions in the order of their times: a binary heap whose entries know their places, so that one is taken out of the
//! middle as cheaply as off the top. Of those with the same time the one that was added first comes first.

use sheave_base::clock::Time;

/// A binary heap of actions, each under a [`Key`].
pub(super) struct Timetable<A> {
    /// The earliest is the first, and nobody is earlier than who stands at half its place.
    heap: Vec<Due>,
    slots: Vec<Slot<A>>,
    free: Vec<u32>,
    /// Actions that were ever added.
    numbers: u64,
    /// Comparisons that were ever made.
    #[cfg(test)]
    steps: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Due {
    at: Time,
    number: u64,
    slot: u32,
}

struct Slot<A> {
    /// The action that lies here, and its place in the heap.
    filled: Option<(u64, usize, A)>,
}

/// The name of an action that was added. It means nothing once that was taken out, though its slot is used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Key {
    number: u64,
    slot: u32,
}

impl<A> Default for Timetable<A> {
    fn default() -> Self {
        Self {
            heap: Vec::new(),
            slots: Vec::new(),
            free: Vec::new(),
            numbers: 0,
            #[cfg(test)]
            steps: 0,
        }
    }
}

impl<A> Timetable<A> {
    pub(super) fn len(&self) -> usize {
        self.heap.len()
    }

    /// Returns the earliest time of an action.
    pub(super) fn next(&self) -> Option<Time> {
        self.heap.first().map(|due| due.at)
    }

    pub(super) fn add(&mut self, at: Time, action: A) -> Key {
        let number = self.numbers;
        self.numbers += 1;
        let slot = self.free.pop().unwrap_or_else(|| {
            self.slots.push(Slot { filled: None });
            self.slots.len() as u32 - 1
        });
        let place = self.heap.len();
        self.slots[slot as usize].filled = Some((number, place, action));
        self.heap.push(Due { at, number, slot });
        self.rise(place);
        Key { number, slot }
    }

    /// Takes an action out, unless that has happened.
    pub(super) fn remove(&mut self, key: Key) -> Option<A> {
        let slot = self.slots.get_mut(key.slot as usize)?;
        let (_, place, action) = slot.filled.take_if(|(number, ..)| *number == key.number)?;
        self.free.push(key.slot);
        self.heap.swap_remove(place);
        if place < self.heap.len() {
            self.note_place(place);
            self.sink(place);
            self.rise(place);
        }
        Some(action)
    }

    /// Takes the earliest action out, if its time has come.
    pub(super) fn take_due(&mut self, now: Time) -> Option<A> {
        let Due { number, slot, .. } = *self.heap.first().filter(|due| due.at <= now)?;
        self.remove(Key { number, slot })
    }

    /// Takes all actions out, in no order.
    pub(super) fn take_all(&mut self) -> Vec<A> {
        self.heap.clear();
        self.free.clear();
        self.slots.drain(..).filter_map(|slot| slot.filled).map(|(_, _, action)| action).collect()
    }

    fn is_earlier(&mut self, one: usize, other: usize) -> bool {
        #[cfg(test)]
        {
            self.steps += 1;
        }
        self.heap[one] < self.heap[other]
    }

    fn rise(&mut self, mut place: usize) {
        while place > 0 {
            let parent = (place - 1) / 2;
            if !self.is_earlier(place, parent) {
                return;
            }
            self.swap(place, parent);
            place = parent;
        }
    }

    fn sink(&mut self, mut place: usize) {
        loop {
            let mut child = 2 * place + 1;
            if child >= self.heap.len() {
                return;
            }
            if child + 1 < self.heap.len() && self.is_earlier(child + 1, child) {
                child += 1;
            }
            if !self.is_earlier(child, place) {
                return;
            }
            self.swap(place, child);
            place = child;
        }
    }

    fn swap(&mut self, one: usize, other: usize) {
        self.heap.swap(one, other);
        self.note_place(one);
        self.note_place(other);
    }

    fn note_place(&mut self, place: usize) {
        if let Some((_, known, _)) = &mut self.slots[self.heap[place].slot as usize].filled {
            *known = place;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    /// What a test does with a table.
    #[derive(Clone, Debug)]
    enum Act {
        Add(u64),
        /// The so-manieth of all keys that were ever given.
        Remove(usize),
        Take(u64),
        Clear,
    }

    fn acts() -> impl Strategy<Value = Vec<Act>> {
        let act = prop_oneof![
            8 => (0_u64..50).prop_map(Act::Add),
            4 => any::<usize>().prop_map(Act::Remove),
            4 => (0_u64..50).prop_map(Act::Take),
            1 => Just(Act::Clear),
        ];
        proptest::collection::vec(act, 0..200)
    }

    proptest! {
        /// The model is a sorted map by time and number.
        #[test]
        fn a_timetable_is_a_sorted_map(acts in acts()) {
            let (mut table, mut model) = (Timetable::default(), BTreeMap::new());
            let mut keys = Vec::new();
            for act in acts {
                match act {
                    Act::Add(at) => {
                        let number = keys.len() as u64;
                        keys.push((table.add(Time(at), number), at));
                        model.insert((at, number), number);
                    }
                    Act::Remove(which) if !keys.is_empty() => {
                        let number = which % keys.len();
                        let (key, at) = keys[number];
                        prop_assert_eq!(table.remove(key), model.remove(&(at, number as u64)));
                    }
                    Act::Remove(_) => {}
                    Act::Take(now) => {
                        let due = model.first_key_value().map(|(key, _)| *key).filter(|(at, _)| *at <= now);
                        prop_assert_eq!(table.take_due(Time(now)), due.and_then(|key| model.remove(&key)));
                    }
                    Act::Clear => {
                        let mut all = table.take_all();
                        all.sort_unstable();
                        let mut expected: Vec<u64> = std::mem::take(&mut model).into_values().collect();
                        expected.sort_unstable();
                        prop_assert_eq!(all, expected);
                    }
                }
                prop_assert_eq!(table.len(), model.len());
                prop_assert_eq!(table.next(), model.first_key_value().map(|((at, _), _)| Time(*at)));
            }
            while let Some(taken) = table.take_due(Time(u64::MAX)) {
                prop_assert_eq!(Some(taken), model.pop_first().map(|(_, number)| number));
            }
            prop_assert!(model.is_empty());
        }
    }

    /// Counted, not timed: what an action costs grows with the logarithm of how many there are.
    #[test]
    fn f48_one_of_65536_costs_a_few_steps() {
        const MANY: u64 = 1 << 16;
        let mut table = Timetable::default();
        // Staggered deadlines, as calls have that are made one after the other.
        let mut keys: Vec<Key> = (0..MANY).map(|at| table.add(Time(at), at)).collect();
        assert!(table.steps <= MANY, "each is later than all before it: {} steps", table.steps);
        table.steps = 0;
        // An order that has nothing to do with the times.
        for round in 0..MANY as usize {
            let at = round * 40_503 % keys.len();
            assert!(table.remove(keys.swap_remove(at)).is_some());
            let key = table.add(Time(MANY + (round as u64).wrapping_mul(7919) % MANY), 0);
            assert!(table.remove(key).is_some());
        }
        // Sixteen levels, two comparisons each on the way down and one on the way up, for three changes.
        assert!(table.steps <= MANY * 3 * 48, "{} steps for {MANY} rounds", table.steps);
        assert_eq!((table.len(), table.slots.len()), (0, MANY as usize), "slots are used again");
    }

    #[test]
    fn a_key_means_nothing_once_its_slot_is_used_again() {
        let mut table = Timetable::default();
        let first = table.add(Time(1), 'a');
        assert_eq!(table.remove(first), Some('a'));
        let second = table.add(Time(1), 'b');
        assert_eq!((first.slot, table.remove(first)), (second.slot, None));
        assert_eq!(table.take_all(), ['b']);
        let third = table.add(Time(1), 'c');
        assert_eq!((table.remove(second), table.remove(third)), (None, Some('c')));
    }
}
