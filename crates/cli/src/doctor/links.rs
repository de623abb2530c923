//! A real link over each medium, between two nodes of this process, with messages going to and fro.

use super::Finding;
use sheave_base::config::Settings;
use sheave_base::secret::Resolved;
use sheave_base::{Error, ErrorKind, LinkId, Result, Secret, Tag};
use sheave_fleet::draw_secret;
use sheave_net::{Envelope, ListenConfig, Node, NodeConfig, Outgoing, Transport, Wanted, shm};
use sheave_tensor::{Mode, Tensor};
use smallvec::SmallVec;
use std::time::{Duration, Instant};

/// Round trips before the clock counts, and counted ones.
const ROUNDS: (usize, usize) = (50, 500);

/// Long enough for a loaded machine; a link that takes longer does not work.
const TIMEOUT: Duration = Duration::from_secs(5);

const CONTEXT: u64 = 0x646f_6374_6f72;
const TAG: Tag = Tag(1);

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let hint = "run it again; if it stays, look at the checks above and at the limits of a sandbox";
    vec![
        Finding::of("shared memory link", over_shared_memory(settings), hint),
        Finding::of("tcp link", over_tcp(settings), hint),
    ]
}

fn over_shared_memory(settings: &Settings) -> Result<String> {
    let (one, other) = (start("doctor", settings, Transport::Shm)?, start("patient", settings, Transport::Shm)?);
    let (link, back) = shm::connect(&one, &other)?;
    round_trips((&one, link), (&other, back))
}

fn over_tcp(settings: &Settings) -> Result<String> {
    let secret = Resolved { secret: Secret::new(draw_secret()?.as_bytes())?, source: "the doctor".into() };
    let start = |name: &str| {
        let config = config(name, settings, Transport::Tcp);
        Node::start(NodeConfig { secret: Some(secret.clone()), ..config })
    };
    let (one, other) = (start("doctor")?, start("patient")?);
    let address = other.listen(ListenConfig { unix: false, ..ListenConfig::default() })?;
    let link = one.connect(&address, Instant::now() + TIMEOUT)?;
    let back = other.accept().join_timeout(TIMEOUT)?;
    round_trips((&one, link), (&other, back))
}

fn start(name: &str, settings: &Settings, transport: Transport) -> Result<Node> {
    Node::start(config(name, settings, transport))
}

fn config(name: &str, settings: &Settings, transport: Transport) -> NodeConfig {
    NodeConfig { transport, ..NodeConfig::with_settings(name, settings) }
}

/// The median time of 8 bytes going there and back; checks that they are the same bytes.
fn round_trips(here: (&Node, LinkId), there: (&Node, LinkId)) -> Result<String> {
    let until = Instant::now() + TIMEOUT;
    let rounds = ROUNDS.0 + ROUNDS.1;
    let mut times = std::thread::scope(|scope| {
        let echo = scope.spawn(move || (0..rounds).try_for_each(|_| pass(there, None, until).map(drop)));
        let times = (0..rounds).map(|round| {
            let begun = Instant::now();
            let sent = round as i64;
            let came = pass(here, Some(sent), until)?;
            if came == sent {
                return Ok(begun.elapsed());
            }
            Err(Error::new(ErrorKind::Internal, format!("{sent} was sent and {came} came back")))
        });
        let times = times.collect::<Result<Vec<Duration>>>();
        let echoed = echo.join().unwrap_or_else(|_| Err(Error::new(ErrorKind::Internal, "the echo panicked")));
        times.and_then(|times| echoed.map(|()| times))
    })?;
    let counted = times.get_mut(ROUNDS.0..).unwrap_or_default();
    counted.sort_unstable();
    let median = counted.get(counted.len() / 2).copied().unwrap_or_default();
    Ok(format!("8 bytes take {:.1} us there and back", median.as_nanos() as f64 / 1e3))
}

/// Sends `first`, if there is something, and receives; else sends back what was received. Returns what came.
fn pass((node, link): (&Node, LinkId), first: Option<i64>, until: Instant) -> Result<i64> {
    let send = |value: i64| {
        let tensor = Tensor::from_slice(&[value], [1])?;
        node.send(link, Outgoing::tensor(Envelope::data(CONTEXT, TAG), tensor, Mode::Copy), Some(until), None)
    };
    if let Some(value) = first {
        send(value)?;
    }
    let wanted = Wanted { source: Some(link), context: CONTEXT, tag: TAG };
    let came = node.recv(wanted, SmallVec::new(), Some(until), None)?.into_tensor()?.to_vec::<i64>()?;
    let &[came] = came.as_slice() else {
        return Err(Error::new(ErrorKind::Internal, format!("{} numbers came instead of one", came.len())));
    };
    if first.is_none() {
        send(came)?;
    }
    Ok(came)
}
