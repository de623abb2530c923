//! The shortest way through a link, per medium.

use sheave_base::Tag;
use sheave_net::{Envelope, Node, NodeConfig, Outgoing, Wanted, inproc, shm};
use sheave_tensor::{Mode, Tensor};
use smallvec::SmallVec;

#[test]
fn ping() {
    for medium in ["inproc", "shm"] {
        let (one, other) =
            (Node::start(NodeConfig::named("one")).unwrap(), Node::start(NodeConfig::named("other")).unwrap());
        let (link, back) =
            if medium == "shm" { shm::connect(&one, &other) } else { inproc::connect(&one, &other) }.unwrap();
        for size in [2usize, 2000, 100_000, 3_000_000] {
            let values: Vec<f32> = (0..size).map(|at| at as f32).collect();
            let tensor = Tensor::from_slice(&values, [size as u64]).unwrap();
            let sender = {
                let one = one.clone();
                std::thread::spawn(move || {
                    one.send(link, Outgoing::tensor(Envelope::data(0, Tag(7)), tensor, Mode::Copy), None, None)
                        .unwrap();
                })
            };
            let wanted = Wanted { source: Some(back), context: 0, tag: Tag(7) };
            let message = other.recv(wanted, SmallVec::new(), None, None).unwrap();
            assert_eq!(message.parts[0].to_vec::<f32>().unwrap(), values);
            sender.join().unwrap();
        }
    }
}
