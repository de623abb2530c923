//! How long small operations take where users are: launched, pinned before they start, beside strangers.

use sheave_base::Result;
use sheave_collective::{Collectives, Operator};
use sheave_exchange::{Batch, Config as Exchange, Pull, Push, Scope, Server, Worker};
use sheave_mesh::{Config, Mesh, Role};
use sheave_tensor::{Dtype, Tensor};
use std::io::Write;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};

/// The part of a copy of this binary: an operation, how often, whether it is pinned and when, and for how many µs it
/// computes and then rests before each.
const PART: &str = "SHEAVE_TEST_PART";

/// Longest time for one run.
const LIMIT: Duration = Duration::from_secs(60);

/// A program's time between two operations.
#[derive(Clone, Copy)]
struct Pause {
    computing: Duration,
    resting: Duration,
}

impl Pause {
    fn take(self) {
        let until = Instant::now() + self.computing;
        while Instant::now() < until {
            std::hint::spin_loop();
        }
        if !self.resting.is_zero() {
            std::thread::sleep(self.resting);
        }
    }
}

/// Says how long each of `count` operations took, in the order of their lengths.
fn measure(count: usize, pause: Pause, mut operate: impl FnMut(usize) -> Result<()>) -> Result<()> {
    for number in 0..count / 10 {
        operate(number)?;
    }
    let mut times = Vec::with_capacity(count);
    for number in 0..count {
        pause.take();
        let begun = Instant::now();
        operate(number)?;
        times.push(begun.elapsed().as_nanos());
    }
    times.sort_unstable();
    let at = |share: f64| times[((times.len() - 1) as f64 * share) as usize] as f64 / 1e3;
    let mut stdout = std::io::stdout();
    let mean = times.iter().sum::<u128>() as f64 / times.len() as f64 / 1e3;
    writeln!(stdout, "\n[times] {} {} {} {} {mean}", at(0.5), at(0.9), at(0.99), at(1.0))?;
    Ok(())
}

fn pin(core: usize) {
    let mut one = rustix::thread::CpuSet::new();
    one.set(core);
    rustix::thread::sched_setaffinity(None, &one).expect("it is one of ours");
}

#[test]
fn actor() {
    let Ok(part) = std::env::var(PART) else { return };
    let words: Vec<&str> = part.split(' ').collect();
    let count: usize = words[1].parse().unwrap();
    let micros = |at: usize| Duration::from_micros(words.get(at).map_or(0, |word| word.parse().unwrap()));
    let pause = Pause { computing: micros(3), resting: micros(4) };
    let config = Config::from_env().expect("it makes sense").expect("it is a job");
    if words[2] == "before" {
        pin((config.rank.unwrap_or(0) as usize + usize::from(config.role == Role::Server)) % 2);
    }
    let mesh = Mesh::join(config).expect("all meet");
    if words[2] == "after" {
        pin((mesh.me().role_rank as usize + usize::from(mesh.me().introduction.role == Role::Server)) % 2);
    }
    match words[0] {
        "all_reduce" => all_reduce(&mesh, count, pause),
        "exchange" => exchange(&mesh, count, pause),
        "company" => company(&mesh),
        other => panic!("unknown part {other}"),
    }
    .expect("all do it");
    mesh.finish().expect("all are there");
}

/// Says how many busy processes it knows on this host, and how many cores they have together.
fn company(mesh: &Mesh) -> Result<()> {
    let (node, name) = (mesh.node(), &mesh.me().introduction.name);
    writeln!(std::io::stdout(), "\n[company] {name} {} {}", node.local_ranks(), node.cores())?;
    // Those who are pinned are looked at until all have looked.
    mesh.world().barrier()
}

fn all_reduce(mesh: &Mesh, count: usize, pause: Pause) -> Result<()> {
    let world = Collectives::new(mesh)?.group(&mesh.world())?;
    let mut tensor = Tensor::empty(mesh.node().arena(), Dtype::F32, [2])?;
    tensor.as_mut_slice::<f32>()?.fill(0.0);
    measure(count, pause, |_| world.all_reduce(&tensor, &tensor, Operator::Sum).wait().map(drop))
}

fn exchange(mesh: &Mesh, count: usize, pause: Pause) -> Result<()> {
    let until = || Some(Instant::now() + LIMIT);
    let tensor = || Tensor::empty(mesh.node().arena(), Dtype::U8, [1024]);
    match mesh.me().introduction.role {
        Role::Server => {
            let server = Server::open(mesh, Exchange::default())?;
            let landing = Tensor::empty(mesh.node().arena(), Dtype::U8, [1, 1024])?;
            server.register(&landing, &[(0, 0)])?;
            let answer = tensor()?;
            server.barrier(Scope::All, false, until(), None)?;
            let mut batch = Batch::default();
            for _ in 0..count + count / 10 {
                server.get_batch_into(&mut batch, until(), None)?;
                for request in std::mem::take(&mut batch) {
                    server.respond(request.handler, [&answer])?;
                }
            }
            server.barrier(Scope::All, false, until(), None)
        }
        Role::Worker => {
            let worker = Worker::open(mesh, Exchange::default())?;
            worker.barrier(Scope::All, false, until(), None)?;
            let (pushed, pulled) = (tensor()?, tensor()?);
            measure(count, pause, |_| {
                let request = worker.push_pull([Push::new(0, &pushed)], [Pull::into(0, &pulled)])?;
                worker.wait(request, until(), None)
            })?;
            worker.barrier(Scope::All, false, until(), None)
        }
        _ => Ok(()),
    }
}

/// A copy of this binary that plays a part.
const ACTOR: [&str; 4] = ["--exact", "waiting::actor", "--nocapture", "--test-threads=1"];

/// Launches a job of copies of this binary and returns what they said.
fn launch(line: &[&str], part: &str, variables: &[(&str, &str)]) -> String {
    let own = std::env::current_exe().expect("this binary");
    let mut command = Command::new(env!("CARGO_BIN_EXE_sheave"));
    command.arg("launch").args(line).arg("--").arg(own).args(ACTOR);
    command.env(PART, part).envs(variables.iter().copied());
    let output = finish(command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped()));
    assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
    text(&output.stdout).to_owned()
}

/// The times in µs that the last process of a launched job said: the median, the 90th and 99th of a hundred, the
/// longest, and the mean.
fn launched(line: &[&str], part: &str, variables: &[(&str, &str)]) -> [f64; 5] {
    let said = launch(line, part, variables);
    let times = said.rsplit("[times] ").next().unwrap().lines().next().unwrap();
    let times: Vec<f64> = times.split(' ').map(|time| time.parse().unwrap()).collect();
    times.try_into().unwrap()
}

/// What the processes of a job know: how many are busy here, and on how many cores.
fn known(said: &str) -> Vec<(usize, usize)> {
    let lines = said.lines().filter_map(|line| line.split_once("[company] "));
    let numbers = lines.map(|(_, line)| line.split(' ').skip(1).map(|number| number.parse().unwrap()));
    numbers.map(|mut numbers| (numbers.next().unwrap(), numbers.next().unwrap())).collect()
}

/// The cores that this process may use.
fn cores() -> usize {
    sheave_net::cores::usable([])
}

#[test]
fn f33_a_launched_scheduler_is_not_counted_as_busy() {
    let known = known(&launch(&["-n", "1", "-s", "1"], "company 1 no 0", &[]));
    assert_eq!(known, [(2, cores()); 3]);
}

#[test]
fn f34_processes_that_were_pinned_before_they_joined_know_all_cores_of_the_job() {
    if cores() < 2 {
        return;
    }
    let known = known(&launch(&["-n", "2"], "company 1 before 0", &[]));
    assert_eq!(known, [(2, 2); 2]);
}

#[test]
fn f35_ranks_that_nobody_launched_together_are_counted_when_they_have_met() {
    let port = sheave_base::port::free().expect("there are thousands").to_string();
    let secret = "known to these tests alone";
    let start = |rank: usize| {
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(ACTOR).env(PART, "company 1 no 0").env("SHEAVE_SECRET", secret).env_remove("SHEAVE_LOCAL_RANKS");
        command.env("RANK", rank.to_string()).env("WORLD_SIZE", "3");
        command.env("MASTER_ADDR", "127.0.0.1").env("MASTER_PORT", &port);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        std::thread::spawn(move || finish(&mut command))
    };
    let all: Vec<_> = (0..3).map(start).collect();
    for output in all.into_iter().map(|one| one.join().expect("it ends")) {
        assert!(output.status.success(), "{}\n{}", text(&output.stdout), text(&output.stderr));
        assert_eq!(known(text(&output.stdout)), [(3, cores())]);
    }
}

fn finish(command: &mut Command) -> Output {
    let mut child = command.spawn().expect("it was built for this test");
    let begun = Instant::now();
    while child.try_wait().expect("it is our child").is_none() {
        if begun.elapsed() > LIMIT {
            child.kill().expect("it is our child");
            panic!("it did not end: {:?}", child.wait_with_output());
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    child.wait_with_output().expect("it has ended")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("people read it")
}

/// A process that keeps a core busy, until it is dropped.
struct Stranger(std::process::Child);

impl Stranger {
    fn on(core: usize) -> Self {
        let line = format!("taskset -c {core} sh -c 'while :; do :; done'");
        Self(Command::new("sh").args(["-c", &format!("exec {line}")]).spawn().expect("a shell"))
    }
}

impl Drop for Stranger {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// The 99ths of a hundred of so many runs, the shortest first.
fn p99s(transport: &str, part: &str, runs: usize) -> Vec<f64> {
    let run = |_| launched(&["-n", "2"], part, &[("SHEAVE_TRANSPORT", transport)])[2];
    let mut all: Vec<f64> = (0..runs).map(run).collect();
    all.sort_unstable_by(f64::total_cmp);
    all
}

#[test]
#[ignore = "soak suite: measures times beside a busy machine for a minute"]
fn f36_beside_strangers_shared_memory_is_not_slower_than_tcp() {
    let _strangers: Vec<Stranger> = (0..cores()).map(Stranger::on).collect();
    // Of three runs the median. Who computes without a rest wants more than the half of a core that is left beside a
    // stranger, and in a third of the runs it waits for time slices, over any transport; in one of ten it never does.
    // So it is the fourth best of fifteen.
    let parts = [
        ("all_reduce 20000 no 0", 3, 1),
        ("all_reduce 2000 no 100 300", 3, 1),
        ("all_reduce 20000 before 0", 3, 1),
        ("all_reduce 2000 no 100", 15, 3),
    ];
    for (part, runs, place) in parts {
        let [shm, tcp] = ["shm", "tcp"].map(|transport| p99s(transport, part, runs)[place]);
        writeln!(std::io::stdout(), "{part}: p99 {shm:.1} µs over shared memory, {tcp:.1} µs over TCP").unwrap();
        assert!(shm <= 3.0 * tcp, "{part}: {shm:.1} µs over shared memory, {tcp:.1} µs over TCP");
    }
}

#[test]
#[ignore = "soak suite: measures"]
fn times_of_small_operations() {
    let mut stdout = std::io::stdout();
    let word = |name: &str, usual: &str| std::env::var(format!("SHEAVE_TEST_{name}")).unwrap_or_else(|_| usual.into());
    let (rounds, only) = (word("ROUNDS", "3"), word("ONLY", ""));
    for (name, strangers) in [("idle", 0), ("beside two loops", 2)] {
        for _ in 0..rounds.parse::<usize>().unwrap() {
            for (line, operation) in
                [("-n 2", "all_reduce"), ("-n 1 -s 1", "exchange"), ("-n 4", "all_reduce"), ("-n 8", "all_reduce")]
            {
                for (pin, pause, transport) in ["no", "before", "after"]
                    .into_iter()
                    .flat_map(|pin| ["0", "100"].map(|pause| (pin, pause)))
                    .flat_map(|(pin, pause)| ["shm", "tcp"].map(|transport| (pin, pause, transport)))
                {
                    let what = format!("{name}: {operation} {line} pin {pin} pause {pause} {transport}");
                    if only.split(';').any(|only| !what.contains(only)) {
                        continue;
                    }
                    let count = match (pause, transport) {
                        ("0", "shm") => "100000",
                        ("0", _) => "10000",
                        _ => "2000",
                    };
                    let part = format!("{operation} {count} {pin} {pause}");
                    let line: Vec<&str> = line.split(' ').collect();
                    let _strangers: Vec<Stranger> = (0..strangers).map(Stranger::on).collect();
                    let [p50, p90, p99, max, mean] = launched(&line, &part, &[("SHEAVE_TRANSPORT", transport)]);
                    let times = format!("p50 {p50:>8.1} p90 {p90:>8.1} p99 {p99:>8.1} max {max:>8.1} mean {mean:>8.1}");
                    writeln!(stdout, "{what:<64} {times}").unwrap();
                }
            }
        }
    }
}
