//! One rank that calls any operation, by number, with inputs that all ranks can compute, and looks at what it gives:
//! the whole correct result or an error, and inputs that are as they were.

use super::oracle::{Memory, encode, numbers, reduced};
use super::wait;
use sheave_base::{Rank, Result, Work};
use sheave_collective::{Communicator, Operator};
use sheave_tensor::{Arena, Dtype, Tensor};

const DTYPE: Dtype = Dtype::F32;

/// Tensors of each rank for an operation on several devices.
const DEVICES: usize = 2;

pub(crate) struct Player {
    world: Communicator,
    arena: Arena,
    memory: Memory,
    rank: u32,
    size: u32,
}

pub(crate) type Operation = fn(&Player, u64, usize) -> Result<()>;

/// Everything that a group can do, but for lists of one tensor for each rank: seeds are known by what they draw here.
pub(crate) const OPERATIONS: [Operation; 20] = [
    |player, _, _| wait(&player.world.barrier()),
    Player::broadcast,
    Player::reduce,
    Player::all_reduce,
    Player::all_reduce_in_place,
    Player::gather,
    Player::all_gather,
    Player::all_gather_v,
    Player::scatter,
    Player::reduce_scatter,
    Player::all_to_all,
    Player::all_to_all_v,
    Player::all_reduce_list,
    Player::broadcast_list,
    Player::all_gather_list,
    Player::reduce_scatter_list,
    Player::all_reduce_devices,
    Player::reduce_devices,
    Player::all_gather_devices,
    Player::messages,
];

/// Where the one among them stands that not everybody takes part in together.
pub(crate) const MESSAGES: usize = OPERATIONS.len() - 1;

/// Operations on lists of one tensor for each rank.
pub(crate) const PIECES: [Operation; 5] = [
    Player::all_gather_pieces,
    Player::gather_pieces,
    Player::scatter_pieces,
    Player::reduce_scatter_pieces,
    Player::all_to_all_pieces,
];

impl Player {
    pub(crate) fn new(world: &Communicator, arena: &Arena, memory: Memory) -> Self {
        let (rank, size) = (world.rank().0, world.size());
        Self { world: world.clone(), arena: arena.clone(), memory, rank, size }
    }

    /// What rank `rank` gives.
    fn given(rank: u32, count: usize, salt: u64) -> Vec<f64> {
        numbers(DTYPE, rank, count, salt)
    }

    fn all(&self, count: usize, salt: u64) -> Vec<Vec<f64>> {
        (0..self.size).map(|rank| Self::given(rank, count, salt)).collect()
    }

    fn own(&self, count: usize, salt: u64) -> Tensor {
        self.memory.filled(&self.arena, self.rank, DTYPE, &Self::given(self.rank, count, salt))
    }

    fn empty(&self, count: usize) -> Tensor {
        self.memory.filled(&self.arena, self.rank + 1, DTYPE, &vec![-9.0; count])
    }

    fn root(&self, salt: u64) -> u32 {
        (salt % u64::from(self.size)) as u32
    }

    fn holds(&self, what: &str, tensor: &Tensor, expected: &[f64]) {
        let found = tensor.bytes().expect("the operation has ended");
        assert!(*found == encode(DTYPE, expected)[..], "{what} on rank {} is wrong", self.rank);
    }

    /// Waits for an operation that leaves `input` as it was, however it ends.
    fn end(&self, work: &Work<()>, input: &Tensor, given: &[f64]) -> Result<()> {
        let outcome = wait(work);
        if let Err(error) = &outcome {
            // A link may still read it, and nobody writes it.
            self.holds(&format!("after {error} the input"), input, given);
        }
        outcome
    }

    fn broadcast(&self, salt: u64, count: usize) -> Result<()> {
        let (tensor, root) = (self.own(count, salt), self.root(salt));
        wait(&self.world.broadcast(&tensor, Rank(root)))?;
        self.holds("broadcast", &tensor, &Self::given(root, count, salt));
        Ok(())
    }

    fn reduce(&self, salt: u64, count: usize) -> Result<()> {
        let (input, root) = (self.own(count, salt), self.root(salt));
        let output = (self.rank == root).then(|| self.empty(count));
        let work = self.world.reduce(&input, output.as_ref(), Operator::Sum, Rank(root));
        self.end(&work, &input, &Self::given(self.rank, count, salt))?;
        if let Some(output) = output {
            self.holds("reduce", &output, &reduced(DTYPE, Operator::Sum, &self.all(count, salt)));
        }
        Ok(())
    }

    fn all_reduce(&self, salt: u64, count: usize) -> Result<()> {
        let (input, output) = (self.own(count, salt), self.empty(count));
        let work = self.world.all_reduce(&input, &output, Operator::Sum);
        self.end(&work, &input, &Self::given(self.rank, count, salt))?;
        self.holds("all_reduce", &output, &reduced(DTYPE, Operator::Sum, &self.all(count, salt)));
        Ok(())
    }

    fn all_reduce_in_place(&self, salt: u64, count: usize) -> Result<()> {
        let tensor = self.own(count, salt);
        wait(&self.world.all_reduce(&tensor, &tensor, Operator::Max))?;
        self.holds("all_reduce in place", &tensor, &reduced(DTYPE, Operator::Max, &self.all(count, salt)));
        Ok(())
    }

    fn gather(&self, salt: u64, count: usize) -> Result<()> {
        let (input, root) = (self.own(count, salt), self.root(salt));
        let output = (self.rank == root).then(|| self.empty(count * self.size as usize));
        let work = self.world.gather(&input, output.as_ref(), Rank(root));
        self.end(&work, &input, &Self::given(self.rank, count, salt))?;
        if let Some(output) = output {
            self.holds("gather", &output, &self.all(count, salt).concat());
        }
        Ok(())
    }

    fn all_gather(&self, salt: u64, count: usize) -> Result<()> {
        let (input, output) = (self.own(count, salt), self.empty(count * self.size as usize));
        let work = self.world.all_gather(&input, &output);
        self.end(&work, &input, &Self::given(self.rank, count, salt))?;
        self.holds("all_gather", &output, &self.all(count, salt).concat());
        Ok(())
    }

    fn all_gather_v(&self, salt: u64, count: usize) -> Result<()> {
        let lengths: Vec<usize> = (0..self.size as usize).map(|rank| count * (rank % 3)).collect();
        let own = Self::given(self.rank, lengths[self.rank as usize], salt);
        let input = self.memory.filled(&self.arena, self.rank, DTYPE, &own);
        let output = self.empty(lengths.iter().sum());
        self.end(&self.world.all_gather_v(&input, &output, &lengths), &input, &own)?;
        let all: Vec<f64> =
            lengths.iter().zip(0..).flat_map(|(length, rank)| Self::given(rank, *length, salt)).collect();
        self.holds("all_gather_v", &output, &all);
        Ok(())
    }

    fn scatter(&self, salt: u64, count: usize) -> Result<()> {
        let (root, whole) = (self.root(salt), count * self.size as usize);
        let (output, given) = (self.empty(count), Self::given(root, whole, salt));
        let input = self.memory.filled(&self.arena, self.rank, DTYPE, &given);
        let work = self.world.scatter((self.rank == root).then_some(&input), &output, Rank(root));
        self.end(&work, &input, &given)?;
        self.holds("scatter", &output, &given[count * self.rank as usize..count * (self.rank as usize + 1)]);
        Ok(())
    }

    fn reduce_scatter(&self, salt: u64, count: usize) -> Result<()> {
        let whole = count * self.size as usize;
        let (input, output) = (self.own(whole, salt), self.empty(count));
        let work = self.world.reduce_scatter(&input, &output, Operator::Sum);
        self.end(&work, &input, &Self::given(self.rank, whole, salt))?;
        let sum = reduced(DTYPE, Operator::Sum, &self.all(whole, salt));
        self.holds("reduce_scatter", &output, &sum[count * self.rank as usize..count * (self.rank as usize + 1)]);
        Ok(())
    }

    fn all_to_all(&self, salt: u64, count: usize) -> Result<()> {
        let whole = count * self.size as usize;
        let (input, output) = (self.own(whole, salt), self.empty(whole));
        let work = self.world.all_to_all(&input, &output);
        self.end(&work, &input, &Self::given(self.rank, whole, salt))?;
        let mine = count * self.rank as usize..count * (self.rank as usize + 1);
        let expected: Vec<f64> = self.all(whole, salt).iter().flat_map(|input| input[mine.clone()].to_vec()).collect();
        self.holds("all_to_all", &output, &expected);
        Ok(())
    }

    fn all_to_all_v(&self, salt: u64, count: usize) -> Result<()> {
        let length = |from: u32, to: u32| count * ((from + to) as usize % 2);
        let lengths: Vec<usize> = (0..self.size).map(|other| length(self.rank, other)).collect();
        let own = Self::given(self.rank, lengths.iter().sum(), salt);
        let input = self.memory.filled(&self.arena, self.rank, DTYPE, &own);
        let output = self.empty(lengths.iter().sum());
        self.end(&self.world.all_to_all_v(&input, &lengths, &output, &lengths), &input, &own)?;
        let from = |from: u32| {
            let start: usize = (0..self.rank).map(|to| length(from, to)).sum();
            Self::given(from, count * self.size as usize, salt)[start..start + length(from, self.rank)].to_vec()
        };
        self.holds("all_to_all_v", &output, &(0..self.size).flat_map(from).collect::<Vec<_>>());
        Ok(())
    }

    /// Lengths of a list: some share a bucket and one does not.
    fn lengths(count: usize) -> [usize; 4] {
        [count / 2, 3, 0, count]
    }

    fn list(&self, rank: u32, count: usize, salt: u64, times: usize) -> Vec<Vec<f64>> {
        let of = |(length, index)| Self::given(rank, length * times, salt * 7 + index);
        Self::lengths(count).into_iter().zip(0..).map(of).collect()
    }

    fn tensors(&self, list: &[Vec<f64>]) -> Vec<Tensor> {
        list.iter().zip(0..).map(|(numbers, at)| self.memory.filled(&self.arena, at, DTYPE, numbers)).collect()
    }

    fn empties(&self, count: usize, times: usize) -> Vec<Tensor> {
        Self::lengths(count).map(|length| self.empty(length * times)).into()
    }

    /// As [`Player::end`], for a list of inputs.
    fn end_list(&self, work: &Work<()>, inputs: &[Tensor], given: &[Vec<f64>]) -> Result<()> {
        let outcome = wait(work);
        if outcome.is_err() {
            inputs.iter().zip(given).for_each(|(input, given)| self.holds("an input after an error", input, given));
        }
        outcome
    }

    /// What the list of every rank has at each index.
    fn columns(&self, count: usize, salt: u64, times: usize) -> Vec<Vec<Vec<f64>>> {
        let lists: Vec<_> = (0..self.size).map(|rank| self.list(rank, count, salt, times)).collect();
        (0..lists[0].len()).map(|index| lists.iter().map(|list| list[index].clone()).collect()).collect()
    }

    fn all_reduce_list(&self, salt: u64, count: usize) -> Result<()> {
        let own = self.list(self.rank, count, salt, 1);
        let (inputs, outputs) = (self.tensors(&own), self.empties(count, 1));
        self.end_list(&self.world.all_reduce_list(&inputs, &outputs, Operator::Sum), &inputs, &own)?;
        for (output, inputs) in outputs.iter().zip(self.columns(count, salt, 1)) {
            self.holds("all_reduce_list", output, &reduced(DTYPE, Operator::Sum, &inputs));
        }
        Ok(())
    }

    fn broadcast_list(&self, salt: u64, count: usize) -> Result<()> {
        let (tensors, root) = (self.tensors(&self.list(self.rank, count, salt, 1)), self.root(salt));
        wait(&self.world.broadcast_list(&tensors, Rank(root)))?;
        for (tensor, expected) in tensors.iter().zip(self.list(root, count, salt, 1)) {
            self.holds("broadcast_list", tensor, &expected);
        }
        Ok(())
    }

    fn all_gather_list(&self, salt: u64, count: usize) -> Result<()> {
        let own = self.list(self.rank, count, salt, 1);
        let (inputs, outputs) = (self.tensors(&own), self.empties(count, self.size as usize));
        self.end_list(&self.world.all_gather_list(&inputs, &outputs), &inputs, &own)?;
        for (output, inputs) in outputs.iter().zip(self.columns(count, salt, 1)) {
            self.holds("all_gather_list", output, &inputs.concat());
        }
        Ok(())
    }

    fn reduce_scatter_list(&self, salt: u64, count: usize) -> Result<()> {
        let own = self.list(self.rank, count, salt, self.size as usize);
        let (inputs, outputs) = (self.tensors(&own), self.empties(count, 1));
        self.end_list(&self.world.reduce_scatter_list(&inputs, &outputs, Operator::Sum), &inputs, &own)?;
        for (output, inputs) in outputs.iter().zip(self.columns(count, salt, self.size as usize)) {
            let at = output.elements() * self.rank as usize;
            let sum = reduced(DTYPE, Operator::Sum, &inputs);
            self.holds("reduce_scatter_list", output, &sum[at..at + output.elements()]);
        }
        Ok(())
    }

    /// The tensors of a rank on its devices, and those of all ranks.
    fn replicas(&self, count: usize, salt: u64) -> (Vec<Tensor>, Vec<Vec<f64>>) {
        let of = |rank: u32| (0..DEVICES as u64).map(move |at| Self::given(rank, count, salt * 5 + at));
        (self.tensors(&of(self.rank).collect::<Vec<_>>()), (0..self.size).flat_map(of).collect())
    }

    fn all_reduce_devices(&self, salt: u64, count: usize) -> Result<()> {
        let (tensors, all) = self.replicas(count, salt);
        wait(&self.world.all_reduce_devices(&tensors, Operator::Sum))?;
        let sum = reduced(DTYPE, Operator::Sum, &all);
        tensors.iter().for_each(|tensor| self.holds("all_reduce_devices", tensor, &sum));
        Ok(())
    }

    fn reduce_devices(&self, salt: u64, count: usize) -> Result<()> {
        let ((inputs, all), root) = (self.replicas(count, salt), self.root(salt));
        let output = (self.rank == root).then(|| self.empty(count));
        let work = self.world.reduce_devices(&inputs, output.as_ref(), Operator::Sum, Rank(root));
        self.end_list(&work, &inputs, &all[DEVICES * self.rank as usize..])?;
        if let Some(output) = output {
            self.holds("reduce_devices", &output, &reduced(DTYPE, Operator::Sum, &all));
        }
        Ok(())
    }

    fn all_gather_devices(&self, salt: u64, count: usize) -> Result<()> {
        let (inputs, all) = self.replicas(count, salt);
        let outputs = [self.empty(count * all.len()), self.empty(count * all.len())];
        let work = self.world.all_gather_devices(&inputs, &outputs);
        self.end_list(&work, &inputs, &all[DEVICES * self.rank as usize..])?;
        outputs.iter().for_each(|output| self.holds("all_gather_devices", output, &all.concat()));
        wait(&self.world.broadcast_devices(&outputs, Rank(0)))
    }

    /// One tensor for each rank, by turns in the arena and elsewhere.
    fn pieces(&self, lengths: impl IntoIterator<Item = usize>) -> Vec<Tensor> {
        let empty = |(length, at): (usize, u32)| self.memory.filled(&self.arena, at, DTYPE, &vec![-9.0; length]);
        lengths.into_iter().zip(0..).map(empty).collect()
    }

    /// Numbers of one tensor for each rank.
    fn cut(numbers: &[f64], lengths: &[usize]) -> Vec<Vec<f64>> {
        let mut rest = numbers;
        let one = |length: &usize| {
            let (piece, after) = rest.split_at(*length);
            rest = after;
            piece.to_vec()
        };
        lengths.iter().map(one).collect()
    }

    fn hold(&self, what: &str, pieces: &[Tensor], expected: &[Vec<f64>]) {
        assert_eq!(pieces.len(), expected.len());
        pieces.iter().zip(expected).for_each(|(piece, expected)| self.holds(what, piece, expected));
    }

    fn all_gather_pieces(&self, salt: u64, count: usize) -> Result<()> {
        // By turns of one length and of different ones.
        let length = |rank: u32| if salt.is_multiple_of(2) { count } else { count * (rank as usize % 3) };
        let own = Self::given(self.rank, length(self.rank), salt);
        let input = self.memory.filled(&self.arena, self.rank, DTYPE, &own);
        let outputs = self.pieces((0..self.size).map(length));
        self.end(&self.world.all_gather_pieces(&input, &outputs), &input, &own)?;
        let expected: Vec<_> = (0..self.size).map(|rank| Self::given(rank, length(rank), salt)).collect();
        self.hold("all_gather_pieces", &outputs, &expected);
        Ok(())
    }

    fn gather_pieces(&self, salt: u64, count: usize) -> Result<()> {
        let (input, root) = (self.own(count, salt), self.root(salt));
        let outputs = (self.rank == root).then(|| self.pieces((0..self.size).map(|_| count)));
        let work = self.world.gather_pieces(&input, outputs.as_deref(), Rank(root));
        self.end(&work, &input, &Self::given(self.rank, count, salt))?;
        if let Some(outputs) = outputs {
            self.hold("gather_pieces", &outputs, &self.all(count, salt));
        }
        Ok(())
    }

    fn scatter_pieces(&self, salt: u64, count: usize) -> Result<()> {
        let (root, output) = (self.root(salt), self.empty(count));
        let given = Self::cut(&Self::given(root, count * self.size as usize, salt), &vec![count; self.size as usize]);
        let inputs = self.tensors(&given);
        let work = self.world.scatter_pieces((self.rank == root).then_some(&inputs), &output, Rank(root));
        self.end_list(&work, &inputs, &given)?;
        self.holds("scatter_pieces", &output, &given[self.rank as usize]);
        Ok(())
    }

    fn reduce_scatter_pieces(&self, salt: u64, count: usize) -> Result<()> {
        let (whole, lengths) = (count * self.size as usize, vec![count; self.size as usize]);
        let given = Self::cut(&Self::given(self.rank, whole, salt), &lengths);
        let (inputs, output) = (self.tensors(&given), self.empty(count));
        let work = self.world.reduce_scatter_pieces(&inputs, &output, Operator::Sum);
        self.end_list(&work, &inputs, &given)?;
        let sum = Self::cut(&reduced(DTYPE, Operator::Sum, &self.all(whole, salt)), &lengths);
        self.holds("reduce_scatter_pieces", &output, &sum[self.rank as usize]);
        Ok(())
    }

    fn all_to_all_pieces(&self, salt: u64, count: usize) -> Result<()> {
        let lengths = |from: u32| -> Vec<usize> {
            (0..self.size)
                .map(|to| if salt.is_multiple_of(2) { count } else { count * ((from + to) as usize % 2) })
                .collect()
        };
        let cut = |from: u32| Self::cut(&Self::given(from, lengths(from).iter().sum(), salt), &lengths(from));
        let given = cut(self.rank);
        let (inputs, outputs) = (self.tensors(&given), self.pieces(lengths(self.rank)));
        self.end_list(&self.world.all_to_all_pieces(&inputs, &outputs), &inputs, &given)?;
        let expected: Vec<_> = (0..self.size).map(|from| cut(from)[self.rank as usize].clone()).collect();
        self.hold("all_to_all_pieces", &outputs, &expected);
        Ok(())
    }

    /// One message from each rank to the next.
    fn messages(&self, salt: u64, count: usize) -> Result<()> {
        let (next, previous) = ((self.rank + 1) % self.size, (self.rank + self.size - 1) % self.size);
        let (input, place) = (self.own(count, salt), self.empty(count));
        let coming = self.world.recv(&place, Some(Rank(previous)), salt);
        let sent = self.end(&self.world.send(&input, Rank(next), salt), &input, &Self::given(self.rank, count, salt));
        wait(&coming)?;
        self.holds("a message", &place, &Self::given(previous, count, salt));
        sent
    }
}
