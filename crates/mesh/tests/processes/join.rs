//! Where a job meets, when the port there is in use, and when somebody does not come.

use crate::common::{config, free_port};
use sheave_base::ErrorKind;
use sheave_base::config::Transport;
use sheave_mesh::{Config, Expected, Mesh, Role};
use std::net::TcpListener;
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// What nodes of this process have said, by their names.
static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn alone(port: u16) -> Config {
    config(Role::Rank, Some(0), Expected::ranks(1), port, Transport::Auto)
}

#[test]
fn f93_a_root_waits_for_the_port_of_one_that_is_ending() {
    let port = free_port();
    let old = TcpListener::bind(("127.0.0.1", port)).expect("the port is free");
    let joining = std::thread::spawn(move || Mesh::join(alone(port)).and_then(|mesh| mesh.finish()));
    // The new root has looked at least once by then, or it has not begun; both must do.
    std::thread::sleep(Duration::from_millis(300));
    drop(old);
    joining.join().expect("no panic").expect("the port is free again");
}

#[test]
fn f93_the_error_about_a_busy_root_hints_at_no_port_that_a_root_cannot_have() {
    let busy = TcpListener::bind("127.0.0.1:0").expect("some port is free");
    let port = busy.local_addr().expect("it is bound").port();
    let begun = Instant::now();
    let error = Mesh::join(alone(port)).expect_err("the port is taken");
    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
    let hint = error.advice().expect("what to do");
    assert!(hint.contains("another port for the root") && !hint.contains("port 0"), "{hint}");
    assert!(begun.elapsed() < Duration::from_secs(6), "{:?}", begun.elapsed());
}

#[test]
fn who_does_not_know_how_many_there_are_is_told_by_rank_0() {
    let port = free_port();
    let join = |name: &'static str, rank, expected| {
        std::thread::spawn(move || {
            let config =
                Config { name: Some(name.to_owned()), ..config(Role::Rank, rank, expected, port, Transport::Auto) };
            let mesh = Mesh::join(config)?;
            let seen = (mesh.me().rank.0, mesh.members().len());
            mesh.finish().map(|()| seen)
        })
    };
    // In the order of their names, behind those who know their ranks.
    let all = [
        join("left.1", None, Expected::TOLD),
        join("a host.0", None, Expected::TOLD),
        join("the first", Some(0), Expected::ranks(4)),
        join("left.0", None, Expected::TOLD),
    ];
    let seen = all.map(|one| one.join().expect("no panic").expect("all have come"));
    assert_eq!(seen, [(3, 4), (1, 4), (0, 4), (2, 4)]);
}

#[test]
fn f87_what_a_launcher_tells_others_is_bound_where_that_is_permitted() {
    let job = [("DMLC_PS_ROOT_URI", "10.0.0.1"), ("DMLC_PS_ROOT_PORT", "7000"), ("DMLC_NUM_WORKER", "1")];
    let read = |more: &[(&str, &str)]| {
        let all = [&job[..], &[("DMLC_NUM_SERVER", "1"), ("DMLC_NODE_HOST", "10.0.0.2")], more].concat();
        let lookup = |name: &str| all.iter().rfind(|entry| entry.0 == name).map(|entry| entry.1.into());
        let config = Config::from_lookup(lookup).expect("it makes sense").expect("it is a job");
        (config.host, config.binds_host)
    };
    let told = |host: &str| Some(host.to_owned());
    assert_eq!(read(&[("SHEAVE_INSECURE", "1")]), (told("10.0.0.2"), true));
    assert_eq!(read(&[]), (None, false), "loopback is bound, and told");
    let bound = ("SHEAVE_BIND", "0.0.0.0");
    assert_eq!(read(&[bound, ("SHEAVE_INSECURE", "1")]), (told("10.0.0.2"), false));
    assert_eq!(read(&[bound, ("SHEAVE_HOST", "gate"), ("SHEAVE_INSECURE", "1")]), (told("gate"), false));
}

#[test]
fn f87_an_address_that_is_told_and_not_bound_is_refused() {
    let other = config(Role::Rank, Some(1), Expected::ranks(2), free_port(), Transport::Auto);
    let config = Config { host: Some("192.0.2.7".into()), join_timeout: Duration::from_secs(5), ..other };
    let error = Mesh::join(config).expect_err("nobody could reach it");
    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
    assert!(error.what().contains("192.0.2.7") && error.advice().expect("a hint").contains("SHEAVE_BIND"), "{error}");
}

#[test]
#[ignore = "soak suite: the notice comes after 10 s"]
fn f75_a_join_says_after_10_s_who_is_missing() {
    let port = free_port();
    let join = |rank: u32, ranks: u32| {
        let mut config = config(Role::Rank, Some(rank), Expected::ranks(ranks), port, Transport::Auto);
        config.join_timeout = Duration::from_millis(11_000);
        config.node.notice = |text| SAID.lock().expect("no panic").push(text.to_owned());
        std::thread::spawn(move || Mesh::join(config).expect_err("somebody is missing"))
    };
    let said = || std::mem::take(&mut *SAID.lock().expect("no panic"));
    join(1, 2).join().expect("no panic");
    let waiting = "join has been waiting for 10 s";
    assert_eq!(said(), [format!("rank-1: {waiting}: nobody is met at 127.0.0.1:{port}")]);
    for joining in [join(0, 3), join(1, 3)] {
        joining.join().expect("no panic");
    }
    let said = said();
    let [said] = said.as_slice() else { panic!("one notice: {said:?}") };
    assert!(said.starts_with(&format!("rank-0: {waiting}: missing: 1 of 3 ranks (rank 2); joined: rank-0")), "{said}");
}
