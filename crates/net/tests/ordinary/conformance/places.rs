//! Receiving in place.

use super::content::{anywhere, at, check, message, only, place, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::{soon, until};
use sheave_base::ErrorKind;
use sheave_tensor::{Dtype, Mode, Tensor};

const LENGTHS: [usize; 5] = [0, 100, 20_000, 200_000, 3_000_000];

pub(crate) fn posted_before_and_after_the_arrival(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for (seed, length_bytes) in LENGTHS.into_iter().enumerate() {
        let seed = seed as u64;
        for mode in [Mode::Copy, Mode::Move] {
            let before = place(length_bytes);
            let work = right.irecv(wanted(Some(to_left), 1), at(&before)).unwrap();
            left.send(to_right, message(1, private(length_bytes, seed), mode), soon(), None).unwrap();
            let got = work.join().unwrap();
            assert!(only(&got).buffer().is_same(before.buffer()), "{length_bytes} bytes went elsewhere");
            check(&before, length_bytes, seed);

            let after = place(length_bytes);
            left.send(to_right, message(1, private(length_bytes, !seed), mode), soon(), None).unwrap();
            until("the message has arrived", || right.unexpected() == (1, length_bytes as u64));
            let got = right.recv(wanted(None, 1), at(&after), soon(), None).unwrap();
            assert!(only(&got).buffer().is_same(after.buffer()));
            check(&after, length_bytes, !seed);
        }
    }
}

pub(crate) fn what_does_not_fit_is_refused_and_the_link_goes_on(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for length_bytes in [8, 200_000, 3_000_000] {
        let unfit = [
            vec![place(length_bytes + 1)],
            vec![place(length_bytes - 1)],
            vec![Tensor::private(Dtype::I8, [length_bytes as u64]).unwrap()],
            vec![place(length_bytes), place(length_bytes)],
        ];
        for places in unfit {
            for posted_before in [true, false] {
                let outgoing = message(1, private(length_bytes, 3), Mode::Copy);
                let want = wanted(Some(to_left), 1);
                let error = if posted_before {
                    let work = right.irecv(want, places.iter().cloned().collect()).unwrap();
                    left.send(to_right, outgoing, soon(), None).unwrap();
                    work.join()
                } else {
                    left.send(to_right, outgoing, soon(), None).unwrap();
                    until("the message has arrived", || right.unexpected().0 == 1);
                    right.recv(want, places.iter().cloned().collect(), soon(), None)
                };
                assert_eq!(error.expect_err("it does not fit").kind(), ErrorKind::Mismatch);
                assert!(places.iter().all(|place| place.write_lease("test").is_ok()), "the places are free again");
                left.send(to_right, message(1, private(50, 6), Mode::Copy), soon(), None).unwrap();
                let got = right.recv(want, anywhere(), soon(), None).unwrap();
                check(only(&got), 50, 6);
            }
        }
    }
    assert_eq!(right.unexpected(), (0, 0));
}

pub(crate) fn a_place_has_one_writer(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let place = place(100_000);
    let work = right.irecv(wanted(Some(to_left), 1), at(&place)).unwrap();
    let second = right.irecv(wanted(Some(to_left), 2), at(&place)).expect_err("the first receive may write it");
    assert_eq!(second.kind(), ErrorKind::BufferInUse);
    assert_eq!(place.bytes().expect_err("it is being written").kind(), ErrorKind::BufferInUse);
    let sent = right.send(to_left, message(1, place.clone(), Mode::Copy), soon(), None);
    assert_eq!(sent.expect_err("it is being written").kind(), ErrorKind::BufferInUse);
    left.send(to_right, message(1, private(100_000, 8), Mode::Copy), soon(), None).unwrap();
    drop(work.join().unwrap());
    check(&place, 100_000, 8);
    let again = right.irecv(wanted(Some(to_left), 2), at(&place)).unwrap();
    left.send(to_right, message(2, private(100_000, 9), Mode::Copy), soon(), None).unwrap();
    drop(again.join().unwrap());
    check(&place, 100_000, 9);
}
