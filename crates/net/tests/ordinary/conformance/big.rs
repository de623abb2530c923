//! One very large message.

use super::content::{at, check, message, only, place, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::soon;
use sheave_tensor::Mode;
use std::sync::{Mutex, PoisonError};

/// One test at a time: each needs three times the size of its message.
static ROOM: Mutex<()> = Mutex::new(());

pub(crate) fn one_message_of_a_gibibyte(pairs: &dyn Pairs) {
    let _room = ROOM.lock().unwrap_or_else(PoisonError::into_inner);
    let length_bytes = pairs.largest_bytes();
    let Pair { left, to_right, right, to_left } = &pairs.pair();
    let place = place(length_bytes);
    for seed in [1, 2] {
        let work = right.irecv(wanted(Some(*to_left), 1), at(&place)).unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let outgoing = message(1, private(length_bytes, seed), Mode::Copy);
                left.send(*to_right, outgoing, soon(), None).unwrap();
            });
            let got = work.join().unwrap();
            assert!(only(&got).buffer().is_same(place.buffer()));
        });
        check(&place, length_bytes, seed);
    }
}
