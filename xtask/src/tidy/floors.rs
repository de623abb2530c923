//! The floor rule: a room may depend only on rooms on floors below its own, and rooms on one floor do not know each
//! other. The plan, with the reason for each exception, is section 2 of `docs/design/README.md`.

use super::Finding;
use super::rooms::Room;

/// The rooms of each floor, from the ground up.
const FLOORS: [&[&str]; 9] = [
    &["base"],
    &["tensor", "optim", "bayes", "process", "placement"],
    &["wire"],
    &["net"],
    &["mesh", "fleet"],
    &["collective", "store", "exchange", "rpc", "session", "particle", "pool", "learner"],
    &["nn", "posterior"],
    &["sheave"],
    &["cli", "python"],
];

/// Neighbours on one floor that may be used all the same: (who, whom).
const NEIGHBOURS: [(&str, &str); 10] = [
    ("bayes", "optim"),
    ("fleet", "mesh"),
    ("session", "collective"),
    ("session", "rpc"),
    ("pool", "rpc"),
    ("learner", "rpc"),
    ("store", "collective"),
    ("store", "rpc"),
    ("posterior", "nn"),
    ("python", "cli"),
];

/// The floor of the services, and those of them that rooms of models may know.
const SERVICES: usize = 5;
const SERVICES_OF_MODELS: [(&str, &[&str]); 2] =
    [("nn", &["store", "collective", "particle"]), ("posterior", &["collective", "particle"])];

/// The only room that may know PyO3.
const PYTHON_ROOM: &str = "python";

/// Every dependency that goes the wrong way.
pub(super) fn check(rooms: &[Room]) -> Vec<Finding> {
    rooms.iter().flat_map(check_room).collect()
}

fn check_room(room: &Room) -> Vec<Finding> {
    let mut messages = Vec::new();
    let expected = if room.name == "sheave" { "sheave".to_owned() } else { format!("sheave-{}", room.name) };
    if room.package != expected {
        messages.push(format!("the package is called `{}`; a room's package is `{expected}`", room.package));
    }
    for dependency in &room.dependencies {
        if let Some(other) = dependency.room() {
            messages.extend(wrong_way(&room.name, other));
        }
        if dependency.knows_pyo3() && room.name != PYTHON_ROOM {
            messages.push(format!("`{}` brings in PyO3, which only `{PYTHON_ROOM}` may know", dependency.package));
        }
    }
    let path = format!("crates/{}/Cargo.toml", room.name);
    messages.into_iter().map(|message| Finding { path: path.clone(), line: 0, message }).collect()
}

/// What is wrong with `room` depending on `other`. A room may name itself, to test with a feature switched on.
fn wrong_way(room: &str, other: &str) -> Option<String> {
    let (Some(here), Some(there)) = (floor(room), floor(other)) else {
        let stranger = if floor(room).is_none() { room } else { other };
        return Some(format!("`{stranger}` has no floor: give it one in the design and in {}", file!()));
    };
    let services = SERVICES_OF_MODELS.iter().find(|(model, _)| *model == room).map(|(_, services)| services);
    if let Some(services) = services
        && there == SERVICES
        && !services.contains(&other)
    {
        return Some(format!("`{room}` knows of the services only {}, not `{other}`", services.join(", ")));
    }
    if there < here || room == other || NEIGHBOURS.contains(&(room, other)) {
        return None;
    }
    let why =
        if there == here { "rooms on one floor do not know each other" } else { "a room knows only lower floors" };
    Some(format!("`{room}` (floor {here}) depends on `{other}` (floor {there}): {why}"))
}

fn floor(room: &str) -> Option<usize> {
    FLOORS.iter().position(|rooms| rooms.contains(&room))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::rooms;
    use super::*;
    use crate::shell::Workspace;

    /// Writes a workspace of rooms, given as folder, package name and lines under the package's header, and checks it
    /// through the real `cargo metadata`.
    fn findings(rooms: &[(&str, &str, &str)]) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        write(
            &folder.path().join("Cargo.toml"),
            "[workspace]\nresolver = \"3\"\nmembers = [\"crates/*\", \"xtask\"]\n",
        );
        let tool = ("xtask", "xtask", "");
        for (path, package, rest) in rooms.iter().copied().chain([tool]) {
            let path = if path == "xtask" { path.to_owned() } else { format!("crates/{path}") };
            let manifest =
                format!("[package]\nname = \"{package}\"\nversion = \"0.1.0\"\nedition = \"2024\"\n{rest}\n");
            write(&folder.path().join(&path).join("Cargo.toml"), &manifest);
            write(&folder.path().join(&path).join("src/lib.rs"), "");
        }
        check(&rooms::read(&Workspace::at(folder.path())).unwrap()).iter().map(Finding::to_string).collect()
    }

    fn write(path: &Path, text: &str) {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    const BASE: (&str, &str, &str) = ("base", "sheave-base", "");

    #[test]
    fn a_dependency_downwards_is_right() {
        let net = ("net", "sheave-net", "[dependencies]\nsheave-base = { path = \"../base\" }");
        assert_eq!(findings(&[BASE, net]), [""; 0]);
    }

    #[test]
    fn a_dependency_upwards_is_wrong_in_every_section() {
        let net = ("net", "sheave-net", "");
        for section in ["dependencies", "dev-dependencies", "build-dependencies", "target.'cfg(unix)'.dependencies"] {
            let base = format!("[{section}]\nsheave-net = {{ path = \"../net\" }}");
            let found = findings(&[("base", "sheave-base", &base), net]);
            let why = "`base` (floor 0) depends on `net` (floor 3): a room knows only lower floors";
            assert_eq!(found, [format!("crates/base/Cargo.toml: {why}")], "{section}");
        }
    }

    #[test]
    fn neighbours_do_not_know_each_other() {
        let process = ("process", "sheave-process", "[dependencies]\nsheave-tensor = { path = \"../tensor\" }");
        assert_eq!(findings(&[process, ("tensor", "sheave-tensor", "")]).len(), 1);
    }

    #[test]
    fn the_designs_exceptions() {
        assert!(wrong_way("bayes", "optim").is_none());
        assert!(wrong_way("optim", "bayes").is_some());
        assert!(wrong_way("fleet", "mesh").is_none());
        assert!(wrong_way("mesh", "fleet").is_some());
        assert!(wrong_way("store", "fleet").is_none());
        assert!(wrong_way("session", "rpc").is_none());
        assert!(wrong_way("store", "collective").is_none());
        assert!(wrong_way("rpc", "store").is_some());
        assert!(wrong_way("session", "store").is_some());
        assert!(wrong_way("nn", "particle").is_none());
        assert!(wrong_way("nn", "rpc").is_some());
        assert!(wrong_way("nn", "tensor").is_none());
        assert!(wrong_way("posterior", "nn").is_none());
        assert!(wrong_way("nn", "posterior").is_some());
        assert!(wrong_way("posterior", "store").is_some());
        assert!(wrong_way("cli", "python").is_some());
        assert!(wrong_way("python", "sheave").is_none());
    }

    #[test]
    fn names_and_strangers() {
        let found = findings(&[
            ("base", "base", ""),
            ("attic", "sheave-attic", "[dependencies]\nbase = { path = \"../base\" }"),
        ]);
        assert_eq!(found, ["crates/base/Cargo.toml: the package is called `base`; a room's package is `sheave-base`"]);
        let found =
            findings(&[BASE, ("attic", "sheave-attic", "[dependencies]\nsheave-base = { path = \"../base\" }")]);
        assert!(found[0].starts_with("crates/attic/Cargo.toml: `attic` has no floor"), "{found:?}");
    }

    #[test]
    fn pyo3_stays_in_its_room() {
        let pyo3 = "[dependencies]\npyo3 = \"0.30\"";
        assert_eq!(findings(&[("base", "sheave-base", pyo3)]).len(), 1);
        assert_eq!(findings(&[("python", "sheave-python", pyo3)]), [""; 0]);
        let through_another = "[dependencies]\ndlpark = { version = \"0.10\", features = [\"pyo3\"] }";
        assert_eq!(findings(&[("tensor", "sheave-tensor", through_another)]).len(), 1);
    }
}
