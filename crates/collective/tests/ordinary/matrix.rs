//! Every operation, dtype and operator, over each medium and over all of them in one group, with different numbers of
//! ranks, sizes and memories, against the oracle; and whether all ranks have the same bits.

use crate::common::oracle::{Memory, encode, number, numbers, reduced, unsigned_zeros, width};
use crate::common::{together, together_with, wait};
use sheave_base::Rank;
use sheave_base::config::Transport;
use sheave_collective::{Communicator, Operator, Table};
use sheave_mesh::{Config, Mesh};
use sheave_net::{Medium, Neighbourhood};
use sheave_tensor::{Arena, Dtype, Tensor};
use std::time::Duration;

const RANKS: [u32; 7] = [1, 2, 3, 4, 5, 7, 8];

/// One rank of a mesh that goes through the matrix.
struct Actor<'a> {
    world: &'a Communicator,
    arena: Arena,
    rank: u32,
    size: u32,
    salt: u64,
}

impl Actor<'_> {
    fn next(&mut self) -> u64 {
        self.salt += 1;
        // Some come late, always the same ones.
        if (self.salt + u64::from(self.rank)).is_multiple_of(61) {
            std::thread::sleep(Duration::from_micros(300));
        }
        self.salt
    }

    fn all(&self, dtype: Dtype, count: usize, salt: u64) -> Vec<Vec<f64>> {
        (0..self.size).map(|rank| numbers(dtype, rank, count, salt)).collect()
    }

    fn check(&self, what: &str, dtype: Dtype, tensor: &Tensor, expected: &[f64]) {
        let found = unsigned_zeros(dtype, tensor.bytes().expect("nobody writes it").to_vec());
        let expected = unsigned_zeros(dtype, encode(dtype, expected));
        if found != expected {
            let at = found.iter().zip(&expected).position(|(one, other)| one != other);
            panic!(
                "{what} of {dtype}[{}] on rank {} of {} differs at byte {at:?}",
                tensor.elements(),
                self.rank,
                self.size
            );
        }
    }

    fn reductions(&mut self, dtype: Dtype, operator: Operator, count: usize, memory: Memory, in_place: bool) {
        let salt = self.next();
        let what = format!("{} in place {in_place} in {memory:?}", operator.name());
        let (world, rank, arena) = (self.world, self.rank, self.arena.clone());
        let inputs = self.all(dtype, count, salt);
        let expected = reduced(dtype, operator, &inputs);
        let own = &inputs[rank as usize];
        let input = memory.filled(&arena, rank, dtype, own);
        let output = if in_place { input.clone() } else { memory.tensor(&arena, rank + 1, dtype, count) };
        wait(&world.all_reduce(&input, &output, operator)).expect("all_reduce");
        self.check(&format!("all_reduce {what}"), dtype, &output, &expected);
        if !in_place {
            self.check("the input of all_reduce", dtype, &input, own);
        }

        let root = (salt % u64::from(self.size)) as u32;
        let input = memory.filled(&arena, rank, dtype, own);
        let output = if in_place { input.clone() } else { memory.tensor(&arena, rank, dtype, count) };
        let given = (rank == root).then_some(&output);
        wait(&world.reduce(&input, given, operator, Rank(root))).expect("reduce");
        if rank == root {
            self.check(&format!("reduce {what}"), dtype, &output, &expected);
        } else {
            self.check("the input of reduce", dtype, &input, own);
        }

        let count = if count > 1000 { count / self.size as usize } else { count };
        let whole = count * self.size as usize;
        let inputs = self.all(dtype, whole, salt);
        let own = &inputs[rank as usize];
        let input = memory.filled(&arena, rank, dtype, own);
        let mine = count as u64 * u64::from(rank)..count as u64 * u64::from(rank + 1);
        let output = match in_place {
            true => input.slice_rows(mine.clone()).expect("its part"),
            false => memory.tensor(&arena, rank, dtype, count),
        };
        wait(&world.reduce_scatter(&input, &output, operator)).expect("reduce_scatter");
        let numbers = width(dtype) * mine.start as usize..width(dtype) * mine.end as usize;
        let expected = &reduced(dtype, operator, &inputs)[numbers];
        self.check(&format!("reduce_scatter {what}"), dtype, &output, expected);
    }

    fn movements(&mut self, dtype: Dtype, count: usize, memory: Memory, in_place: bool) {
        let salt = self.next();
        // Of long tensors all ranks' together are so long.
        let count = if count > 1000 { count / self.size as usize } else { count };
        let (world, rank, size, arena) = (self.world, self.rank, self.size, self.arena.clone());
        let root = (salt % u64::from(size)) as u32;
        let inputs = self.all(dtype, count, salt);
        let own = &inputs[rank as usize];
        let tensor = memory.filled(&arena, rank, dtype, own);
        wait(&world.broadcast(&tensor, Rank(root))).expect("broadcast");
        self.check("broadcast", dtype, &tensor, &inputs[root as usize]);

        let joined = inputs.concat();
        let output = memory.tensor(&arena, rank, dtype, count * size as usize);
        let input = match in_place {
            true => {
                let mine = output.slice_rows(count as u64 * u64::from(rank)..count as u64 * u64::from(rank + 1));
                let mine = mine.expect("its part");
                mine.overwrite_own(&encode(dtype, own));
                mine
            }
            false => memory.filled(&arena, rank, dtype, own),
        };
        wait(&world.all_gather(&input, &output)).expect("all_gather");
        self.check("all_gather", dtype, &output, &joined);

        let input = memory.filled(&arena, rank, dtype, own);
        let output = memory.tensor(&arena, rank, dtype, count * size as usize);
        wait(&world.gather(&input, (rank == root).then_some(&output), Rank(root))).expect("gather");
        if rank == root {
            self.check("gather", dtype, &output, &joined);
        }

        let whole = memory.filled(&arena, rank, dtype, &joined);
        let output = memory.tensor(&arena, rank, dtype, count);
        wait(&world.scatter((rank == root).then_some(&whole), &output, Rank(root))).expect("scatter");
        self.check("scatter", dtype, &output, own);

        let inputs = self.all(dtype, count * size as usize, salt);
        let input = memory.filled(&arena, rank, dtype, &inputs[rank as usize]);
        let output = if in_place { input.clone() } else { memory.tensor(&arena, rank, dtype, count * size as usize) };
        wait(&world.all_to_all(&input, &output)).expect("all_to_all");
        let block = count * width(dtype);
        let mine = rank as usize * block..(rank as usize + 1) * block;
        let expected: Vec<f64> = inputs.iter().flat_map(|input| input[mine.clone()].to_vec()).collect();
        self.check("all_to_all", dtype, &output, &expected);
        wait(&world.barrier()).expect("barrier");
    }

    /// Lengths that differ: some ranks give nothing.
    fn lengths(&mut self, dtype: Dtype, most: usize, memory: Memory) {
        let salt = self.next();
        let (world, rank, size, arena) = (self.world, self.rank, self.size, self.arena.clone());
        let length = |from: u32, to: u32| (number(Dtype::I64, from, to as usize, salt) as i64 + 1) as usize * most / 3;
        let lengths: Vec<usize> = (0..size).map(|from| length(from, 0)).collect();
        let inputs: Vec<_> = (0..size).map(|from| numbers(dtype, from, lengths[from as usize], salt)).collect();
        let input = memory.filled(&arena, rank, dtype, &inputs[rank as usize]);
        let output = memory.tensor(&arena, rank, dtype, lengths.iter().sum());
        wait(&world.all_gather_v(&input, &output, &lengths)).expect("all_gather_v");
        self.check("all_gather_v", dtype, &output, &inputs.concat());

        let sent: Vec<usize> = (0..size).map(|to| length(rank, to)).collect();
        let received: Vec<usize> = (0..size).map(|from| length(from, rank)).collect();
        let input = memory.filled(&arena, rank, dtype, &numbers(dtype, rank, sent.iter().sum(), salt));
        let output = memory.tensor(&arena, rank, dtype, received.iter().sum());
        wait(&world.all_to_all_v(&input, &sent, &output, &received)).expect("all_to_all_v");
        let from = |from: u32| {
            let before: usize = (0..rank).map(|to| length(from, to)).sum();
            let until = (before + length(from, rank)) * width(dtype);
            numbers(dtype, from, (0..size).map(|to| length(from, to)).sum(), salt)[before * width(dtype)..until]
                .to_vec()
        };
        self.check("all_to_all_v", dtype, &output, &(0..size).flat_map(from).collect::<Vec<_>>());
    }
}

trait OverwriteOwn {
    fn overwrite_own(&self, bytes: &[u8]);
}

impl OverwriteOwn for Tensor {
    fn overwrite_own(&self, bytes: &[u8]) {
        self.overwrite(bytes, "test").expect("nobody uses it");
    }
}

fn act(mesh: &Mesh, world: &Communicator, act: impl Fn(&mut Actor<'_>)) {
    let arena = mesh.node().arena().clone();
    let (rank, size) = (world.rank().0, world.size());
    act(&mut Actor { world, arena, rank, size, salt: 0 });
}

/// All dtypes and operators in short tensors.
fn short(actor: &mut Actor<'_>) {
    for memory in Memory::ALL {
        for count in [0, 1, 3, 16] {
            for (dtype, in_place) in Dtype::ALL.into_iter().flat_map(|dtype| [(dtype, false), (dtype, true)]) {
                for operator in Operator::ALL.into_iter().filter(|operator| operator.require(dtype).is_ok()) {
                    actor.reductions(dtype, operator, count, memory, in_place);
                }
                actor.movements(dtype, count, memory, in_place);
            }
            actor.lengths(Dtype::I16, 3 * count, memory);
        }
    }
}

/// Lengths around the borders of algorithms, segments and pages.
fn long(actor: &mut Actor<'_>) {
    for (index, bytes) in [8 << 10, (64 << 10) - 1, 64 << 10, (64 << 10) + 1, 300 << 10].into_iter().enumerate() {
        let memory = Memory::ALL[index % 3];
        for (dtype, operator) in
            [(Dtype::F32, Operator::Sum), (Dtype::Bf16, Operator::Avg), (Dtype::U8, Operator::Bxor)]
        {
            let count = bytes / dtype.size_bytes();
            actor.reductions(dtype, operator, count, memory, index % 2 == 0);
        }
        actor.movements(Dtype::U8, bytes, memory, index % 2 == 1);
        actor.lengths(Dtype::F64, bytes / 8 / actor.size as usize, memory);
    }
    // The oracle takes its time for so many elements.
    let bytes = (4 << 20) + 3;
    match actor.size {
        1..=3 => actor.reductions(Dtype::I8, Operator::Sum, bytes, Memory::Mixed, true),
        7.. => return,
        _ => {}
    }
    actor.reductions(Dtype::F32, Operator::Sum, bytes / 4, Memory::Arena, false);
    actor.movements(Dtype::U8, bytes, Memory::Private, false);
}

fn all(medium: Medium, with: fn(&mut Actor<'_>)) {
    for ranks in RANKS {
        together(ranks, medium, move |mesh, world| act(mesh, world, with));
    }
}

#[test]
fn short_tensors_within_the_process() {
    all(Medium::InProcess, short);
}

#[test]
fn short_tensors_through_shared_memory() {
    all(Medium::SharedMemory, short);
}

#[test]
fn short_tensors_over_tcp() {
    all(Medium::Tcp, short);
}

#[test]
fn long_tensors_within_the_process() {
    all(Medium::InProcess, long);
}

#[test]
fn long_tensors_through_shared_memory() {
    all(Medium::SharedMemory, long);
}

#[test]
fn long_tensors_over_tcp() {
    all(Medium::Tcp, long);
}

/// Where a rank of a mixed mesh is.
#[derive(Clone, Copy, PartialEq)]
enum Place {
    /// Linked within the process to all others of this neighbourhood.
    In(usize),
    /// A neighbour of nobody.
    Alone,
    /// It knows TCP alone, though it has the neighbourhood of the first.
    Tcp,
}

/// A mesh of ranks at these places. Those that neither is a neighbour of nor know TCP alone share memory.
fn mixed(places: &'static [Place], with: fn(&mut Actor<'_>)) {
    let neighbourhoods = [Neighbourhood::default(), Neighbourhood::default()];
    let change = |rank: u32, config: &mut Config| {
        let (transport, neighbourhood) = match places[rank as usize] {
            Place::In(at) => (Transport::Auto, Some(&neighbourhoods[at])),
            Place::Alone => (Transport::Auto, None),
            Place::Tcp => (Transport::Tcp, Some(&neighbourhoods[0])),
        };
        config.node.transport = transport;
        config.node.neighbourhood = neighbourhood.cloned();
    };
    let body = move |mesh: &Mesh, world: &Communicator| {
        act(mesh, world, with);
        let rank = world.rank().0;
        for other in (0..world.size()).filter(|other| *other != rank) {
            let link = mesh.link_to(world.group().node(Rank(other)).expect("a member")).expect("it lives");
            let expected = match (places[rank as usize], places[other as usize]) {
                (Place::Tcp, _) | (_, Place::Tcp) => Medium::Tcp,
                (Place::In(one), Place::In(two)) if one == two => Medium::InProcess,
                _ => Medium::SharedMemory,
            };
            assert_eq!(mesh.node().link(link).expect("it stands").medium(), expected, "from {rank} to {other}");
        }
    };
    together_with(places.len() as u32, Medium::InProcess, change, |_| Table::default(), body);
}

/// No board, but links of each kind.
const ALL_MEDIA: [Place; 7] =
    [Place::Alone, Place::Tcp, Place::In(0), Place::Tcp, Place::In(0), Place::Tcp, Place::In(0)];

/// Boards on which some are neighbours and some are not.
const SOME_NEIGHBOURS: [&[Place]; 3] = [
    &[Place::In(0), Place::In(0), Place::Alone],
    &[Place::Alone, Place::In(0), Place::Alone, Place::In(0)],
    &[Place::In(0), Place::In(1), Place::In(1), Place::In(0), Place::Alone],
];

#[test]
fn short_tensors_over_all_media_at_once() {
    mixed(&ALL_MEDIA[..3], short);
    mixed(&ALL_MEDIA, short);
}

#[test]
fn long_tensors_over_all_media_at_once() {
    mixed(&ALL_MEDIA[..5], long);
}

#[test]
fn short_tensors_among_some_neighbours() {
    SOME_NEIGHBOURS[..2].iter().for_each(|places| mixed(places, short));
}

#[test]
fn long_tensors_among_some_neighbours() {
    SOME_NEIGHBOURS.into_iter().for_each(|places| mixed(places, long));
}

/// A mesh over several hosts, as far as its nodes know: rank r runs on host r mod `hosts`.
fn over_hosts(ranks: u32, hosts: u32, with: fn(&mut Actor<'_>)) {
    let change = move |rank: u32, config: &mut Config| {
        config.node.host_id = Some(format!("host {}", rank % hosts));
        (config.node.transport, config.node.neighbourhood) = (Transport::Auto, None);
    };
    let body = move |mesh: &Mesh, world: &Communicator| {
        act(mesh, world, with);
        let other = if ranks > hosts { Rank((world.rank().0 + hosts) % ranks) } else { world.rank() };
        if other.0 % hosts == world.rank().0 % hosts && other != world.rank() {
            let link = mesh.link_to(world.group().node(other).expect("a member")).expect("it lives");
            assert_eq!(mesh.node().link(link).expect("it stands").medium(), Medium::SharedMemory);
        }
    };
    together_with(ranks, Medium::SharedMemory, change, |_| Table::default(), body);
}

#[test]
fn short_tensors_over_several_hosts() {
    over_hosts(3, 2, short);
    over_hosts(5, 3, short);
    over_hosts(4, 2, short);
}

#[test]
fn long_tensors_over_several_hosts() {
    over_hosts(5, 2, long);
    over_hosts(7, 3, long);
}
