//! Simulated processes that join a mesh.

use sheave_base::config::{Endpoint, Transport};
use sheave_base::secret::Resolved;
use sheave_base::{Secret, clock};
use sheave_mesh::{Config, Expected, Role};
use sheave_net::{Liveness, NodeConfig, WaitPolicy};
use std::net::{Ipv4Addr, SocketAddr};
use std::time::Duration;

/// Signs of life are due with each beat, and missed for so long they mean a death.
pub const LIVENESS: Liveness =
    Liveness { beat: Duration::from_millis(200), timeout: Duration::from_millis(1000), kill_silent: false };
/// How long a join may take.
pub const JOIN_TIMEOUT: Duration = Duration::from_secs(20);

/// The port at which a mesh meets.
const ROOT_PORT: u16 = 7000;

fn ip(process: usize) -> Ipv4Addr {
    Ipv4Addr::new(10, 0, (process >> 8) as u8, process as u8 + 1)
}

/// What a node is made from on that host.
#[must_use]
pub fn node_config(host: usize) -> NodeConfig {
    let secret = Secret::new(b"the secret of a simulated job").expect("it is long enough");
    NodeConfig {
        local_ranks: 1,
        liveness: LIVENESS,
        wait: Some(WaitPolicy { spin: Duration::ZERO, yielding: Duration::ZERO }),
        secret: Some(Resolved { secret, source: "the simulation".into() }),
        transport: Transport::Tcp,
        host_id: Some(format!("host-{host}")),
        notice,
        ..NodeConfig::named("")
    }
}

/// What the process of that number joins with as a rank, on that host.
#[must_use]
pub fn rank_config(process: usize, host: usize, ranks: u32) -> Config {
    let root = Endpoint { host: ip(0).to_string(), port: ROOT_PORT };
    Config {
        join_timeout: JOIN_TIMEOUT,
        bind: SocketAddr::from((ip(process), 0)),
        insecure: true,
        local_ranks: Some(1),
        node: node_config(host),
        ..Config::new(Role::Rank, Some(process as u32), Expected::ranks(ranks), root)
    }
}

/// Says what waits say that take long, where somebody wants to hear it.
fn notice(text: &str) {
    use std::io::Write;
    if std::env::var_os("SHEAVE_SIM_NOTICES").is_some() {
        // Nobody to tell is no reason to fail.
        let _ = writeln!(std::io::stderr(), "{text}");
    }
}

/// Waits for so long.
pub fn pause(span: Duration) {
    sheave_base::thread::sleep(span);
}

/// The time in the world, counted from `since`.
#[must_use]
pub fn elapsed(since: std::time::Instant) -> Duration {
    clock::since(since)
}
