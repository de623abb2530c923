//! Segments of a peer are mapped once, kept while their owner and the link are there, and no longer.

use crate::common::{config, receive, send, soon};
use sheave_base::LinkId;
use sheave_net::{Node, Transport, shm};
use sheave_tensor::{ArenaConfig, Dtype, Mode, Tensor};
use std::time::{Duration, Instant};

const BYTES: u64 = 16 << 20;

struct Two {
    owner: Node,
    forth: LinkId,
    user: Node,
    back: LinkId,
}

impl Two {
    fn linked() -> Self {
        // So that the tensor has a segment of its own.
        let mut owner = config("owner", Transport::Shm);
        owner.arena = ArenaConfig { first_segment_bytes: 1 << 20, ..ArenaConfig::default() };
        let owner = Node::start(owner).expect("a node");
        let user = Node::start(config("user", Transport::Shm)).expect("a node");
        let (forth, back) = shm::connect(&owner, &user).expect("two nodes of one host");
        Self { owner, forth, user, back }
    }

    fn tensor(&self) -> Tensor {
        Tensor::empty(self.owner.arena(), Dtype::U8, [BYTES]).expect("room")
    }

    /// Shares the tensor, and returns where it lies in the memory of the user, who has dropped it.
    fn share(&self, tensor: &Tensor) -> usize {
        send(&self.owner, self.forth, 1, tensor.clone(), Mode::Share).expect("the link stands");
        let got = receive(&self.user, Some(self.back), 1).expect("a message").into_tensor().expect("one");
        got.ptr().addr()
    }
}

fn inode(tensor: &Tensor) -> u64 {
    tensor.buffer().location().expect("it lies in shared memory").segment.inode()
}

/// How often this process, which is both nodes, has the file mapped.
fn mappings(inode: u64) -> usize {
    let maps = std::fs::read_to_string("/proc/self/maps").expect("Linux");
    let is_of = |line: &&str| line.split_whitespace().nth(4) == Some(inode.to_string().as_str());
    maps.lines().filter(is_of).count()
}

fn until_mapped(inode: u64, times: usize) {
    let until = soon();
    while mappings(inode) != times {
        assert!(Instant::now() < until, "mapped {} times, and not {times}", mappings(inode));
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn what_is_shared_again_and_again_is_mapped_once() {
    let two = Two::linked();
    let tensor = two.tensor();
    let inode = inode(&tensor);
    assert_eq!(mappings(inode), 1, "its owner's");
    let there = two.share(&tensor);
    for _ in 0..20 {
        assert_eq!(mappings(inode), 2, "the user's stays, though no tensor of the user's is there");
        assert_eq!(two.share(&tensor), there);
    }
}

/// The system gets memory back that its owner gives up: the peer is told with a beat, and keeps none of it alive.
#[test]
fn what_its_owner_gives_up_is_unmapped() {
    let two = Two::linked();
    let tensor = two.tensor();
    let inode = inode(&tensor);
    two.share(&tensor);
    until_mapped(inode, 2);
    drop(tensor);
    // The loan comes home with the user's next progress, and then nothing lies in the segment.
    let until = soon();
    while two.owner.arena().stats().used_bytes > 0 {
        assert!(Instant::now() < until, "the loan does not come home");
        std::thread::sleep(Duration::from_millis(1));
    }
    two.owner.arena().trim();
    until_mapped(inode, 0);
}

#[test]
fn what_was_mapped_goes_with_the_link() {
    let two = Two::linked();
    let tensor = two.tensor();
    let inode = inode(&tensor);
    two.share(&tensor);
    until_mapped(inode, 2);
    two.user.close(two.back).expect("it stands");
    until_mapped(inode, 1);
}
