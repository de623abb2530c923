//! Pools of threads.

use crate::common::{PATIENCE, host};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result, Work};
use sheave_pool::{Functions, ThreadPool};
use sheave_tensor::Tensor;
use std::sync::{Arc, OnceLock, Weak};

#[test]
fn threads_run_functions_by_their_names() {
    let mesh = host(Transport::Auto);
    let functions = Functions::new()
        .on("add", |(one, other): (i64, i64)| Ok(one + other))
        .on("double", |(tensor,): (Tensor,)| Tensor::from_slice(&tensor.to_vec::<f32>()?.repeat(2), [4]))
        .on("panic", |()| -> Result<()> { panic!("it was to") });
    let pool = ThreadPool::start(&mesh, 3, functions).expect("the node is there");
    let works: Vec<Work<i64>> = (0..500).map(|number| pool.call("add", (number, 1)).expect("it is sent")).collect();
    for (number, work) in (0..).zip(works) {
        assert_eq!(work.wait_timeout(PATIENCE).expect("a sum"), number + 1);
    }
    let tensor = Tensor::from_slice(&[1.0_f32, 2.0], [2]).expect("memory");
    let doubled =
        pool.call::<Tensor>("double", (tensor,)).expect("it is sent").wait_timeout(PATIENCE).expect("a tensor");
    assert_eq!(doubled.to_vec::<f32>().expect("it is read"), [1.0, 2.0, 1.0, 2.0]);
    let error = pool.call::<()>("panic", ()).expect("it is sent").wait_timeout(PATIENCE).expect_err("it panics");
    assert!(error.to_string().contains("it was to"), "{error}");
    let error = pool.call::<()>("nothing", ()).expect("it is sent").wait_timeout(PATIENCE).expect_err("there is none");
    assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("add, double, panic"), "{error}");
    assert_eq!(ThreadPool::start(&mesh, 0, Functions::new()).expect_err("none").kind(), ErrorKind::InvalidArgument);
}

/// Each function waits for two others of the same pool, six deep: more than there are threads.
#[test]
fn functions_that_wait_for_others_of_their_pool_do_not_hang() {
    let mesh = host(Transport::Auto);
    let own: Arc<OnceLock<Weak<ThreadPool>>> = Arc::default();
    let known = Arc::clone(&own);
    let count = move |(depth,): (i64,)| -> Result<i64> {
        if depth == 0 {
            return Ok(1);
        }
        let pool = known.get().and_then(Weak::upgrade).expect("it is there");
        let works = [pool.call::<i64>("count", (depth - 1,))?, pool.call("count", (depth - 1,))?];
        works.iter().map(Work::wait).sum()
    };
    let pool = Arc::new(ThreadPool::start(&mesh, 2, Functions::new().on("count", count)).expect("the node is there"));
    own.set(Arc::downgrade(&pool)).expect("it is set once");
    assert_eq!(pool.call::<i64>("count", (6,)).expect("it is sent").wait_timeout(PATIENCE).expect("a count"), 64);
}
