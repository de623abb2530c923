//! Several processes are killed at once, and in the worst moments: in the middle of an operation, while groups are made
//! and their ranks find each other's memory, while the survivors shrink, while all leave. Whoever is left has the whole
//! right result or an error that names one of the dead, within the bound, and goes on in a group that works. And a job
//! that is stopped as a whole goes on when it is continued.

use crate::common::{PATIENCE, hear, job, note, now_ms, part, say, start_all, until};
use sheave_base::config::Transport;
use sheave_base::{Error, Rank, Result};
use sheave_collective::{Collectives, Communicator, Operator};
use sheave_mesh::Mesh;
use sheave_process::{Child, Job};
use sheave_tensor::{Dtype, Tensor};
use std::time::{Duration, Instant};

/// The bound of the design for everything that a killed process is needed for.
const BOUND_MS: u128 = 1000;

/// After so long a silence a member is dead.
const SILENCE: Duration = Duration::from_secs(3);

const SIGKILL: i32 = 9;
const SIGSTOP: i32 = 19;
const SIGCONT: i32 = 18;
const RANKS: usize = 5;
const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const MOMENT: &str = "SHEAVE_TEST_MOMENT";
const COUNT: &str = "SHEAVE_TEST_COUNT";
/// For how long the job goes on that is stopped meanwhile.
const SPAN: &str = "SHEAVE_TEST_SPAN_MS";

/// Two of them, the coordinator and its successor, and all but one.
const VICTIMS: [&[usize]; 3] = [&[3, 4], &[0, 1], &[0, 1, 2, 3]];

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test has set it")
}

/// Tensors for sums, and what is reduced in them.
struct Sums {
    own: Tensor,
    sum: Tensor,
}

impl Sums {
    fn new(mesh: &Mesh, count: u64) -> Result<Self> {
        let tensor = || Tensor::empty(mesh.node().arena(), Dtype::F32, [count]);
        Ok(Self { own: tensor()?, sum: tensor()? })
    }

    /// One sum of all ranks' numbers, which is right or an error.
    fn reduce(&mut self, world: &Communicator) -> Result<()> {
        let own = world.rank().0 as f32 + 1.0;
        self.own.as_mut_slice::<f32>()?.fill(own);
        let outcome = world.all_reduce(&self.own, &self.sum, Operator::Sum).wait();
        if outcome.is_ok() {
            let expected = (1..=world.size()).map(|rank| rank as f32).sum::<f32>();
            assert!(self.sum.to_vec::<f32>()?.iter().all(|value| *value == expected), "a wrong sum");
        }
        outcome
    }
}

/// One exchange of lists of tensors, which is right or an error.
fn exchange(world: &Communicator, count: u64) -> Result<()> {
    let tensor = |value: f32| Tensor::from_slice(&vec![value; count as usize], [count]);
    let inputs = (0..world.size()).map(|rank| tensor(rank as f32)).collect::<Result<Vec<_>>>()?;
    let outputs = (0..world.size()).map(|_| tensor(-1.0)).collect::<Result<Vec<_>>>()?;
    world.all_to_all_pieces(&inputs, &outputs).wait()?;
    for output in &outputs {
        assert!(output.to_vec::<f32>()?.iter().all(|value| *value == world.rank().0 as f32), "a wrong piece");
    }
    world.all_gather_pieces(&inputs[world.rank().0 as usize], &outputs).wait()?;
    for (rank, output) in outputs.iter().enumerate() {
        assert!(output.to_vec::<f32>()?.iter().all(|value| *value == rank as f32), "a wrong piece");
    }
    Ok(())
}

/// Does it until it fails.
fn until_it_fails(mut act: impl FnMut(u32) -> Result<()>) -> Error {
    let end = Instant::now() + PATIENCE;
    for round in 0.. {
        if let Err(error) = act(round) {
            say(&format!("failed {} {:?} {error}", now_ms(), error.kind()));
            return error;
        }
        if round == 10 {
            say("under way");
        }
        assert!(Instant::now() < end, "nobody was killed");
    }
    unreachable!("there are always more rounds")
}

/// A group of all that is made anew, with what its first operation finds out.
fn make_group(mesh: &Mesh, world: &Communicator, round: u32) -> Result<()> {
    let all: Vec<Rank> = (0..world.size()).map(Rank).collect();
    let group = match round % 2 {
        0 => world.split(Some(0), 0)?.expect("it has a colour"),
        _ => world.subgroup(&format!("group {round}"), &all)?,
    };
    Sums::new(mesh, 100)?.reduce(&group)
}

/// Shrinks until the living are whole, and works with them.
fn go_on(mesh: &Mesh, mut world: Communicator, count: u64) -> Result<u32> {
    let end = Instant::now() + PATIENCE;
    loop {
        world = world.begin_shrink().wait_timeout(PATIENCE)?;
        let mut sums = Sums::new(mesh, count)?;
        match (0..3).try_for_each(|_| sums.reduce(&world)) {
            Ok(()) => return Ok(world.size()),
            // One more has died, or is only now known to have.
            Err(error) => assert!(error.kind().is_loss() && Instant::now() < end, "{error}"),
        }
    }
}

/// Goes on until the first rank says that it is enough, by the clock that does not stop with the process.
fn last(mesh: &Mesh, world: &Communicator, span: Duration) -> Result<()> {
    let (begun, mut sums) = (Instant::now(), Sums::new(mesh, 30_000)?);
    let [mine, all] = [Tensor::from_slice(&[0.0_f32], [1])?, Tensor::from_slice(&[0.0_f32], [1])?];
    say("under way");
    while all.to_vec::<f32>()? == [0.0] {
        sums.reduce(world)?;
        if world.rank() == Rank(0) && begun.elapsed() > span {
            mine.overwrite(&1.0_f32.to_le_bytes(), "test")?;
        }
        world.all_reduce(&mine, &all, Operator::Max).wait()?;
    }
    Ok(())
}

fn play(mesh: &Mesh) -> Result<()> {
    let count = variable(COUNT).parse().expect("a number");
    let world = Collectives::new(mesh)?.group(&mesh.world())?;
    world.barrier().wait()?;
    let mut sums = Sums::new(mesh, count)?;
    match variable(MOMENT).as_str() {
        "groups" => until_it_fails(|round| make_group(mesh, &world, round)),
        "pieces" => until_it_fails(|_| exchange(&world, count)),
        "leave" => {
            (0..5).try_for_each(|_| sums.reduce(&world))?;
            say("under way");
            return Ok(());
        }
        "stop" => {
            let span = Duration::from_millis(variable(SPAN).parse().expect("a number"));
            last(mesh, &world, span)?;
            say("went on");
            return Ok(());
        }
        _ => until_it_fails(|_| sums.reduce(&world)),
    };
    drop(sums);
    // What breaks a group that was made from it is known of the whole in a moment.
    until("the whole has lost somebody", || world.broken().is_some());
    say(&format!("goes-on {}", go_on(mesh, world, count)?));
    Ok(())
}

#[test]
fn actor() {
    let Some(mut config) = part() else { return };
    config.node.liveness.timeout = SILENCE;
    let mesh = Mesh::join(config).expect("everybody comes");
    play(&mesh).expect("the survivors go on");
    mesh.leave().expect("the others agree");
    say("left");
}

fn start(transport: Transport, moment: &str, count: u32) -> (Job, Vec<Child>) {
    start_for(transport, moment, count, Duration::ZERO)
}

fn start_for(transport: Transport, moment: &str, count: u32, span: Duration) -> (Job, Vec<Child>) {
    let job = job();
    let variables = [(MOMENT, moment), (COUNT, &count.to_string()), (SPAN, &span.as_millis().to_string())];
    let children = start_all(&job, RANKS as u32, transport, &variables);
    children.iter().for_each(|child| drop(hear(child, "under way")));
    (job, children)
}

/// Kills all victims at once: none of them does anything between the first kill and the last.
fn kill(children: &[Child], victims: &[usize]) -> u128 {
    let signal = |signal| victims.iter().for_each(|victim| children[*victim].kill(signal).expect("it lives"));
    signal(SIGSTOP);
    let begun = now_ms();
    signal(SIGKILL);
    begun
}

fn survivors<'a>(children: &'a [Child], victims: &'a [usize]) -> impl Iterator<Item = &'a Child> {
    children.iter().enumerate().filter(|(rank, _)| !victims.contains(rank)).map(|(_, child)| child)
}

/// Each survivor has failed for one of the dead, in time.
fn fail_in_time(children: &[Child], victims: &[usize], begun: u128, what: &str) {
    for survivor in survivors(children, victims) {
        let said = hear(survivor, "failed");
        let (at, error) = said.split_once(' ').expect("a time and an error");
        let took = at.parse::<u128>().expect("a time").saturating_sub(begun);
        note(&format!("{what}, {victims:?}: {took} ms: {error}"));
        let names_one = victims.iter().any(|victim| error.contains(&format!("rank-{victim} ")));
        assert!(error.starts_with("PeerLost") && names_one, "{what}, {victims:?}: {error}");
        assert!(took < BOUND_MS, "{what}, {victims:?}: after {took} ms: {error}");
    }
}

fn end_well(children: &[Child], victims: &[usize]) {
    for child in survivors(children, victims) {
        hear(child, "left");
        until("it has ended", || child.exit().is_some());
        assert!(child.exit().is_some_and(|exit| exit.status.success()), "{:?}", child.stderr_lines());
    }
}

fn go_on_alone(children: &[Child], victims: &[usize]) {
    for child in survivors(children, victims) {
        assert_eq!(hear(child, "goes-on"), (RANKS - victims.len()).to_string(), "{:?}", child.stdout_lines());
    }
    end_well(children, victims);
}

/// Several die at such a moment, in operations of so many elements.
fn several_die(moment: &str, counts: &[u32]) {
    for transport in TRANSPORTS {
        for (victims, count) in
            VICTIMS.into_iter().flat_map(|victims| counts.iter().map(move |count| (victims, *count)))
        {
            let (_job, children) = start(transport, moment, count);
            let begun = kill(&children, victims);
            fail_in_time(&children, victims, begun, &format!("{transport:?}, {moment} of {count}"));
            go_on_alone(&children, victims);
        }
    }
}

#[test]
fn f42_several_that_die_in_the_middle_of_an_all_reduce_are_done_without() {
    several_die("all_reduce", &[1, 300_000, 2_000_000]);
}

#[test]
fn several_that_die_in_the_middle_of_an_exchange_of_lists_are_done_without() {
    several_die("pieces", &[1, 100_000]);
}

#[test]
fn f42_several_that_die_while_groups_are_made_are_done_without() {
    several_die("groups", &[100]);
}

#[test]
fn f42_one_more_that_dies_while_the_rest_shrinks_is_done_without() {
    for transport in TRANSPORTS {
        for [first, second] in [[4, 3], [0, 1], [1, 0]] {
            let (_job, children) = start(transport, "all_reduce", 300_000);
            let victims = [first, second];
            // It takes no part in the shrink, however late it is killed.
            children[second].kill(SIGSTOP).expect("it lives");
            let begun = kill(&children, &[first]);
            // Somebody else knows of the first, and begins to shrink.
            let witness = (0..RANKS).find(|rank| !victims.contains(rank)).expect("there are five");
            hear(&children[witness], "failed");
            kill(&children, &[second]);
            fail_in_time(&children, &victims, begun, &format!("{transport:?}, shrink"));
            go_on_alone(&children, &victims);
        }
    }
}

#[test]
fn f42_several_that_die_while_all_leave_keep_nobody() {
    for transport in TRANSPORTS {
        for victims in VICTIMS {
            let (_job, children) = start(transport, "leave", 1000);
            kill(&children, victims);
            end_well(&children, victims);
        }
    }
}

/// Stops all ranks at once for longer than the silence after which one is dead, and continues them.
fn stop_for(span: Duration) {
    for transport in TRANSPORTS {
        let (_job, children) = start_for(transport, "stop", 1, span + Duration::from_secs(2));
        for signal in [SIGSTOP, SIGCONT] {
            children.iter().for_each(|child| child.kill(signal).expect("it lives"));
            if signal == SIGSTOP {
                std::thread::sleep(span);
            }
        }
        children.iter().for_each(|child| drop(hear(child, "went on")));
        end_well(&children, &[]);
    }
}

#[test]
fn f42_a_job_that_is_stopped_as_a_whole_goes_on() {
    stop_for(SILENCE + Duration::from_secs(2));
}

#[test]
#[ignore = "soak suite: takes a minute"]
fn f42_a_job_that_is_stopped_for_twenty_seconds_goes_on() {
    stop_for(Duration::from_secs(20));
}
