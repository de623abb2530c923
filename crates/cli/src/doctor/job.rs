//! What the environment says about a job, and whether it can be joined as it says.

use super::{Finding, fact_of};
use sheave_base::config::{Endpoint, Root, Settings};
use sheave_base::limits::HANDSHAKE_TEXT_BYTES_MAX;
use sheave_collective::Table;
use sheave_mesh::environment::Membership;
use std::net::ToSocketAddrs;
use std::path::Path;
use std::sync::mpsc::sync_channel;
use std::time::Duration;

/// Longest time for a name to be resolved; whoever joins has 60 s for everything.
const RESOLVE_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn check(settings: &Settings) -> Vec<Finding> {
    let place = Membership::from_lookup(|name| std::env::var_os(name));
    let mut findings = vec![membership(&place)];
    if let Ok(Some(place)) = &place {
        findings.push(match &place.root {
            Root::Endpoint(endpoint) => root(endpoint),
            Root::File(path) => meeting_file(path),
        });
    }
    findings.extend(settings.collective_table.as_deref().map(|path| {
        let read = Table::read(path).map(|_| format!("{} can be read", path.display()));
        Finding::of("collective table", read, "name a file that `sheave tune` has written in SHEAVE_COLLECTIVE_TABLE")
    }));
    findings
}

fn membership(place: &sheave_base::Result<Option<Membership>>) -> Finding {
    const CHECK: &str = "job";
    let place = match place {
        Ok(place) => place,
        Err(error) => {
            let hint = error.advice().unwrap_or("look at the variables of the launcher").to_owned();
            return Finding::fail(CHECK, fact_of(error), hint);
        }
    };
    if let Some(place) = place {
        let rank = place.rank.map_or(String::new(), |rank| format!(" {rank}"));
        let fact = format!("{}{rank} of {}, by the variables of {}", place.role, place.size(), place.source);
        return Finding::ok(CHECK, fact);
    }
    let is_set = |name: &&str| std::env::var_os(name).is_some_and(|value| !value.is_empty());
    match ["RANK", "WORLD_SIZE"].into_iter().find(is_set) {
        Some(name) => Finding::fail(
            CHECK,
            format!(
                "{name} is set, but not all of RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT: a mesh of one process"
            ),
            format!("set all four, or unset {name}"),
        ),
        None => Finding::ok(CHECK, "the environment names none; a process is a mesh of one"),
    }
}

/// Whether there is a folder for the file in which the job meets.
fn meeting_file(path: &Path) -> Finding {
    const CHECK: &str = "root";
    let folder = path.parent().unwrap_or(Path::new("/"));
    match folder.is_dir() {
        true => Finding::ok(CHECK, format!("the job meets in the file {}", path.display())),
        false => Finding::fail(
            CHECK,
            format!("the job meets in a file of {}, which is no folder here", folder.display()),
            "set SHEAVE_ROOT to a file in a folder that all processes see",
        ),
    }
}

/// Whether the host of the root has an address. Not whether somebody listens there, who may come later.
fn root(root: &Endpoint) -> Finding {
    const CHECK: &str = "root";
    let (sender, receiver) = sync_channel(1);
    let (host, port) = (root.host.clone(), root.port);
    // A resolver cannot be interrupted; one that does not answer is left behind.
    let started = std::thread::Builder::new().name("sheave-resolve".to_owned()).spawn(move || {
        let _ = sender.send((host.as_str(), port).to_socket_addrs().map(Vec::from_iter));
    });
    let hint = "set SHEAVE_ROOT, or the launcher's own variable, to a host that this machine knows";
    let resolved = match started {
        Ok(_) => receiver.recv_timeout(RESOLVE_TIMEOUT),
        Err(error) => return Finding::fail(CHECK, format!("no thread to resolve {root}: {error}"), hint),
    };
    let first = |found: Vec<std::net::SocketAddr>| found.into_iter().map(|address| address.ip().to_string()).next();
    match resolved {
        Ok(Ok(found)) => match first(found) {
            Some(address) => Finding::ok(CHECK, format!("{root} is {address}")),
            None => Finding::fail(CHECK, format!("{root} has no address"), hint),
        },
        Ok(Err(error)) => {
            let why: String = error.to_string().chars().take(HANDSHAKE_TEXT_BYTES_MAX).collect();
            Finding::fail(CHECK, format!("{root} cannot be resolved: {why}"), hint)
        }
        Err(_) => Finding::fail(CHECK, format!("{root} was not resolved within {RESOLVE_TIMEOUT:?}"), hint),
    }
}
