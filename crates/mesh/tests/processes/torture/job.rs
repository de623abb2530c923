//! The torture: its nodes, its troubles, and what is demanded at the end.

use super::ledger::Ledger;
use super::part::Part;
use super::{guests, services};
use crate::common::{PATIENCE, config, free_port, until};
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind};
use sheave_mesh::{Expected, Mesh, Role};
use sheave_net::{Neighbourhood, NodeConfig};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How many nodes there are.
const NODES: u32 = 32;

/// What the nodes are linked by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Media {
    /// Without sockets, inside the process.
    Process,
    /// As between processes.
    Link(Transport),
}

impl Media {
    fn transport(self) -> Transport {
        if let Self::Link(transport) = self { transport } else { Transport::Auto }
    }

    pub(crate) fn settle(self, config: &mut NodeConfig, here: &Neighbourhood) {
        config.transport = self.transport();
        config.neighbourhood = (self == Self::Process).then(|| here.clone());
        config.local_ranks = NODES as usize;
    }
}

/// What this process has of what must not leak: the names of its threads, and its descriptors.
#[derive(Debug)]
struct Held {
    threads: Vec<String>,
    descriptors: Vec<String>,
}

fn held() -> Held {
    let entries =
        |folder: &str| std::fs::read_dir(folder).expect("it is there").filter_map(|entry| Some(entry.ok()?.path()));
    // A thread that has ended meanwhile has no name.
    let threads = entries("/proc/self/task").filter_map(|thread| std::fs::read_to_string(thread.join("comm")).ok());
    let target = |descriptor: std::path::PathBuf| Some(std::fs::read_link(descriptor).ok()?.display().to_string());
    Held { threads: threads.collect(), descriptors: entries("/proc/self/fd").filter_map(target).collect() }
}

impl Held {
    fn is_no_more_than(&self, before: &Self) -> bool {
        self.threads.len() <= before.threads.len() && self.descriptors.len() <= before.descriptors.len()
    }
}

/// Joins all nodes at once.
fn join(media: Media, here: &Neighbourhood) -> Vec<Mesh> {
    let port = free_port();
    let mut joining = Vec::new();
    for rank in 0..NODES {
        let mut config = config(Role::Rank, Some(rank), Expected::ranks(NODES), port, media.transport());
        media.settle(&mut config.node, here);
        joining.push(std::thread::spawn(move || Mesh::join(config).expect("everybody comes")));
    }
    joining.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

/// Runs one seed for `span`, and says what has happened.
pub(crate) fn torture(seed: u64, media: Media, span: Duration) -> String {
    let before = held();
    let here = Neighbourhood::default();
    let meshes = join(media, &here);
    let ledger = Arc::new(Ledger::default());
    let until_then = Instant::now() + span;
    let mut dice = SeededEntropy::new(seed);
    for mesh in &meshes {
        services::serve(mesh, &ledger);
    }
    let parts: Vec<_> = meshes
        .iter()
        .map(|mesh| {
            let part = Part::new(mesh, &ledger, media, dice.next_u64());
            let name = format!("part-{}", mesh.me().rank.0);
            let thread = std::thread::Builder::new().name(name);
            thread.spawn(move || part.play(until_then)).expect("a thread")
        })
        .collect();
    // A thread that has waited for a node keeps its doorbell for the next time, until the thread ends.
    let guests = std::thread::scope(|scope| {
        scope.spawn(|| guests::begin(&meshes, &ledger, (media, &here), until_then)).join().expect("no panic")
    });
    trouble(&meshes, &ledger, &mut dice, span);
    for part in parts.into_iter().chain(guests) {
        part.join().unwrap_or_else(|_| panic!("a part has panicked: {}", ledger.summary()));
    }
    ledger.settle();
    let survivors = end(meshes, &ledger);
    let end = Instant::now() + PATIENCE;
    while !held().is_no_more_than(&before) {
        assert!(Instant::now() < end, "{before:?} before, and {:?} is left", held());
        std::thread::sleep(Duration::from_millis(1));
    }
    format!("{survivors} of {NODES} survive, {}", ledger.summary())
}

/// Kills nodes in three waves, the last of which takes the coordinator and its successor, and cuts a link between.
fn trouble(meshes: &[Mesh], ledger: &Ledger, dice: &mut SeededEntropy, span: Duration) {
    let begun = Instant::now();
    let sleep_until = |part: f64| {
        let at = begun + span.mul_f64(part);
        std::thread::sleep(at.saturating_duration_since(Instant::now()));
    };
    let draw = |dice: &mut SeededEntropy| 2 + dice.below(u64::from(NODES) - 2) as usize;
    for (part, count) in [(0.25, 2), (0.45, 3)] {
        sleep_until(part);
        let victims: Vec<usize> = (0..count).map(|_| draw(dice)).collect();
        kill(meshes, ledger, &victims);
    }
    sleep_until(0.6);
    let (one, other) = (draw(dice), draw(dice));
    cut(&meshes[one], &meshes[other], ledger);
    sleep_until(0.75);
    kill(meshes, ledger, &[0, 1]);
}

fn will_die(mesh: &Mesh, ledger: &Ledger) {
    ledger.will_die(mesh.me().node, &mesh.me().introduction.name);
}

fn kill(meshes: &[Mesh], ledger: &Ledger, victims: &[usize]) {
    // All are known before the first dies, whom others will name at once.
    victims.iter().for_each(|victim| will_die(&meshes[*victim], ledger));
    victims.iter().for_each(|victim| meshes[*victim].abandon());
}

/// Cuts the link between two nodes, if there is one: one of both will be taken out.
fn cut(one: &Mesh, other: &Mesh, ledger: &Ledger) {
    let leads_there =
        |link: &sheave_base::LinkId| one.node().link(*link).is_ok_and(|link| link.peer().node == Some(other.me().node));
    let Some(link) = one.node().links().into_iter().find(leads_there) else { return };
    will_die(one, ledger);
    will_die(other, ledger);
    let _ = one.node().abandon(link, &Error::new(ErrorKind::PeerLost, "the test has cut the link"));
}

/// All who live let go of everything and leave together; returns how many those are.
fn end(meshes: Vec<Mesh>, ledger: &Arc<Ledger>) -> usize {
    let living: Vec<bool> = meshes.iter().map(Mesh::is_member).collect();
    for (mesh, lives) in meshes.iter().zip(&living) {
        let is_doomed = ledger.may_die(mesh.me().node);
        assert!(*lives || is_doomed, "{} was taken out, and nobody has touched it", mesh.me().introduction.name);
    }
    ledger.drop_refs();
    until("all objects of living nodes are freed", || ledger.objects_alive() == 0);
    let arenas: Vec<_> = meshes.iter().map(|mesh| mesh.node().arena().clone()).collect();
    let leaving: Vec<_> = meshes
        .into_iter()
        .zip(living)
        .map(|(mesh, lives)| {
            std::thread::spawn(move || {
                for name in services::NAMES {
                    mesh.serve_no_more(name);
                }
                if lives { mesh.leave().map(|()| 1) } else { Ok(0) }
            })
        })
        .collect();
    let survivors = leaving.into_iter().map(|thread| thread.join().expect("no panic").expect("the rest agrees")).sum();
    let used = || arenas.iter().map(|arena| arena.stats().used_bytes).sum::<u64>();
    let end = Instant::now() + PATIENCE;
    while used() > 0 {
        assert!(Instant::now() < end, "{} bytes of the arenas are held by nobody", used());
        std::thread::sleep(Duration::from_millis(1));
    }
    survivors
}
