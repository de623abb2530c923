//! The torture: its nodes, its troubles, and what is demanded at the end.

mod ledger;
mod part;
mod services;

use crate::meshes::{PATIENCE, config, free_port, until};
use ledger::Ledger;
use part::Part;
use sheave_base::clock::{Entropy, SeededEntropy};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind};
use sheave_mesh::{Expected, Mesh, Role};
use sheave_net::Neighbourhood;
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

/// What this process has of something that must not leak.
fn entries(folder: &str) -> usize {
    std::fs::read_dir(folder).expect("it is there").count()
}

/// Threads and descriptors of this process.
fn held() -> (usize, usize) {
    (entries("/proc/self/task"), entries("/proc/self/fd"))
}

/// Joins all nodes at once.
fn join(media: Media) -> Vec<Mesh> {
    let (port, here) = (free_port(), Neighbourhood::default());
    let mut joining = Vec::new();
    for rank in 0..NODES {
        let transport = if let Media::Link(transport) = media { transport } else { Transport::Auto };
        let mut config = config(Role::Rank, Some(rank), Expected::ranks(NODES), port, transport);
        config.node.neighbourhood = (media == Media::Process).then(|| here.clone());
        config.node.local_ranks = NODES as usize;
        joining.push(std::thread::spawn(move || Mesh::join(config).expect("everybody comes")));
    }
    joining.into_iter().map(|thread| thread.join().expect("no panic")).collect()
}

/// Runs one seed for `span`, and says what has happened.
pub(crate) fn torture(seed: u64, media: Media, span: Duration) -> String {
    let before = held();
    let meshes = join(media);
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
    trouble(&meshes, &ledger, &mut dice, span);
    for part in parts {
        part.join().unwrap_or_else(|_| panic!("a part has panicked: {}", ledger.summary()));
    }
    ledger.settle();
    let survivors = end(meshes, &ledger);
    until(&format!("threads and descriptors are as before ({before:?})"), || {
        let now = held();
        now.0 <= before.0 && now.1 <= before.1
    });
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

fn kill(meshes: &[Mesh], ledger: &Ledger, victims: &[usize]) {
    // All are known before the first dies, whom others will name at once.
    victims.iter().for_each(|victim| ledger.will_die(meshes[*victim].me()));
    victims.iter().for_each(|victim| meshes[*victim].abandon());
}

/// Cuts the link between two nodes, if there is one: one of both will be taken out.
fn cut(one: &Mesh, other: &Mesh, ledger: &Ledger) {
    let leads_there =
        |link: &sheave_base::LinkId| one.node().link(*link).is_ok_and(|link| link.peer().node == Some(other.me().node));
    let Some(link) = one.node().links().into_iter().find(leads_there) else { return };
    ledger.will_die(one.me());
    ledger.will_die(other.me());
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
