//! The arena against the real kernel: memfds, seals, page faults, threads.
#![cfg(not(miri))]
#![expect(clippy::unwrap_used, reason = "a failing helper fails its test")]

use std::collections::HashSet;
use std::os::fd::OwnedFd;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Barrier};

use rustix::fs::{FallocateFlags, MemfdFlags, SealFlags, fallocate, fcntl_add_seals, ftruncate, memfd_create};
use sheave_base::ErrorKind;
use sheave_tensor::{Arena, ArenaConfig, Buffer, Lender, Segment, SegmentId};

const MIB: u64 = 1 << 20;

fn arena(capacity_bytes: u64) -> Arena {
    Arena::new(ArenaConfig { capacity_bytes, first_segment_bytes: 8 * MIB, ..ArenaConfig::default() })
}

fn fill(buffer: &mut Buffer, byte: u8) {
    buffer.bytes_mut().unwrap().fill(byte);
}

fn import(segment: &Segment) -> Arc<Segment> {
    let file = segment.fd().unwrap().try_clone_to_owned().unwrap();
    Segment::import(file, segment.id(), segment.len_bytes()).unwrap()
}

/// A lender that notes the loans it got back.
#[derive(Default)]
struct Ledger {
    ended: AtomicU64,
    loans: AtomicU64,
}

impl Lender for Ledger {
    fn give_back(&self, loan: u64) {
        self.ended.fetch_add(1, Ordering::SeqCst);
        self.loans.fetch_add(loan, Ordering::SeqCst);
    }

    fn token(&self) -> usize {
        std::ptr::from_ref(self) as usize
    }
}

#[test]
fn nothing_is_mapped_before_the_first_use() {
    let arena = arena(64 * MIB);
    assert_eq!((arena.stats().mapped_bytes, arena.stats().segments), (0, 0));
    let empty = arena.allocate(0).unwrap();
    assert_eq!((empty.len_bytes(), arena.stats().mapped_bytes), (0, 0));
    let buffer = arena.allocate(100).unwrap();
    assert!(arena.owns(&buffer) && !arena.owns(&empty));
    let stats = arena.stats();
    assert_eq!((stats.mapped_bytes, stats.used_bytes, stats.segments, stats.allocations), (8 * MIB, 128, 1, 1));
}

#[test]
fn blocks_are_aligned_distinct_and_reused_warm() {
    let arena = arena(64 * MIB);
    let sizes = [1, 64, 65, 4095, 4096, 5000, 100_000];
    let buffers: Vec<_> = sizes.iter().map(|&size| arena.allocate(size).unwrap()).collect();
    for (buffer, size) in buffers.iter().zip(sizes) {
        let alignment = if size >= 4096 { 4096 } else { 64 };
        assert_eq!((buffer.len_bytes(), buffer.ptr() as usize % alignment), (size, 0));
    }
    let before: HashSet<_> = buffers.iter().map(|buffer| buffer.ptr() as usize).collect();
    assert_eq!(before.len(), sizes.len());
    drop(buffers);
    let again: HashSet<_> = sizes.map(|size| arena.allocate(size).unwrap()).iter().map(|b| b.ptr() as usize).collect();
    assert_eq!(again, before);
}

#[test]
fn segments_double_and_large_requests_get_their_own() {
    let arena = arena(1024 * MIB);
    let held: Vec<_> = (0..3).map(|_| arena.allocate(7 << 20).unwrap()).collect();
    let lengths: Vec<_> = held.iter().map(|b| b.location().unwrap().segment.len_bytes() / MIB).collect();
    assert_eq!(lengths, [8, 16, 16]);
    let large = arena.allocate(300 << 20).unwrap();
    assert_eq!(large.location().unwrap().segment.len_bytes(), 300 * MIB);
    assert_eq!(arena.stats().segments, 3);
}

#[test]
fn the_capacity_is_never_exceeded_and_is_whole_again_later() {
    let arena = arena(20 * MIB);
    let mut held = Vec::new();
    let error = loop {
        match arena.allocate(1 << 20) {
            Ok(buffer) => held.push(buffer),
            Err(error) => break error,
        }
    };
    assert_eq!((held.len(), error.kind()), (20, ErrorKind::LimitExceeded));
    assert!(error.advice().is_some_and(|hint| hint.contains("capacity")), "{error}");
    assert_eq!(arena.stats().mapped_bytes, 20 * MIB);
    assert!(arena.allocate(usize::MAX).is_err());
    held.clear();
    // Two segments of 8 and 12 MiB have to make room for one of 20.
    assert_eq!(arena.allocate(20 << 20).unwrap().len_bytes(), 20 << 20);
}

#[test]
fn only_the_first_segment_is_small() {
    let lengths = |arena: &Arena, wanted: &[u64]| {
        let held: Vec<_> = wanted.iter().map(|mib| arena.allocate((mib * MIB) as usize).unwrap()).collect();
        held.iter().map(|held| held.location().unwrap().segment.len_bytes() / MIB).collect::<Vec<_>>()
    };
    let arena = || Arena::new(ArenaConfig { capacity_bytes: 256 * MIB, ..ArenaConfig::default() });
    assert_eq!(lengths(&arena(), &[1, 1, 6, 1, 3]), [1, 8, 8, 8, 16]);
    // No first one of a size that nothing fits into any more.
    assert_eq!(lengths(&arena(), &[2, 1]), [8, 8]);
    // Nor does it begin from the smallest again where there is nothing to double.
    let (trimmed, retired) = (arena(), arena());
    assert_eq!(lengths(&trimmed, &[1]), [1]);
    trimmed.trim();
    assert_eq!(lengths(&trimmed, &[1]), [8]);
    let held = retired.allocate(1000).unwrap();
    held.location().unwrap().segment.retire();
    assert_eq!(lengths(&retired, &[1]), [8]);
}

#[test]
fn memory_outlives_the_arena() {
    let arena = arena(64 * MIB);
    let mut buffer = arena.allocate(10_000).unwrap();
    let other = arena.allocate(10_000).unwrap();
    fill(&mut buffer, 42);
    drop((arena, other));
    assert!(buffer.bytes().unwrap().iter().all(|&byte| byte == 42));
    fill(&mut buffer, 43);
    std::thread::spawn(move || drop(buffer)).join().unwrap();
}

#[test]
fn bytes_are_found_by_their_address_while_their_segment_is_there() {
    let arena = arena(256 * MIB);
    let buffers: Vec<_> = (0..3).map(|_| arena.allocate(7 << 20).unwrap()).collect();
    let found = |start: *const u8, len_bytes: usize| {
        let found = arena.locate(start, len_bytes)?;
        Some((found.segment.id(), found.offset_bytes, found.length_bytes))
    };
    for buffer in &buffers {
        let own = buffer.location().unwrap();
        assert_eq!(found(buffer.ptr(), 7 << 20), Some((own.segment.id(), own.offset_bytes, 7 << 20)));
        assert_eq!(found(buffer.ptr().wrapping_add(5), 3), Some((own.segment.id(), own.offset_bytes + 5, 3)));
    }
    // The first has a segment of 8 MiB for itself; what reaches beyond its end is in no segment as a whole.
    let (first, last) = (buffers[0].ptr(), 8 << 20);
    assert!(found(first, last).is_some() && found(first, last + 1).is_none());
    assert!(found(first.wrapping_sub(1), 2).is_none());
    let other = self::arena(64 * MIB).allocate(100).unwrap();
    let private = Buffer::private(2 << 20).unwrap();
    assert!(found(other.ptr(), 1).is_none() && found(private.ptr(), 1).is_none());
    drop(buffers);
    assert!(found(first, 1).is_some());
    arena.trim();
    assert!(found(first, 1).is_none());
    let again = arena.allocate(100).unwrap();
    assert_eq!(found(again.ptr(), 100).map(|found| found.0), Some(again.location().unwrap().segment.id()));
}

#[test]
fn an_imported_segment_is_the_same_memory() {
    let arena = arena(64 * MIB);
    let mut buffer = arena.allocate(5000).unwrap();
    fill(&mut buffer, 1);
    let location = buffer.location().unwrap();
    let theirs = import(&location.segment);
    assert_eq!((theirs.inode(), theirs.id()), (location.segment.inode(), location.segment.id()));
    assert_ne!(theirs.start(), location.segment.start());
    let ledger = Arc::new(Ledger::default());
    let mut lent = Buffer::lent(theirs, location.offset_bytes, 5000, 7, ledger.clone()).unwrap();
    assert_eq!(lent.bytes().unwrap()[..], [1; 5000]);
    fill(&mut lent, 2);
    assert_eq!(buffer.bytes().unwrap()[..], [2; 5000]);
    assert_eq!(lent.location().unwrap().offset_bytes, location.offset_bytes);
    assert!(!arena.owns(&lent));
    let clone = lent.clone();
    drop(lent);
    assert_eq!(ledger.ended.load(Ordering::SeqCst), 0);
    drop(clone);
    assert_eq!((ledger.ended.load(Ordering::SeqCst), ledger.loans.load(Ordering::SeqCst)), (1, 7));
}

#[test]
fn a_loan_goes_home_by_move_only_from_its_single_handle_to_its_own_lender() {
    let segment = Segment::create(4096).unwrap();
    let (ledger, stranger) = (Arc::new(Ledger::default()), Ledger::default());
    let lent = Buffer::lent(segment, 64, 100, 11, ledger.clone()).unwrap();
    let lent = lent.into_loan(stranger.token()).unwrap_err();
    let clone = lent.clone();
    let lent = lent.into_loan(ledger.token()).unwrap_err();
    drop(clone);
    assert_eq!(lent.into_loan(ledger.token()).unwrap(), 11);
    assert_eq!(ledger.ended.load(Ordering::SeqCst), 0);
    assert!(Buffer::private(8).unwrap().into_loan(ledger.token()).is_err());
}

#[test]
fn loans_outside_their_segment_are_refused() {
    let segment = Segment::create(8192).unwrap();
    let ledger = Arc::new(Ledger::default());
    for (offset, length) in [(8192, 1), (0, 8193), (64, 8129), (u64::MAX, 2), (u64::MAX - 63, 64), (1, 64)] {
        let error = Buffer::lent(segment.clone(), offset, length, 1, ledger.clone()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{offset} {length}");
    }
    assert!(Buffer::lent(segment, 0, 8192, 1, ledger.clone()).is_ok());
    assert_eq!(ledger.ended.load(Ordering::SeqCst), 1);
}

fn memfd(len_bytes: u64, allocate: bool, seals: SealFlags) -> OwnedFd {
    let file = memfd_create("test", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    ftruncate(&file, len_bytes).unwrap();
    if allocate {
        fallocate(&file, FallocateFlags::empty(), 0, len_bytes).unwrap();
    }
    fcntl_add_seals(&file, seals).unwrap();
    file
}

#[test]
fn descriptors_are_believed_only_when_the_kernel_confirms_them() {
    let sealed = SealFlags::SHRINK | SealFlags::GROW | SealFlags::SEAL;
    let refused = |file: OwnedFd, expected: u64, words: &str| {
        let error = Segment::import(file, SegmentId(1), expected).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Protocol, "{error}");
        assert!(error.to_string().contains(words), "{error}");
    };
    assert!(Segment::import(memfd(8192, true, sealed), SegmentId(1), 8192).is_ok());
    refused(memfd(8192, true, SealFlags::empty()), 8192, "not sealed");
    for missing in [SealFlags::SHRINK, SealFlags::GROW, SealFlags::SEAL] {
        refused(memfd(8192, true, sealed - missing), 8192, "not sealed");
    }
    refused(memfd(4096, true, sealed), 8192, "4096 bytes instead of 8192");
    refused(memfd(16384, true, sealed), 8192, "16384 bytes instead of 8192");
    refused(memfd(0, false, sealed), 0, "0 bytes");
    refused(memfd(8192, false, sealed), 8192, "allocated");
    refused(memfd(8192, true, sealed | SealFlags::WRITE), 8192, "cannot be mapped");
    refused(tempfile::tempfile().unwrap().into(), 8192, "no seals");
    refused(rustix::pipe::pipe().unwrap().0, 8192, "no seals");
}

/// Page faults of this thread so far.
fn minor_faults() -> i64 {
    // SAFETY: all zeros is a valid `rusage`, and the call only fills it.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::getrusage(libc::RUSAGE_THREAD, &raw mut usage) }, 0);
    usage.ru_minflt
}

#[test]
fn a_warm_arena_causes_no_page_faults() {
    let arena = arena(256 * MIB);
    let cycle = |byte: u8| fill(&mut arena.allocate(1 << 20).unwrap(), byte);
    (0..10).for_each(cycle);
    let before = minor_faults();
    (0..1000).for_each(|round| cycle(round as u8));
    let faults = minor_faults() - before;
    assert!(faults < 10, "{faults} page faults in 1000 cycles");
}

#[test]
fn fresh_segments_are_present_before_they_are_touched() {
    let arena = arena(256 * MIB);
    let mut buffer = arena.allocate(4 << 20).unwrap();
    let before = minor_faults();
    fill(&mut buffer, 1);
    let faults = minor_faults() - before;
    assert!(faults < 10, "{faults} page faults for 1024 pages");
}

#[test]
fn a_steady_state_keeps_its_segments_and_a_past_peak_is_released() {
    let arena = arena(1024 * MIB);
    let peak: Vec<_> = (0..100).map(|_| arena.allocate(1 << 20).unwrap()).collect();
    let mapped_at_peak = arena.stats().mapped_bytes;
    drop(peak);
    (0..4096).for_each(|_| drop(arena.allocate(1 << 20).unwrap()));
    assert_eq!(arena.stats().mapped_bytes, mapped_at_peak, "one quiet window is not yet the past");
    (0..3 * 4096).for_each(|_| drop(arena.allocate(1 << 20).unwrap()));
    assert!(arena.stats().mapped_bytes <= 16 * MIB, "{:?}", arena.stats());
    arena.trim();
    assert_eq!((arena.stats().mapped_bytes, arena.stats().segments), (0, 0));
}

#[test]
fn handles_are_dropped_on_any_thread_at_once() {
    let arena = arena(256 * MIB);
    let (threads, rounds) = (4, 500);
    let barrier = Barrier::new(threads);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let (arena, barrier) = (&arena, &barrier);
            scope.spawn(move || {
                barrier.wait();
                let mut held = Vec::new();
                for round in 0..rounds {
                    let mut buffer = arena.allocate(1 + (round * 977) % 60_000).unwrap();
                    fill(&mut buffer, thread as u8);
                    held.push(buffer);
                    if held.len() > 20 {
                        let gone = held.swap_remove(round % 20);
                        assert!(gone.bytes().unwrap().iter().all(|&byte| byte == thread as u8));
                    }
                }
            });
        }
    });
    let stats = arena.stats();
    assert_eq!((stats.used_bytes, stats.allocations), (0, (threads * rounds) as u64));
}

#[test]
fn lending_stops_at_the_cap() {
    let arena = Arena::new(ArenaConfig { capacity_bytes: 100, lent_fraction: 0.5, ..ArenaConfig::default() });
    assert!(arena.try_lend(30) && arena.try_lend(20));
    assert!(!arena.try_lend(1) && !arena.try_lend(u64::MAX));
    assert_eq!(arena.stats().lent_bytes, 50);
    arena.lend_ended(20);
    assert!(arena.try_lend(1) && !arena.try_lend(20));
}

#[test]
fn nothing_new_comes_from_a_retired_segment() {
    let arena = arena(64 * MIB);
    let buffer = arena.allocate(1000).unwrap();
    let recent = arena.allocate(1000).unwrap();
    let first = buffer.location().unwrap().segment;
    drop(recent);
    first.retire();
    first.retire();
    let second = arena.allocate(1000).unwrap().location().unwrap().segment;
    assert_ne!(second.id(), first.id());
    first.release();
    assert!(first.is_retired());
    assert_eq!(arena.allocate(1000).unwrap().location().unwrap().segment.id(), second.id());
    first.release();
    first.release();
    assert!(!first.is_retired());
    second.retire();
    assert_eq!(arena.allocate(1000).unwrap().location().unwrap().segment.id(), first.id());
}
