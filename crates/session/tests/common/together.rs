//! Functions of workers that work together.

use sheave_base::{Rank, Result};
use sheave_session::{Foreign, Function, Held, Worker, registered_function};
use sheave_tensor::Tensor;
use sheave_wire::Value;
use std::any::Any;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// Of rows for queries, keys and values, one behind the other, the heads of each shard: fills the tensor that it gets.
fn heads(source: &Tensor, [shards, queries, others]: [usize; 3], target: &Tensor) -> Result<()> {
    let all = source.to_vec::<f32>()?;
    let head = all.len() / (queries + 2 * others);
    let mut made = Vec::with_capacity(all.len());
    for shard in 0..shards {
        let mut first = 0;
        for heads in [queries, others, others] {
            let own = heads / shards * head;
            made.extend(all[first + shard * own..][..own].iter().flat_map(|number| number.to_ne_bytes()));
            first += heads * head;
        }
    }
    target.overwrite(&made, "test")
}

/// An object of another language, whose memory is this tensor.
struct Box(Tensor);

impl Foreign for Box {
    fn kind_name(&self) -> String {
        "a box".to_owned()
    }

    fn value(&self) -> Result<(Value, Vec<Tensor>)> {
        Ok((Value::Tensor(0), vec![self.0.clone()]))
    }

    fn function(&self) -> Option<Function> {
        None
    }
}

/// An object that is counted while it lives.
struct Counted;

/// How many there are in this process.
static COUNTED: AtomicUsize = AtomicUsize::new(0);

impl Counted {
    fn new() -> Self {
        COUNTED.fetch_add(1, SeqCst);
        Self
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        COUNTED.fetch_sub(1, SeqCst);
    }
}

pub(crate) fn counted() -> usize {
    COUNTED.load(SeqCst)
}

pub(super) fn all() -> Vec<Function> {
    vec![
        Function::typed("the first waits", |()| match Worker::current()? {
            first if first.id == 0 => first.world()?.barrier().wait(),
            _ => Ok(()),
        }),
        Function::new("counted", |_| Ok(Held::Object(Arc::new(Counted::new())))),
        Function::new("box", |mut arguments| Ok(Held::Foreign(Arc::new(Box(arguments.take()?))))),
        Function::new("unbox", |mut arguments| match arguments.take_held()? {
            Held::Foreign(object) => {
                let object: Arc<dyn Any + Send + Sync> = object;
                let object = object.downcast::<Box>().expect("there is no other kind");
                Ok(Held::of(object.0.to_vec::<f32>()?))
            }
            _ => unreachable!("it is boxed"),
        }),
        Function::typed("heads", |(source, shards, queries, others, target): (Tensor, usize, usize, usize, Tensor)| {
            heads(&source, [shards, queries, others], &target)
        }),
        Function::typed("flat heads", |(source, target): (Tensor, Tensor)| source.reshape(target.shape())),
        Function::typed("no cut", |(source, _): (Tensor, Tensor)| Ok(source)),
        Function::typed("panic cut", |(_, _): (Tensor, Tensor)| -> Result<()> { panic!("no luck") }),
        Function::typed("own", |(length, by): (u64, f32)| {
            let first = Worker::current()?.id as f32 * by;
            let own: Vec<f32> = (0..length).map(|number| first + number as f32).collect();
            Tensor::from_slice(&own, [length])
        }),
        Function::typed("meet unless", |(unlucky,): (u32,)| {
            let worker = Worker::current()?;
            if worker.id == unlucky { Ok(()) } else { worker.world()?.barrier().wait() }
        }),
        Function::new("group 0 sends to 1", |mut arguments| {
            let (worker, tensor) = (Worker::current()?, arguments.take_held()?);
            let name =
                if worker.group() == 0 { "sheave.send_to_next_group" } else { "sheave.recv_from_previous_group" };
            registered_function(name).expect("it is built in").call(vec![tensor])
        }),
        Function::new("worker 2 sends to 0", |mut arguments| {
            let tensor = arguments.take_held()?;
            let call = |name: &str, more: &[u32]| {
                let arguments = std::iter::once(tensor.clone()).chain(more.iter().map(|number| Held::of(*number)));
                registered_function(name).expect("it is built in").call(arguments.collect())
            };
            match Worker::current()?.id {
                0 => call("sheave.recv_from_worker", &[2]),
                2 => call("sheave.send_to_worker", &[0]),
                _ => Ok(Held::default()),
            }
        }),
        Function::new("first sends", |mut arguments| match Worker::current()?.id {
            0 => {
                let arguments = vec![arguments.take_held()?, arguments.take_held()?];
                registered_function("sheave.send_to_worker").expect("it is built in").call(arguments)
            }
            _ => Ok(Held::default()),
        }),
        Function::new("ring", |_| {
            let world = Worker::current()?.world()?;
            let (rank, size) = (world.rank().0, world.size());
            let (own, left) = (Tensor::from_slice(&[rank], [1])?, Tensor::from_slice(&[99_u32], [1])?);
            let sent = world.send(&own, Rank((rank + 1) % size), 7);
            world.recv(&left, Some(Rank((rank + size - 1) % size)), 7).wait()?;
            sent.wait()?;
            Ok(Held::of(left.to_vec::<u32>()?[0]))
        }),
    ]
}
