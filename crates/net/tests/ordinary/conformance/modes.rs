//! Copy, move, share.

use super::content::{anywhere, check, fill, in_arena, message, only, private, wanted};
use super::pairs::{Pair, Pairs};
use super::watch::soon;
use sheave_base::ErrorKind;
use sheave_net::Medium;
use sheave_tensor::{Mode, Tensor, copy_bytes};

const LENGTHS: [usize; 5] = [8, 1_000, 100_000, 300_000, 3_000_000];

pub(crate) fn copy_is_captured_before_send_returns(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    let mut works = Vec::new();
    for (seed, length_bytes) in LENGTHS.into_iter().enumerate() {
        let seed = seed as u64;
        for mut source in [private(length_bytes, seed), in_arena(left.arena(), length_bytes, seed)] {
            left.send(to_right, message(seed, source.clone(), Mode::Copy), soon(), None).unwrap();
            fill(source.bytes_mut().expect("send is done with it"), !0);
            fill(source.bytes_mut().unwrap(), seed);
            works.push(left.isend(to_right, message(seed, source.clone(), Mode::Copy)).unwrap());
            fill(source.bytes_mut().expect("isend has captured it"), !0);
        }
    }
    for work in works {
        work.join().unwrap();
    }
    for (seed, length_bytes) in LENGTHS.into_iter().enumerate() {
        for _ in 0..4 {
            let got = right.recv(wanted(Some(to_left), seed as u64), anywhere(), soon(), None).unwrap();
            check(only(&got), length_bytes, seed as u64);
        }
    }
}

pub(crate) fn a_copy_whose_sender_gives_up_is_captured(pairs: &dyn Pairs) {
    const LENGTH_BYTES: usize = 32 << 20;
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for seed in 0..4 {
        let mut source = private(LENGTH_BYTES, seed);
        let now = Some(std::time::Instant::now());
        if let Err(late) = left.send(to_right, message(seed, source.clone(), Mode::Copy), now, None) {
            assert_eq!(late.kind(), ErrorKind::DeadlineExceeded, "{late}");
        }
        fill(source.bytes_mut().expect("nobody holds it any more"), !0);
        let got = right.recv(wanted(Some(to_left), seed), anywhere(), soon(), None).unwrap();
        check(only(&got), LENGTH_BYTES, seed);
    }
}

pub(crate) fn move_needs_the_only_handle_and_gives_it_away(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for length_bytes in LENGTHS {
        for tensor in [private(length_bytes, 1), in_arena(left.arena(), length_bytes, 1)] {
            let other = tensor.clone();
            let refused = left.send(to_right, message(1, tensor, Mode::Move), soon(), None);
            assert_eq!(refused.expect_err("there is another handle").kind(), ErrorKind::BufferInUse);
            left.send(to_right, message(1, other, Mode::Move), soon(), None).unwrap();
            let got = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap();
            check(only(&got), length_bytes, 1);
            let mut tensor = got.into_tensor().unwrap();
            fill(tensor.bytes_mut().expect("it is the receiver's alone"), 2);
            right.send(to_left, message(1, tensor, Mode::Move), soon(), None).unwrap();
            let back = left.recv(wanted(Some(to_right), 1), anywhere(), soon(), None).unwrap();
            check(only(&back), length_bytes, 2);
        }
    }
}

pub(crate) fn move_copies_nothing(pairs: &dyn Pairs) {
    if pairs.medium() == Medium::Tcp {
        return;
    }
    let Pair { left, to_right, right, to_left } = pairs.pair();
    const LENGTH_BYTES: usize = 4 << 20;
    let mut tensor = in_arena(left.arena(), LENGTH_BYTES, 0);
    let (begin_left, begin_right) = (left.counts(), right.counts());
    let home = tensor.ptr();
    for round in 0..100 {
        left.send(to_right, message(1, tensor, Mode::Move), soon(), None).unwrap();
        let mut there = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap().into_tensor().unwrap();
        check(&there, LENGTH_BYTES, round);
        fill(there.bytes_mut().unwrap(), round + 1);
        right.send(to_left, message(1, there, Mode::Move), soon(), None).unwrap();
        tensor = left.recv(wanted(Some(to_right), 1), anywhere(), soon(), None).unwrap().into_tensor().unwrap();
        assert_eq!(tensor.ptr(), home, "it came home to another place");
    }
    check(&tensor, LENGTH_BYTES, 100);
    for (node, begin) in [(&left, begin_left), (&right, begin_right)] {
        let done = node.counts() - begin;
        assert_eq!(done.bytes_copied, 0);
        assert_eq!(done.bytes_lent, 100 * LENGTH_BYTES as u64);
    }
}

fn first_byte(tensor: &Tensor) -> u8 {
    // SAFETY: the tensor is alive and not empty; a torn or stale value of one byte is impossible.
    unsafe { tensor.ptr().read_volatile() }
}

fn write_byte(tensor: &Tensor, byte: u8) {
    // SAFETY: the tensor is alive, not empty, and shared, so that nobody has a safe slice of it.
    unsafe { copy_bytes(tensor.ptr(), &raw const byte, 1) };
}

pub(crate) fn share_aliases_or_is_unsupported(pairs: &dyn Pairs) {
    let Pair { left, to_right, right, to_left } = pairs.pair();
    for length_bytes in [64, 100_000, 3_000_000] {
        let here = in_arena(left.arena(), length_bytes, 1);
        let sent = left.send(to_right, message(1, here.clone(), Mode::Share), soon(), None);
        if pairs.medium() == Medium::Tcp {
            assert_eq!(sent.expect_err("sockets share no memory").kind(), ErrorKind::Unsupported);
            continue;
        }
        sent.unwrap();
        let there = right.recv(wanted(Some(to_left), 1), anywhere(), soon(), None).unwrap().into_tensor().unwrap();
        assert_eq!(there.len_bytes(), length_bytes);
        for byte in [17, 34] {
            write_byte(&there, byte);
            assert_eq!(first_byte(&here), byte, "the receiver's write is seen");
            write_byte(&here, byte + 1);
            assert_eq!(first_byte(&there), byte + 1, "the sender's write is seen");
        }
        for alias in [&here, &there] {
            assert_eq!(alias.bytes().expect_err("somebody may write it").kind(), ErrorKind::Unsupported);
        }
    }
    if pairs.medium() == Medium::SharedMemory {
        let sent = left.send(to_right, message(1, private(100, 1), Mode::Share), soon(), None);
        assert_eq!(sent.expect_err("the peer cannot reach private memory").kind(), ErrorKind::Unsupported);
    }
}
