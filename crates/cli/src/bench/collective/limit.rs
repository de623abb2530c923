//! What a bare loop reaches: two processes sum f32 in shared memory, without headers, checks, leases or deadlines.
//!
//! `limit_arena` stands beside tensors in the arena: each rank sums its half of both tensors straight into both.
//! `limit_private` stands beside private ones: the other rank's half goes through slots of 256 KiB in shared memory,
//! two in turn, and its sum comes back the same way. Both are timed like everything else here.
//!
//! **Why it is correct.** Both ranks pass the same barriers in the same order. Between two barriers each byte of the
//! shared memory is written by one rank at most and not read by the other while it is: of the tensors in the arena
//! each rank touches its own half after the first barrier of an operation and before the last one; of slots one is
//! filled before a barrier, read after it, and filled again only two pieces, and so two barriers, later.

use super::case::{ELEMENT_BYTES, Memory, REWRITTEN_BYTES};
use super::effort::{self, WARM_ROUNDS};
use super::job::{say, slowest};
use crate::Failure;
use crate::bench::child::{self, Follower, nanoseconds};
use crate::bench::pair::pin_to_core;
use memmap2::{MmapOptions, MmapRaw};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};
use serde::{Deserialize, Serialize};
use sheave_base::{Error, ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::sync::atomic::AtomicU64;
use std::sync::atomic::Ordering::{Acquire, Release};
use std::time::{Duration, Instant};

/// Two processes that have not measured everything by then have hung.
const PATIENCE: Duration = Duration::from_secs(120);

const CONTROL_BYTES: usize = 4096;
/// Words of the control page that different ranks write lie so far apart.
const APART_BYTES: usize = 128;
const SLOT_BYTES: usize = 256 << 10;
/// Of each rank: two to give in, two to give back.
const SLOTS: usize = 4;
/// Looks at the other rank's word before the core is given to somebody else.
const SPINS: u32 = 20_000;

#[derive(Serialize, Deserialize)]
struct Invitation {
    rank: usize,
    /// Where the parent holds the shared memory.
    memory: String,
    sizes_bytes: Vec<usize>,
    budget: Duration,
}

/// The name under which a row of it stands.
pub(super) fn case(memory: Memory) -> &'static str {
    match memory {
        Memory::Arena => "limit_arena",
        Memory::Private => "limit_private",
    }
}

const BOTH: [Memory; 2] = [Memory::Arena, Memory::Private];

/// Nanoseconds per operation of every round, as the slower rank saw it.
pub(super) fn measure(sizes_bytes: &[usize], budget: Duration) -> Result<Vec<(Memory, usize, Vec<u64>)>> {
    let longest = longest(sizes_bytes);
    let memory = memfd_create("sheave-limit", MemfdFlags::CLOEXEC)?;
    ftruncate(&memory, (CONTROL_BYTES + 2 * (longest + SLOTS * SLOT_BYTES)) as u64)?;
    let path = format!("/proc/{}/fd/{}", std::process::id(), memory.as_raw_fd());
    let start = |rank| {
        let (memory, sizes_bytes) = (path.clone(), sizes_bytes.to_vec());
        Follower::start_speaking("limit-child", &Invitation { rank, memory, sizes_bytes, budget })
    };
    let followers = [0, 1].map(start).into_iter().collect::<Result<Vec<_>>>()?;
    let cells = || BOTH.into_iter().flat_map(|memory| sizes_bytes.iter().map(move |bytes| (memory, *bytes)));
    let times = slowest(followers, cells().count())?;
    Ok(cells().zip(times).map(|((memory, bytes), times)| (memory, bytes, times)).collect())
}

/// Bytes of a tensor's place: whole pages, so that no two have a line of a cache in common.
fn longest(sizes_bytes: &[usize]) -> usize {
    sizes_bytes.iter().copied().max().unwrap_or(0).next_multiple_of(CONTROL_BYTES)
}

/// The hidden command: one rank.
pub(in crate::bench) fn follow() -> std::result::Result<(), Failure> {
    let invitation: Invitation = child::invited("sheave bench collective")?;
    child::end_after(PATIENCE);
    Ok(take_part(&invitation)?)
}

fn take_part(invitation: &Invitation) -> Result<()> {
    // Two that share a core would say what the scheduler does, not what the machine allows.
    pin_to_core(invitation.rank)?;
    let file = std::fs::File::options().read(true).write(true).open(&invitation.memory)?;
    let shared = MmapOptions::new().populate().map_raw(&file)?;
    let longest = longest(&invitation.sizes_bytes);
    let mut private = vec![0.0_f32; longest / ELEMENT_BYTES];
    let mut pair = Pair { shared, rank: invitation.rank & 1, longest, sequence: 0 };
    let mut measured = Vec::new();
    for memory in BOTH {
        for &bytes in &invitation.sizes_bytes {
            let mine = match memory {
                Memory::Arena => pair.tensor(pair.rank),
                Memory::Private => private.as_mut_ptr(),
            };
            measured.push(pair.measure(memory, mine, bytes, invitation.budget)?);
        }
    }
    say(&measured)
}

/// One rank of two, and the memory that it shares with the other.
struct Pair {
    shared: MmapRaw,
    rank: usize,
    longest: usize,
    sequence: u64,
}

impl Pair {
    fn measure(&mut self, memory: Memory, mine: *mut f32, bytes: usize, budget: Duration) -> Result<Vec<u64>> {
        let count = bytes / ELEMENT_BYTES;
        fill(mine, count, 1.0 + self.rank as f32);
        self.barrier();
        self.run(memory, mine, count);
        if !is_filled(mine, count, 3.0) {
            return Err(Error::new(ErrorKind::Internal, "the bare loop sums wrongly"));
        }
        fill(mine, count, 0.0);
        let looped = effort::looped(bytes);
        let round = |pair: &mut Self, number: usize| {
            if bytes >= REWRITTEN_BYTES {
                fill(mine, count, 1.0 + number as f32);
            }
            pair.barrier();
            let begun = Instant::now();
            (0..looped).for_each(|_| pair.run(memory, mine, count));
            nanoseconds(begun.elapsed()) / looped as u64
        };
        let mut last = Duration::ZERO;
        for number in 0..WARM_ROUNDS {
            let begun = Instant::now();
            round(self, number);
            last = begun.elapsed();
        }
        let rounds = self.agree(effort::rounds(budget, last) as u64);
        Ok((0..rounds).map(|number| round(self, number as usize)).collect())
    }

    /// One operation. `mine` has `count` elements; in the arena it is this rank's tensor there.
    fn run(&mut self, memory: Memory, mine: *mut f32, count: usize) {
        match memory {
            Memory::Arena => self.sum_in_arena(count),
            Memory::Private => self.sum_through_slots(mine, count),
        }
    }

    fn sum_in_arena(&mut self, count: usize) {
        let half = count / 2;
        let (from, length) = if self.rank == 0 { (0, half) } else { (half, count - half) };
        self.barrier();
        // SAFETY: both tensors have `count` elements, and between these barriers this half is this rank's.
        unsafe { sum_into_both(self.tensor(0).add(from), self.tensor(1).add(from), length) };
        self.barrier();
    }

    fn sum_through_slots(&mut self, mine: *mut f32, count: usize) {
        let (half, step) = (count / 2, SLOT_BYTES / ELEMENT_BYTES);
        let (own, own_count, theirs) = match self.rank {
            0 => (mine, half, mine.wrapping_add(half)),
            _ => (mine.wrapping_add(half), count - half, mine),
        };
        let their_count = count - own_count;
        for (index, at) in (0..own_count.max(their_count)).step_by(step).enumerate() {
            let turn = index % 2;
            let (given, taken) = (their_count.saturating_sub(at).min(step), own_count.saturating_sub(at).min(step));
            let (rank, other) = (self.rank, 1 - self.rank);
            // SAFETY: `given` elements from `at` on lie in the other's half of `mine`, `taken` in this one's; slots
            // hold `step` elements, and who touches which when is in the module's documentation.
            unsafe { self.slot(rank, turn).copy_from_nonoverlapping(theirs.add(at), given) };
            self.barrier();
            // SAFETY: as above.
            unsafe { sum_and_show(own.add(at), self.slot(other, turn), self.slot(rank, 2 + turn), taken) };
            self.barrier();
            // SAFETY: as above.
            unsafe { theirs.add(at).copy_from_nonoverlapping(self.slot(other, 2 + turn), given) };
        }
    }

    /// Both ranks pass it together.
    fn barrier(&mut self) {
        self.sequence += 1;
        self.word(self.rank).store(self.sequence, Release);
        let mut spins = 0;
        while self.word(1 - self.rank).load(Acquire) < self.sequence {
            std::hint::spin_loop();
            spins += 1;
            if spins > SPINS {
                std::thread::yield_now();
                spins = 0;
            }
        }
    }

    /// Everybody's number is that of rank 0.
    fn agree(&mut self, number: u64) -> u64 {
        if self.rank == 0 {
            self.word(2).store(number, Release);
        }
        self.barrier();
        self.word(2).load(Acquire)
    }

    fn word(&self, index: usize) -> &AtomicU64 {
        let word = self.shared.as_mut_ptr().wrapping_add(index * APART_BYTES).cast();
        // SAFETY: it lies in the control page, is aligned, lives as long as the mapping, and is only used as an atomic.
        unsafe { AtomicU64::from_ptr(word) }
    }

    fn tensor(&self, rank: usize) -> *mut f32 {
        self.shared.as_mut_ptr().wrapping_add(CONTROL_BYTES + rank * self.longest).cast()
    }

    fn slot(&self, rank: usize, index: usize) -> *mut f32 {
        let slots = CONTROL_BYTES + 2 * self.longest;
        self.shared.as_mut_ptr().wrapping_add(slots + (rank * SLOTS + index) * SLOT_BYTES).cast()
    }
}

fn fill(tensor: *mut f32, count: usize, value: f32) {
    for at in 0..count {
        // SAFETY: the tensor has `count` elements, and between operations its rank alone touches it.
        unsafe { tensor.add(at).write(value) };
    }
}

fn is_filled(tensor: *const f32, count: usize, value: f32) -> bool {
    // SAFETY: as in `fill`.
    (0..count).all(|at| unsafe { tensor.add(at).read() } == value)
}

/// # Safety
/// Both have `count` elements that nobody else touches.
unsafe fn sum_into_both(one: *mut f32, other: *mut f32, count: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it; the rest is the caller's promise.
        return unsafe { sum_into_both_avx2(one, other, count) };
    }
    // SAFETY: the caller's promise.
    unsafe { sum_into_both_anywhere(one, other, count) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_into_both_avx2(one: *mut f32, other: *mut f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { sum_into_both_anywhere(one, other, count) };
}

#[inline(always)]
unsafe fn sum_into_both_anywhere(one: *mut f32, other: *mut f32, count: usize) {
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = one.add(at).read() + other.add(at).read();
            one.add(at).write(sum);
            other.add(at).write(sum);
        }
    }
}

/// # Safety
/// All three have `count` elements that nobody else writes, and of `own` and `shown` reads, meanwhile.
unsafe fn sum_and_show(own: *mut f32, given: *const f32, shown: *mut f32, count: usize) {
    #[cfg(target_arch = "x86_64")]
    if is_x86_feature_detected!("avx2") {
        // SAFETY: the processor has it; the rest is the caller's promise.
        return unsafe { sum_and_show_avx2(own, given, shown, count) };
    }
    // SAFETY: the caller's promise.
    unsafe { sum_and_show_anywhere(own, given, shown, count) };
}

#[cfg(target_arch = "x86_64")]
#[target_feature(enable = "avx2")]
unsafe fn sum_and_show_avx2(own: *mut f32, given: *const f32, shown: *mut f32, count: usize) {
    // SAFETY: the caller's promise.
    unsafe { sum_and_show_anywhere(own, given, shown, count) };
}

#[inline(always)]
unsafe fn sum_and_show_anywhere(own: *mut f32, given: *const f32, shown: *mut f32, count: usize) {
    for at in 0..count {
        // SAFETY: the caller's promise.
        unsafe {
            let sum = own.add(at).read() + given.add(at).read();
            own.add(at).write(sum);
            shown.add(at).write(sum);
        }
    }
}
