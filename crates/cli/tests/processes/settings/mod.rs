//! Every documented setting changes something that can be seen. One without a check here fails the first test.

mod foreign;
mod node;
mod place;
mod program;

use sheave_base::config::{FOREIGN, Settings};
use sheave_base::secret::Resolved;
use sheave_base::{Result, Secret};
use sheave_mesh::{Config, Mesh};
use sheave_net::NodeConfig;
use std::collections::BTreeSet;
use std::time::{Duration, Instant};

/// An environment.
pub(crate) type Variables<'a> = &'a [(&'a str, &'a str)];

/// Far enough for a loaded machine; nothing waits that long when all is well.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

pub(crate) fn soon() -> Instant {
    Instant::now() + PATIENCE
}

pub(crate) fn lookup<'a>(variables: Variables<'a>) -> impl Fn(&str) -> Option<std::ffi::OsString> + 'a {
    move |name| variables.iter().rev().find(|one| one.0 == name).map(|one| one.1.into())
}

/// A secret of the tests' own, so that no cookie is made.
pub(crate) fn secret() -> Option<Resolved> {
    let secret = Secret::new(b"known to the tests alone").expect("it is long enough");
    Some(Resolved { secret, source: "the test".into() })
}

pub(crate) fn node_config(name: &str, variables: Variables<'_>) -> NodeConfig {
    let settings = Settings::from_lookup(lookup(variables)).expect("they are allowed");
    NodeConfig { secret: secret(), ..NodeConfig::with_settings(name, &settings) }
}

/// Joins as each of these processes at once, each on a thread of its own, and returns what `act` returned; all leave
/// together.
pub(crate) fn join_all<T: Send + 'static>(
    processes: &[Variables<'_>],
    act: impl Fn(&Mesh) -> T + Clone + Send + 'static,
) -> Vec<Result<T>> {
    let root = format!("127.0.0.1:{}", sheave_base::port::free().expect("there are thousands"));
    let mut threads = Vec::new();
    for process in processes {
        let variables = [&[("SHEAVE_ROOT", &*root)], *process].concat();
        let mut config = Config::from_lookup(lookup(&variables)).expect("it makes sense").expect("it is a job");
        config.node.secret = secret();
        let act = act.clone();
        threads.push(std::thread::spawn(move || {
            let mesh = Mesh::join(config)?;
            let done = act(&mesh);
            mesh.finish().map(|()| done)
        }));
    }
    threads.into_iter().map(|thread| thread.join().expect("no process panics")).collect()
}

/// The variables in the first column of the tables of the page for people.
fn documented() -> BTreeSet<String> {
    let page = include_str!("../../../../../docs/configuration.md");
    let rows = page.lines().filter_map(|line| line.strip_prefix("| `")?.split_once("` |"));
    rows.map(|(name, _)| name.to_owned()).collect()
}

/// Settings of Python programs alone, whose effect is shown there.
const IN_PYTHON: &[&str] = &["SHEAVE_PICKLE"];

#[test]
fn f88_what_settings_of_python_programs_do_is_shown_there() {
    let tests = include_str!("../../../../../python/tests/test_store_processes.py");
    for name in IN_PYTHON {
        let test = format!("def test_f88_{}_", name.to_lowercase());
        assert!(tests.contains(&test), "{name} has no check");
    }
}

#[test]
fn f88_every_documented_setting_has_a_check_of_its_effect() {
    let own = [place::CHECKS, node::CHECKS, program::CHECKS, IN_PYTHON].concat();
    let checked: BTreeSet<String> = own.iter().chain(foreign::CHECKS).map(|name| (*name).to_owned()).collect();
    let documented = documented();
    let unproved: Vec<&String> = documented.difference(&checked).collect();
    assert!(unproved.is_empty(), "documented, but nothing shows that they do anything: {unproved:?}");
    let unknown: Vec<&String> = checked.difference(&documented).collect();
    assert!(unknown.is_empty(), "checked, but not documented: {unknown:?}");
    let of_others: BTreeSet<&str> = FOREIGN.iter().map(|foreign| foreign.name).collect();
    assert_eq!(of_others, foreign::CHECKS.iter().copied().collect());
}

/// Declares the names of settings and a test for each of them, so that no name stands without one.
#[macro_export]
macro_rules! checks {
    ($($variable:literal $test:ident $body:block)+) => {
        pub(crate) const CHECKS: &[&str] = &[$($variable),+];
        $(#[test] fn $test() $body)+
    };
}
