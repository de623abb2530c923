//! A network that is cut and heals before anybody may be declared dead. Two namespaces of this host, a pair of virtual
//! interfaces between them, and a queue that swallows all that is sent: what the kernel's own timers make of it.

use crate::support::*;
use sheave_base::{ErrorKind, LinkId};
use sheave_net::{Address, ListenConfig, Node, NodeConfig, Transport};
use smallvec::SmallVec;
use std::net::SocketAddr;
use std::process::Command;
use std::sync::mpsc;
use std::time::{Duration, Instant};

fn run(command: &str) {
    let words: Vec<&str> = command.split(' ').collect();
    let output = Command::new(words[0]).args(&words[1..]).output().expect(command);
    assert!(output.status.success(), "{command}: {}", String::from_utf8_lossy(&output.stderr));
}

/// Two namespaces with a cable between them.
struct Cable {
    names: [String; 2],
}

impl Cable {
    fn lay(number: usize) -> Self {
        let name = |side: &str| format!("sheave-{}-{number}{side}", std::process::id());
        let cable = Self { names: [name("a"), name("b")] };
        cable.names.iter().for_each(|name| run(&format!("ip netns add {name}")));
        let [left, right] = &cable.names;
        run(&format!("ip link add cable netns {left} type veth peer name cable netns {right}"));
        for (name, address) in cable.names.iter().zip(["10.91.0.1/24", "10.91.0.2/24"]) {
            run(&format!("ip -n {name} address add {address} dev cable"));
            run(&format!("ip -n {name} link set cable up"));
            run(&format!("ip -n {name} link set lo up"));
        }
        cable
    }

    /// Nothing that is sent arrives any more, and nobody is told.
    fn cut(&self) {
        self.names.iter().for_each(|name| run(&format!("tc -n {name} qdisc add dev cable root blackhole")));
    }

    fn heal(&self) {
        self.names.iter().for_each(|name| run(&format!("tc -n {name} qdisc del dev cable root")));
    }

    /// Makes the calling thread, and those that it starts, live at one end.
    fn enter(&self, side: usize) {
        use std::os::fd::AsRawFd;
        let space = std::fs::File::open(format!("/run/netns/{}", self.names[side])).unwrap();
        // SAFETY: the descriptor is a network namespace's.
        let outcome = unsafe { libc::setns(space.as_raw_fd(), libc::CLONE_NEWNET) };
        assert_eq!(outcome, 0, "{}", std::io::Error::last_os_error());
    }
}

impl Drop for Cable {
    fn drop(&mut self) {
        for name in &self.names {
            let _ = Command::new("ip").args(["netns", "del", name]).status();
        }
    }
}

/// Two nodes at the ends of the cable, linked over TCP.
fn linked_by(cable: &Cable) -> ((Node, LinkId), (Node, LinkId)) {
    std::thread::scope(|scope| {
        let (tell, told) = mpsc::channel::<Address>();
        let node = |name: &str| Node::start(NodeConfig { transport: Transport::Tcp, ..config(name) }).unwrap();
        let listens = scope.spawn(move || {
            cable.enter(1);
            let server = node("server");
            let tcp = Some(SocketAddr::from(([10, 91, 0, 2], 0)));
            tell.send(server.listen(ListenConfig { tcp, unix: false, unix_name: None, insecure: true }).unwrap())
                .unwrap();
            let link = server.accept().wait_timeout(LIMIT).unwrap();
            (server, link)
        });
        let connects = scope.spawn(move || {
            cable.enter(0);
            let worker = node("worker");
            let link = worker.connect(&told.recv().unwrap(), soon()).unwrap();
            (worker, link)
        });
        (connects.join().unwrap(), listens.join().unwrap())
    })
}

/// Cuts the cable for so long while both sides talk, and says how long it took afterwards until both were heard again.
fn survives(number: usize, cut: Duration, phase: Duration) -> Duration {
    let cable = Cable::lay(number);
    let ((worker, forth), (server, back)) = linked_by(&cable);
    for tag in [1, 2] {
        worker.send(forth, copied(tag, &bytes_tensor(8, 1)), Some(soon()), None).unwrap();
        receive(&server, back, tag, SmallVec::new()).unwrap();
    }
    // Where between two beats the cut falls is what decides whether the last moment is enough.
    std::thread::sleep(phase);
    cable.cut();
    let begun = Instant::now();
    let sides = [(&worker, forth), (&server, back)];
    let waiting = sides.map(|(node, link)| node.irecv(wanted(link, 7), SmallVec::new()).unwrap());
    for (node, link) in sides {
        node.isend(link, copied(7, &bytes_tensor(8, 1))).unwrap();
    }
    std::thread::sleep(cut.saturating_sub(begun.elapsed()));
    cable.heal();
    let healed = Instant::now();
    for waiting in waiting {
        waiting.join_timeout(LIMIT).unwrap_or_else(|error| panic!("a cut of {cut:?}, phase {phase:?}: {error}"));
    }
    healed.elapsed()
}

#[test]
#[ignore = "adversity suite: needs root"]
fn f91_a_cut_that_heals_in_time_ends_nothing() {
    let cuts: Vec<(u64, u64)> =
        [3300, 4000, 4500].iter().flat_map(|cut| [0, 450, 900].map(|phase| (*cut, phase))).collect();
    std::thread::scope(|scope| {
        for (number, (cut, phase)) in cuts.into_iter().enumerate() {
            scope.spawn(move || {
                survives(number, Duration::from_millis(cut), Duration::from_millis(phase));
            });
        }
    });
}

#[test]
#[ignore = "adversity suite: needs root"]
fn f91_a_cut_that_does_not_heal_is_a_death_in_time() {
    let cable = Cable::lay(99);
    let ((worker, forth), (server, back)) = linked_by(&cable);
    cable.cut();
    let begun = Instant::now();
    for (node, link) in [(&worker, forth), (&server, back)] {
        let error = receive(node, link, 7, SmallVec::new()).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::PeerLost, "{error}");
        // The timeout of five seconds, counted from the sign of life that was due last.
        assert!(begun.elapsed() < Duration::from_millis(6500), "{:?}", begun.elapsed());
    }
}
