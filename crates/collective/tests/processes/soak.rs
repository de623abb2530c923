//! Very many small operations of real processes: their memory stays as it is, page faults end once all is warm, and
//! every result is right.
//!
//! Two or three ranks, through shared memory or over TCP. Faults are what `getrusage` counts for the whole process,
//! memory what the system has given to it alone; both are read after every tenth of the operations. The first tenths
//! are the warm-up, in which pools and tables grow to what the traffic needs. What remains afterwards is a few faults,
//! fewer in each tenth: seven in the last 700,000 of a million operations. They are of pages that are touched for the
//! first time when more messages than ever before happen to be under way at once.

use crate::common::{hear, job, part, say, start_all, until, wait};
use sheave_base::config::Transport;
use sheave_base::{Rank, Result, Work};
use sheave_collective::{Collectives, Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_tensor::{Dtype, Tensor};
use std::time::Instant;

const ROUNDS: &str = "SHEAVE_TEST_ROUNDS";
const TENTHS: usize = 10;
const WARM_TENTHS: usize = 3;
/// Of one process after its warm-up.
const FAULTS: i64 = 100;
const GROWTH_BYTES: i64 = 512 << 10;
/// The next operation's first messages may be there when a rank looks.
const UNDER_WAY_BYTES: i64 = 64 << 10;

/// Operations of one round.
const KINDS: usize = 10;

/// One rank with tensors for every operation.
struct Rounds<'a> {
    world: &'a Communicator,
    /// Short enough for recursive doubling.
    short: [Tensor; 2],
    /// Long enough for a ring.
    long: [Tensor; 2],
    whole: Tensor,
    list: Vec<Tensor>,
}

impl<'a> Rounds<'a> {
    fn new(mesh: &Mesh, world: &'a Communicator) -> Result<Self> {
        let tensor = |count: u64| Tensor::empty(mesh.node().arena(), Dtype::F32, [count]);
        let own = vec![(world.rank().0 + 1) as f32; 8000];
        let filled = |count: usize| Tensor::from_slice(&own[..count], [count as u64]);
        Ok(Self {
            world,
            short: [filled(64)?, tensor(64)?],
            long: [filled(8000)?, tensor(8000)?],
            whole: tensor(64 * u64::from(world.size()))?,
            list: (0..8).map(|at| filled(10 + at)).collect::<Result<_>>()?,
        })
    }

    fn begin(&self, kind: usize, root: u32) -> Work<()> {
        let (world, [input, output]) = (self.world, &self.short);
        let at_root = root == world.rank().0;
        match kind {
            0 => world.all_reduce(input, output, Operator::Sum),
            1 => world.barrier(),
            2 => world.broadcast(output, Rank(root)),
            3 => world.reduce(input, at_root.then_some(output), Operator::Sum, Rank(root)),
            4 => world.all_gather(input, &self.whole),
            5 => world.scatter(at_root.then_some(&self.whole), output, Rank(root)),
            6 => world.all_to_all(&self.whole, &self.whole),
            7 => world.all_reduce(&self.long[0], &self.long[1], Operator::Sum),
            8 => world.all_reduce_list(&self.list, &self.list, Operator::Max),
            _ => world.reduce_scatter(&self.whole, output, Operator::Min),
        }
    }

    /// Each operation works on what those before it have left.
    fn check(&self, kind: usize, root: u32) {
        let is = |tensor: &Tensor, expected: f32| {
            let values = tensor.as_slice::<f32>().expect("it has ended");
            assert!(values.iter().all(|value| *value == expected), "{kind}: {:?}, not {expected}", &values[..3]);
        };
        let (size, own) = (self.world.size(), self.world.rank().0);
        let sum = (size * (size + 1) / 2) as f32;
        match kind {
            0 | 2 => is(&self.short[1], sum),
            3 if root == own => is(&self.short[1], sum),
            4 => (0..u64::from(size)).for_each(|rank| {
                is(&self.whole.slice_rows(rank * 64..(rank + 1) * 64).expect("rows"), (rank + 1) as f32);
            }),
            5 => is(&self.short[1], (own + 1) as f32),
            6 => is(&self.whole, (own + 1) as f32),
            7 => is(&self.long[1], sum),
            8 => self.list.iter().for_each(|tensor| is(tensor, size as f32)),
            9 => is(&self.short[1], 1.0),
            _ => {}
        }
    }

    fn run(&self, rounds: std::ops::Range<usize>) -> Result<()> {
        for round in rounds {
            let root = (round % self.world.size() as usize) as u32;
            for kind in 0..KINDS {
                wait(&self.begin(kind, root))?;
                self.check(kind, root);
            }
        }
        Ok(())
    }
}

/// Page faults of this process so far.
fn faults() -> i64 {
    // SAFETY: the call fills the struct, for which all zeroes are valid.
    unsafe {
        let mut usage: libc::rusage = std::mem::zeroed();
        assert_eq!(libc::getrusage(libc::RUSAGE_SELF, &raw mut usage), 0);
        usage.ru_minflt + usage.ru_majflt
    }
}

/// Memory that belongs to this process alone.
fn private_bytes() -> i64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("proc");
    let line = status.lines().find(|line| line.starts_with("RssAnon")).expect("a line");
    line.split_whitespace().nth(1).expect("a number").parse::<i64>().expect("a number") * 1024
}

#[test]
fn actor() {
    let Some(config) = part() else { return };
    let mesh = Mesh::join(config).expect("everybody comes");
    let rounds: usize = std::env::var(ROUNDS).expect("the test says").parse().expect("a number");
    let world = Collectives::new(&mesh).expect("the first").group(&mesh.world()).expect("few");
    let player = Rounds::new(&mesh, &world).expect("memory");
    for tenth in 0..TENTHS {
        let begun = Instant::now();
        player.run(rounds * tenth / TENTHS..rounds * (tenth + 1) / TENTHS).expect("all come");
        let (elapsed, stats) = (begun.elapsed().as_micros(), mesh.node().arena().stats());
        let numbers = [faults(), private_bytes(), stats.used_bytes as i64, stats.mapped_bytes as i64];
        say(&format!("tenth {tenth}: {numbers:?} in {elapsed} us"));
    }
    mesh.finish().expect("all come");
}

/// Page faults, private memory, memory of the arena in use, and mapped, all in bytes but the first.
fn numbers(words: &str) -> [i64; 4] {
    let listed = words.split(['[', ']']).nth(1).expect("a list");
    let numbers: Vec<i64> = listed.split(", ").map(|number| number.parse().expect("a number")).collect();
    numbers.try_into().expect("four of them")
}

fn soak(ranks: u32, transport: Transport, operations: usize) {
    let job = job();
    let rounds = (operations / KINDS).to_string();
    let children = start_all(&job, ranks, transport, &[(ROUNDS, &rounds)]);
    for child in &children {
        let words: Vec<String> = (0..TENTHS).map(|tenth| hear(child, &format!("tenth {tenth}:"))).collect();
        words.iter().for_each(|words| say(&format!("{}: {words}", child.name())));
        let seen: Vec<[i64; 4]> = words.iter().map(|words| numbers(words)).collect();
        let (warm, last) = (seen[WARM_TENTHS - 1], seen[TENTHS - 1]);
        let name = child.name();
        assert!(last[0] - warm[0] <= FAULTS, "{name}: {} page faults once warm", last[0] - warm[0]);
        assert!(last[1] - warm[1] <= GROWTH_BYTES, "{name} grew by {} bytes", last[1] - warm[1]);
        assert!(
            last[2] - warm[2] <= UNDER_WAY_BYTES,
            "{name}: what the arena holds grew from {} to {}",
            warm[2],
            last[2]
        );
        assert_eq!(last[3], warm[3], "{name}: what the arena has mapped");
        until("it has ended", || child.exit().is_some());
        assert!(child.exit().is_some_and(|exit| exit.status.success()), "{:?}", child.stderr_lines());
    }
}

#[test]
fn many_small_operations_leave_nothing_behind() {
    soak(3, Transport::Shm, 60_000);
    soak(2, Transport::Tcp, 40_000);
}

#[test]
#[ignore = "soak suite: takes minutes"]
fn a_million_small_operations_leave_nothing_behind() {
    soak(3, Transport::Shm, 1_000_000);
}
