//! One rank's part in an operation: its tensors, what goes into them, what must come out.

use super::case::{Case, ELEMENT_BYTES, Memory, Operation};
use sheave_base::{Error, ErrorKind, Rank, Result};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::{Arena, Dtype, Shape, Tensor};

/// Added to the values of each further piece of a tensor, so that pieces differ as ranks do.
const PIECE_STEP: usize = 100;

/// Tag of the messages of a ping-pong.
const TAG: u64 = 1;

pub(super) struct Part {
    world: Communicator,
    operation: Operation,
    input: Tensor,
    output: Tensor,
    /// Elements of a tensor of the case's size.
    count: usize,
    turn: u32,
}

impl Part {
    pub(super) fn new(world: &Communicator, arena: &Arena, case: Case, bytes: usize) -> Result<Self> {
        let [inputs, outputs] = case.operation.tensors(world.size());
        let of_output = match case.operation {
            Operation::ReduceScatter => bytes / world.size() as usize,
            // These have one tensor.
            Operation::AllReduce | Operation::Broadcast | Operation::PingPong => 0,
            _ => bytes * outputs,
        };
        let make = |bytes: usize| {
            let shape = Shape::new(&[(bytes / ELEMENT_BYTES) as u64])?;
            match case.memory {
                Memory::Arena => Tensor::empty(arena, Dtype::F32, shape),
                Memory::Private => Tensor::private(Dtype::F32, shape),
            }
        };
        let (input, output) = (make(bytes * inputs)?, make(of_output)?);
        let count = bytes / ELEMENT_BYTES;
        Ok(Self { world: world.clone(), operation: case.operation, input, output, count, turn: 0 })
    }

    /// Rewrites the input.
    pub(super) fn fill(&mut self, value: f32) -> Result<()> {
        self.input.as_mut_slice::<f32>()?.fill(value);
        Ok(())
    }

    /// Takes part in the operation once. Roots take turns, so that none of them runs ahead of the others.
    pub(super) fn run(&mut self) -> Result<()> {
        let (world, input, output) = (&self.world, &self.input, &self.output);
        let root = Rank(self.turn % world.size());
        let at_root = root == world.rank();
        self.turn += 1;
        let work = match self.operation {
            Operation::AllReduce => world.all_reduce(input, input, Operator::Sum),
            Operation::Broadcast => world.broadcast(input, root),
            Operation::AllGather => world.all_gather(input, output),
            Operation::ReduceScatter => world.reduce_scatter(input, output, Operator::Sum),
            Operation::Reduce => world.reduce(input, at_root.then_some(output), Operator::Sum, root),
            Operation::Gather => world.gather(input, at_root.then_some(output), root),
            Operation::Scatter => world.scatter(at_root.then_some(input), output, root),
            Operation::AllToAll => world.all_to_all(input, output),
            Operation::Barrier => world.barrier(),
            Operation::PingPong => return self.ping_pong(),
        };
        work.wait().map(drop)
    }

    fn ping_pong(&self) -> Result<()> {
        let other = Rank(1 - self.world.rank().0);
        let send = || self.world.send(&self.input, other, TAG).wait().map(drop);
        let receive = || self.world.recv(&self.input, Some(other), TAG).wait().map(drop);
        if other.0 == 1 {
            send()?;
            receive()
        } else {
            receive()?;
            send()
        }
    }

    /// Takes part once with values that differ by rank and piece, and looks at what comes out.
    pub(super) fn check(&mut self) -> Result<()> {
        let (rank, ranks) = (self.world.rank().0 as usize, self.world.size() as usize);
        let root = self.turn as usize % ranks;
        let length = self.input.elements();
        let value = |of: usize, at: usize| of + 1 + PIECE_STEP * (at * ranks / length.max(1));
        let sum = |at: usize| ranks * (ranks + 1) / 2 + ranks * (value(0, at) - 1);
        for (at, element) in self.input.as_mut_slice::<f32>()?.iter_mut().enumerate() {
            *element = value(rank, at) as f32;
        }
        self.run()?;
        let (count, piece) = (self.count, self.count / ranks);
        match self.operation {
            Operation::AllReduce => expect(&self.input, sum),
            Operation::Broadcast => expect(&self.input, |at| value(root, at)),
            Operation::PingPong => expect(&self.input, |at| value(0, at)),
            Operation::AllGather => expect(&self.output, |at| value(at / count, at % count)),
            Operation::ReduceScatter => expect(&self.output, |at| sum(rank * piece + at)),
            Operation::Scatter => expect(&self.output, |at| value(root, rank * count + at)),
            Operation::AllToAll => expect(&self.output, |at| value(at / piece, rank * piece + at % piece)),
            Operation::Reduce if rank == root => expect(&self.output, sum),
            Operation::Gather if rank == root => expect(&self.output, |at| value(at / count, at % count)),
            Operation::Reduce | Operation::Gather | Operation::Barrier => Ok(()),
        }
    }
}

fn expect(tensor: &Tensor, expected: impl Fn(usize) -> usize) -> Result<()> {
    let elements = tensor.as_slice::<f32>()?;
    let wrong = elements.iter().enumerate().find(|&(at, element)| *element != expected(at) as f32);
    let Some((at, element)) = wrong else { return Ok(()) };
    let what = format!("element {at} is {element} where {} was expected", expected(at));
    Err(Error::new(ErrorKind::Internal, what))
}
