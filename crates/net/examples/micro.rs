//! scratch
use sheave_base::Tag;
use sheave_net::*;
use sheave_tensor::{Dtype, Mode, Tensor};
use smallvec::smallvec;
use std::time::Instant;
fn main() {
    let (one, other) =
        (Node::start(NodeConfig::named("one")).unwrap(), Node::start(NodeConfig::named("other")).unwrap());
    let (link, back) = shm::connect(&one, &other).unwrap();
    let src = Tensor::empty(one.arena(), Dtype::U8, [8]).unwrap();
    let dst = Tensor::empty(other.arena(), Dtype::U8, [8]).unwrap();
    let (mut a, mut b) = (0u128, 0u128);
    let n = 300_000;
    for _ in 0..n {
        let t0 = Instant::now();
        one.send(link, Outgoing::tensor(Envelope::data(0, Tag(7)), src.clone(), Mode::Copy), None, None).unwrap();
        let t1 = Instant::now();
        other.recv(Wanted { source: Some(back), context: 0, tag: Tag(7) }, smallvec![dst.clone()], None, None).unwrap();
        let t2 = Instant::now();
        a += (t1 - t0).as_nanos();
        b += (t2 - t1).as_nanos();
    }
    println!("send {} ns, recv {} ns", a / n, b / n);
}
