//! Versioned objects among nodes of one process, over real links.

use crate::common;
use crate::common::{PATIENCE, attach, failed, guest_config, host, together, until, wait};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Work};
use sheave_mesh::{Expected, Guest, Mesh};
use sheave_net::{Part, Parts};
use sheave_rpc::{Contents, Entry, Pulled, PushOutcome, Pushed, Rpc, RpcGroup, Rules};
use sheave_rpc::{Versions, VersionsClient, VersionsSettings, Wanted};
use sheave_tensor::{Mode, Tensor};
use sheave_wire::Value;
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

const TRANSPORTS: [Transport; 3] = [Transport::Auto, Transport::Shm, Transport::Tcp];
const LONG: Option<Duration> = Some(PATIENCE);
const LEASE: Duration = Duration::from_secs(600);

fn deep(depth: usize) -> VersionsSettings {
    VersionsSettings { depth, ..VersionsSettings::default() }
}

fn group(mesh: &Mesh) -> RpcGroup {
    let rpc = Rpc::serve(mesh).expect("once");
    mesh.world().barrier().expect("all are there");
    let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
    rpc.create_group("training", &nodes, LONG).wait().expect("all make it")
}

fn step(mesh: &Mesh) {
    mesh.world().barrier().expect("all come");
}

/// The table of rank 0, at all ranks, and itself there.
fn begin(mesh: &Mesh, settings: VersionsSettings) -> (VersionsClient, Option<Versions>) {
    let group = group(mesh);
    let own = (mesh.me().rank.0 == 0).then(|| Versions::new(mesh, settings).expect("it makes sense"));
    if let Some(own) = &own {
        group.register("models", own.service(), LONG).expect("a member").wait().expect("it is free");
    }
    step(mesh);
    let client = group.versions("models", LONG).expect("begun").wait().expect("it is registered");
    (client.with_timeout(LONG), own)
}

fn floats(number: f32, count: usize) -> Tensor {
    Tensor::from_slice(&vec![number; count], [count as u64]).expect("it fits")
}

fn map(entries: &[(&str, f32)], count: usize) -> Entry {
    let tensors = entries.iter().map(|(name, number)| ((*name).to_owned(), floats(*number, count)));
    Entry::of(tensors.collect::<BTreeMap<_, _>>())
}

fn done<T: Clone>(work: sheave_base::Result<Work<T>>) -> T {
    wait(&work.expect("it is sent")).expect("it is answered")
}

fn outcome(pushed: &Work<Pushed>) -> PushOutcome {
    wait(pushed).expect("it is answered").outcome
}

/// Each entry of a map, by its first and last element, whether it is shared or not.
fn read(mesh: &Mesh, value: &Value, tensors: &[Tensor]) -> BTreeMap<String, (f32, f32, usize)> {
    let Value::Map(entries) = value else { panic!("{value:?}") };
    let numbers = |value: &Value| {
        let Value::Tensor(at) = value else { panic!("{value:?}") };
        let numbers = mesh.node().capture(&tensors[*at as usize]).expect("memory").to_vec::<f32>().expect("it is f32");
        (numbers[0], numbers[numbers.len() - 1], numbers.len())
    };
    entries.iter().map(|(name, value)| (name.clone(), numbers(value))).collect()
}

fn whole(mesh: &Mesh, pulled: &Pulled) -> BTreeMap<String, (f32, f32, usize)> {
    match &pulled.contents {
        Contents::Whole { value, tensors } => read(mesh, value, tensors),
        other => panic!("{other:?}"),
    }
}

fn expected(entries: &[(&str, f32)], count: usize) -> BTreeMap<String, (f32, f32, usize)> {
    entries.iter().map(|(name, number)| ((*name).to_owned(), (*number, *number, count))).collect()
}

#[test]
fn what_is_pushed_is_pulled_everywhere() {
    for transport in TRANSPORTS {
        for count in [1, 100, 300_000] {
            together(Expected::ranks(3), transport, move |mesh| {
                let (client, own) = begin(&mesh, deep(2));
                if mesh.me().rank.0 == 1 {
                    assert!(done(client.pull("w", Wanted::Newest, Mode::Copy)).is_none());
                    let pushed = done(client.push("w", map(&[("a", 1.0), ("b", 2.0)], count), 1_i64, None));
                    assert_eq!((pushed.outcome, pushed.newest), (PushOutcome::Accepted, Some(Value::Int(1))));
                    let stale = client.push("w", map(&[], count), 2_i64, None).expect("sent");
                    assert_eq!(outcome(&stale), PushOutcome::Stale);
                    let pushed = client.push("w", map(&[("a", 3.0)], count), 2_i64, Some(Value::Int(1)));
                    assert_eq!(outcome(&pushed.expect("sent")), PushOutcome::Accepted);
                }
                step(&mesh);
                for mode in [Mode::Copy, Mode::Share] {
                    let newest = done(client.pull("w", Wanted::Newest, mode)).expect("it is there");
                    assert_eq!(newest.version, Value::Int(2));
                    assert_eq!(whole(&mesh, &newest), expected(&[("a", 3.0)], count));
                    let first = done(client.pull("w", Wanted::Version(Value::Int(1)), mode)).expect("it is there");
                    assert_eq!(whole(&mesh, &first), expected(&[("a", 1.0), ("b", 2.0)], count));
                    let unchanged = done(client.pull("w", Wanted::NewerThan(Value::Int(2)), mode));
                    assert!(unchanged.expect("it is there").is_unchanged());
                    assert!(done(client.pull("w", Wanted::Version(Value::Int(3)), mode)).is_none());
                    if let Some(own) = &own {
                        let newest = own.pull("w", Wanted::Newest, mode).expect("no error").expect("it is there");
                        assert_eq!(whole(&mesh, &newest), expected(&[("a", 3.0)], count));
                    }
                }
                assert_eq!(done(client.versions("w")), [Value::Int(1), Value::Int(2)]);
                step(&mesh);
                if mesh.me().rank.0 == 2 {
                    let report = done(client.report());
                    assert_eq!((report.keys, report.versions, report.accepted, report.refused), (1, 2, 2, 1));
                    assert!(done(client.remove("w")));
                    assert!(!done(client.remove("w")));
                    assert_eq!(done(client.report()).bytes, 0);
                }
                mesh.finish().expect("all end");
            });
        }
    }
}

/// Readers by share see the memory of the server, and each keeps its snapshot whatever is pushed later.
#[test]
fn a_shared_pull_is_one_snapshot_for_all() {
    const COUNT: usize = 100_000;
    together(Expected::ranks(3), Transport::Shm, |mesh| {
        let (client, own) = begin(&mesh, deep(1));
        if mesh.me().rank.0 == 1 {
            assert!(done(client.push("w", map(&[("a", 1.0)], COUNT), 1_i64, None)).is_accepted());
        }
        step(&mesh);
        let copied_before = mesh.node().counts().bytes_copied;
        let pulled = done(client.pull("w", Wanted::Newest, Mode::Share)).expect("it is there");
        assert_eq!(mesh.node().counts().bytes_copied, copied_before, "nothing is copied");
        let Contents::Whole { tensors, .. } = &pulled.contents else { panic!("{pulled:?}") };
        assert!(tensors[0].buffer().is_shared_alias(), "nobody may write it");
        step(&mesh);
        if mesh.me().rank.0 == 2 {
            let pushed = done(client.push("w", map(&[("a", 2.0)], COUNT), 2_i64, Some(Value::Int(1))));
            assert_eq!(pushed.dropped.len(), 1, "the one that all of them read");
        }
        step(&mesh);
        assert_eq!(whole(&mesh, &pulled), expected(&[("a", 1.0)], COUNT));
        let newest = done(client.pull("w", Wanted::Newest, Mode::Share)).expect("it is there");
        assert_eq!(whole(&mesh, &newest), expected(&[("a", 2.0)], COUNT));
        drop(own);
        mesh.finish().expect("all end");
    });
}

/// A pusher may write its tensors when the push has returned, and those that it shares or moves are the table's own.
#[test]
fn what_a_pusher_writes_later_changes_nothing() {
    const COUNT: usize = 100_000;
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, move |mesh| {
            let (client, _own) = begin(&mesh, deep(9));
            let own_key = mesh.me().rank.0 as i64;
            let arena = |number: f32| mesh.node().capture(&floats(number, COUNT)).expect("memory");
            let mut version = 0_i64;
            for mode in [Mode::Copy, Mode::Move, Mode::Share] {
                if mode == Mode::Share && mesh.me().rank.0 == 1 && transport == Transport::Tcp {
                    continue;
                }
                let tensor = arena(1.0);
                let kept = (mode != Mode::Move).then(|| tensor.clone());
                let parts: Parts = [Part::new(tensor, mode)].into_iter().collect();
                let previous = (version > 0).then_some(Value::Int(version));
                version += 1;
                let pushed = client.push(own_key, Entry::new(Value::Tensor(0), parts), version, previous);
                let pushed = pushed.expect("it is sent");
                if mode == Mode::Share {
                    assert_eq!(outcome(&pushed), PushOutcome::Accepted);
                }
                if let Some(kept) = kept.filter(|kept| !kept.buffer().is_shared_alias()) {
                    kept.overwrite(&vec![0; 4 * COUNT], "test").expect("it was captured");
                }
                assert_eq!(outcome(&pushed), PushOutcome::Accepted);
                let pulled = done(client.pull(own_key, Wanted::Newest, Mode::Copy)).expect("it is there");
                let Contents::Whole { tensors, .. } = pulled.contents else { panic!("it is whole") };
                let numbers = tensors[0].to_vec::<f32>().expect("it is f32");
                assert!(numbers.iter().all(|number| *number == 1.0), "{mode:?}");
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn changes_move_alone() {
    const COUNT: usize = 50_000;
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let (client, own) = begin(&mesh, deep(3));
            if mesh.me().rank.0 == 1 {
                let first = map(&[("a", 1.0), ("b", 2.0), ("c", 3.0)], COUNT);
                done(client.push("w", first, 1_i64, None));
                let bytes = done(client.report()).bytes;
                let changed = map(&[("b", 20.0), ("d", 40.0)], COUNT);
                let pushed = done(client.push_changes("w", changed, &["c"], 2_i64, 1_i64));
                assert_eq!(pushed.outcome, PushOutcome::Accepted);
                let more = done(client.report()).bytes - bytes;
                assert!(more < bytes * 3 / 4, "{more} bytes more than {bytes}");
                let stale = done(client.push_changes("w", map(&[], COUNT), &[], 3_i64, 1_i64));
                assert_eq!((stale.outcome, stale.newest), (PushOutcome::Stale, Some(Value::Int(2))));
                let first = done(client.pull("w", Wanted::Version(Value::Int(1)), Mode::Copy)).expect("it is there");
                let Contents::Whole { value, tensors } = first.contents else { panic!("it is whole") };
                let pulled = done(client.pull("w", Wanted::NewerThan(Value::Int(1)), Mode::Copy));
                let pulled = pulled.expect("it is there");
                let Contents::Changes { changed, tensors: moved, removed } = &pulled.contents else {
                    panic!("{pulled:?}")
                };
                assert_eq!(read(&mesh, changed, moved), expected(&[("b", 20.0), ("d", 40.0)], COUNT));
                assert_eq!(removed, &["c"]);
                let (value, tensors) = pulled.applied_to((value, tensors)).expect("it is of that");
                let after = expected(&[("a", 1.0), ("b", 20.0), ("d", 40.0)], COUNT);
                assert_eq!(read(&mesh, &value, &tensors), after);
                // Whoever has a version that is not known is sent all.
                let all = done(client.pull("w", Wanted::NewerThan(Value::Int(7)), Mode::Copy)).expect("it is there");
                assert_eq!(whole(&mesh, &all), after);
                let error = failed(wait(&client.push_changes("w", map(&[], 1), &["x"], 9_i64, 2_i64).expect("sent")));
                assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
                let unknown = done(client.push_changes("v", map(&[], 1), &[], 9_i64, 2_i64));
                assert_eq!((unknown.outcome, unknown.newest), (PushOutcome::Stale, None));
            }
            step(&mesh);
            if let Some(own) = own {
                let pushed = own.push_changes("w", map(&[], 1), vec!["a".into()], 3_i64, 2_i64).expect("it fits");
                assert!(pushed.is_accepted());
                let newest = own.pull("w", Wanted::Newest, Mode::Copy).expect("no error").expect("it is there");
                assert_eq!(whole(&mesh, &newest), expected(&[("b", 20.0), ("d", 40.0)], COUNT));
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn a_watch_ends_when_there_is_another_version() {
    for transport in TRANSPORTS {
        together(Expected::ranks(3), transport, |mesh| {
            let (client, own) = begin(&mesh, deep(2));
            let first = client.watch("w", None, Mode::Copy).expect("begun");
            let here = own.as_ref().map(|own| own.watch("w", None, Mode::Copy).expect("begun"));
            let has_all = || own.as_ref().is_none_or(|own| own.report().watches == 4);
            until("all watch", has_all);
            step(&mesh);
            if mesh.me().rank.0 == 1 {
                done(client.push("w", map(&[("a", 1.0), ("b", 1.0)], 10), 1_i64, None));
            }
            for watch in [Some(first), here].into_iter().flatten() {
                assert_eq!(wait(&watch).expect("it was pushed").version, Value::Int(1));
            }
            // One that has an old version ends at once, and gets what has changed.
            let second = client.watch("w", Some(Value::Int(1)), Mode::Share).expect("begun");
            step(&mesh);
            if mesh.me().rank.0 == 2 {
                done(client.push_changes("w", map(&[("b", 2.0)], 10), &[], 2_i64, 1_i64));
            }
            let pulled = wait(&second).expect("it was pushed");
            let late = done(client.watch("w", Some(Value::Int(1)), Mode::Copy));
            for pulled in [pulled, late] {
                let Contents::Changes { changed, tensors, .. } = &pulled.contents else { panic!("{pulled:?}") };
                assert_eq!(read(&mesh, changed, tensors), expected(&[("b", 2.0)], 10));
            }
            step(&mesh);
            own.into_iter().for_each(|own| assert_eq!(own.report().watches, 0));
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn a_watch_that_nobody_wants_costs_nothing() {
    for transport in [Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(2), transport, |mesh| {
            let (client, own) = begin(&mesh, deep(1));
            let has = |count: usize| own.as_ref().is_none_or(|own| own.report().watches == count);
            if mesh.me().rank.0 == 1 {
                let watches: Vec<_> = (0..5).map(|_| client.watch("w", None, Mode::Copy).expect("begun")).collect();
                until("all are there", || done(client.report()).watches == 5);
                watches.iter().for_each(Work::cancel);
                for watch in &watches {
                    assert_eq!(failed(wait(watch)).kind(), ErrorKind::Cancelled);
                }
                until("none is there", || done(client.report()).watches == 0);
                let hasty = client.clone().with_timeout(Some(Duration::from_millis(5)));
                let error = failed(wait(&hasty.watch("w", None, Mode::Copy).expect("begun")));
                assert_eq!(error.kind(), ErrorKind::DeadlineExceeded);
                assert!(error.to_string().contains("watch"), "{error}");
                until("none is there", || done(client.report()).watches == 0);
            }
            step(&mesh);
            if let Some(own) = &own {
                let watch = own.watch("w", None, Mode::Copy).expect("begun");
                assert!(has(1));
                watch.cancel();
                assert!(has(0));
                assert_eq!(failed(wait(&watch)).kind(), ErrorKind::Cancelled);
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn watches_end_with_the_service_and_with_the_node() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let group = group(&mesh);
        if mesh.me().rank.0 == 0 {
            let versions = Versions::new(&mesh, deep(1)).expect("it makes sense");
            group.register("models", versions.service(), LONG).expect("a member").wait().expect("it is free");
            step(&mesh);
            until("somebody watches", || versions.report().watches == 1);
            group.deregister("models", LONG).expect("it is here").wait().expect("the index is there");
            until("nobody watches", || versions.report().watches == 0);
            step(&mesh);
            let watch = versions.watch("w", None, Mode::Copy).expect("begun");
            mesh.leave().expect("all is done");
            assert_eq!(failed(wait(&watch)).kind(), ErrorKind::Closed);
            assert_eq!(failed(versions.push("w", Entry::of(1.0), 1_i64, None)).kind(), ErrorKind::Closed);
        } else {
            step(&mesh);
            let client = group.versions("models", LONG).expect("begun").wait().expect("it is registered");
            let error = failed(wait(&client.watch("w", None, Mode::Copy).expect("begun")));
            assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
            let later = client.pull("w", Wanted::Newest, Mode::Copy).and_then(|work| wait(&work));
            assert_eq!(failed(later).kind(), ErrorKind::NotFound);
            step(&mesh);
            until("the server has left", || {
                let pull = client.pull("w", Wanted::Newest, Mode::Copy).and_then(|work| wait(&work));
                pull.is_err_and(|error| error.kind() == ErrorKind::PeerLost)
            });
            mesh.leave().expect("it is the last");
        }
    });
}

#[test]
fn a_pin_keeps_its_version_until_it_ends() {
    for transport in [Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(2), transport, |mesh| {
            let (client, own) = begin(&mesh, deep(1));
            if mesh.me().rank.0 == 1 {
                assert!(done(client.pin("w", None, LEASE)).is_none());
                done(client.push("w", map(&[("a", 1.0)], 10), 1_i64, None));
                let pin = done(client.pin("w", None, LEASE)).expect("it is there");
                assert_eq!(pin.version(), &Value::Int(1));
                done(client.push("w", map(&[("a", 2.0)], 10), 2_i64, Some(Value::Int(1))));
                assert_eq!(done(client.versions("w")), [Value::Int(1), Value::Int(2)]);
                let again = done(client.pin("w", Some(Value::Int(1)), LEASE)).expect("it is there");
                assert!(done(pin.release()) && !done(pin.release()));
                assert_eq!(done(client.versions("w")).len(), 2, "it is pinned again");
                drop(again);
                until("it is dropped", || done(client.versions("w")) == [Value::Int(2)]);
                // A lease ends by itself.
                let short = done(client.pin("w", None, Duration::from_millis(20))).expect("it is there");
                done(client.push("w", map(&[("a", 3.0)], 10), 3_i64, Some(Value::Int(2))));
                until("the lease is over", || done(client.report()).pins == 0);
                assert_eq!(done(client.versions("w")), [Value::Int(3)]);
                assert!(!done(short.release()));
                for lease in [Duration::ZERO, Duration::MAX] {
                    let error = failed(wait(&client.pin("w", None, lease).expect("sent")));
                    assert_eq!(error.kind(), ErrorKind::InvalidArgument, "{error}");
                }
                // One whose answer nobody has heard is taken back.
                let unheard = client.pin("w", None, LEASE).expect("sent");
                unheard.cancel();
                drop(wait(&unheard));
                drop(unheard);
                until("nothing is pinned", || done(client.report()).pins == 0);
            }
            step(&mesh);
            if let Some(own) = own {
                let pin = own.pin("w", None, LEASE).expect("there is room").expect("it is there");
                assert_eq!(own.report().pins, 1);
                drop(pin);
                assert_eq!(own.report().pins, 0);
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn what_does_not_fit_is_refused_by_name() {
    const COUNT: usize = 100_000;
    for transport in [Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(2), transport, |mesh| {
            let settings = VersionsSettings { bytes_max: 1_000_000, keys_max: 3, ..deep(4) };
            let (client, _own) = begin(&mesh, settings);
            if mesh.me().rank.0 == 1 {
                done(client.push("w", map(&[("a", 1.0)], COUNT), 1_i64, None));
                done(client.push("w", map(&[("a", 2.0)], COUNT), 2_i64, Some(Value::Int(1))));
                let third = done(client.push("w", map(&[("a", 3.0)], COUNT), 3_i64, Some(Value::Int(2))));
                assert_eq!(third.dropped.len(), 1, "the first makes room");
                done(client.push("v", map(&[("a", 4.0)], COUNT), 1_i64, None));
                assert_eq!(done(client.versions("w")), [Value::Int(3)]);
                for count in [COUNT, 3 * COUNT] {
                    let error = failed(wait(&client.push("u", map(&[("a", 5.0)], count), 1_i64, None).expect("sent")));
                    assert_eq!(error.kind(), ErrorKind::LimitExceeded);
                    let text = error.to_string();
                    assert!(text.contains("push") && text.contains("bytes_max") && text.contains("training"), "{text}");
                }
                for key in ["t", "s"] {
                    let pushed = client.push(key, Entry::of(1.0), 1_i64, None).expect("sent");
                    assert_eq!(wait(&pushed).is_ok(), key == "t");
                }
                let report = done(client.report());
                assert_eq!((report.keys, report.dropped_for_bytes, report.dropped_for_depth), (3, 2, 0));
            }
            mesh.finish().expect("all end");
        });
    }
}

#[test]
fn nonsense_is_refused() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        for settings in [deep(0), VersionsSettings { keys_max: 0, ..deep(1) }] {
            assert_eq!(failed(Versions::new(&mesh, settings)).kind(), ErrorKind::InvalidArgument);
        }
        let (client, own) = begin(&mesh, deep(1));
        let own = own.expect("it is here");
        let kind = |outcome: sheave_base::Result<Work<Pushed>>| failed(wait(&outcome.expect("sent"))).kind();
        let tensor = || Entry::of(floats(1.0, 1));
        assert_eq!(kind(client.push(Value::Tensor(0), tensor(), 1_i64, None)), ErrorKind::InvalidArgument);
        assert_eq!(kind(client.push("w", tensor(), Value::Tensor(0), None)), ErrorKind::InvalidArgument);
        let twice = Value::Map(vec![("a".into(), Value::None), ("a".into(), Value::None)]);
        assert_eq!(kind(client.push("w", Entry::from_value(twice), 1_i64, None)), ErrorKind::InvalidArgument);
        let missing = own.push("w", Entry::from_value(Value::Tensor(3)), 1_i64, None);
        assert_eq!(failed(missing).kind(), ErrorKind::InvalidArgument);
        assert!(done(client.push("w", tensor(), 1_i64, None)).is_accepted());
        assert_eq!(kind(client.push_changes("w", tensor(), &[], 2_i64, 1_i64)), ErrorKind::InvalidArgument);
        assert_eq!(kind(client.push_changes("w", map(&[], 1), &[], 2_i64, 1_i64)), ErrorKind::InvalidArgument);
        mesh.finish().expect("all end");
    });
}

/// As machin's ordered server: any push makes a key, and a version that is there is overwritten where it stands.
#[test]
fn machins_rules_hold_over_links() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let (client, _own) = begin(&mesh, VersionsSettings { rules: Rules::Machin, ..deep(2) });
        if mesh.me().rank.0 == 1 {
            let push = |version: i64, previous: i64, number: f64| {
                done(client.push("w", Entry::of(number), version, Some(Value::Int(previous)))).outcome
            };
            assert_eq!(push(1, 99, 1.0), PushOutcome::Accepted);
            assert_eq!(push(2, 1, 2.0), PushOutcome::Accepted);
            let pin = done(client.pin("w", Some(Value::Int(1)), LEASE)).expect("it is there");
            assert_eq!(push(1, 2, 1.5), PushOutcome::Pinned);
            assert!(done(pin.release()));
            assert_eq!(push(1, 2, 1.5), PushOutcome::Overwritten);
            assert_eq!(done(client.versions("w")), [Value::Int(1), Value::Int(2)]);
            let first = done(client.pull("w", Wanted::Version(Value::Int(1)), Mode::Copy)).expect("it is there");
            assert!(matches!(first.contents, Contents::Whole { value: Value::Float(1.5), .. }), "{first:?}");
        }
        mesh.finish().expect("all end");
    });
}

#[test]
fn guests_use_a_table_that_is_for_them() {
    for transport in [Transport::Shm, Transport::Tcp] {
        let mesh = host(transport);
        let group = group(&mesh);
        for (name, has_guests, is_for_trusted) in
            [("open", true, false), ("trusting", true, true), ("closed", false, true)]
        {
            let settings = VersionsSettings { has_guests, is_for_trusted, ..deep(1) };
            let versions = Versions::new(&mesh, settings).expect("it makes sense");
            group.register(name, versions.service(), LONG).expect("a member").wait().expect("it is free");
        }
        let (guest, _) = attach(&mesh, transport);
        let client = |key| VersionsClient::of_host(&guest, "training", key).expect("a key").with_timeout(LONG);
        let (open, closed) = (client("open"), client("closed"));
        done(open.push("w", map(&[("a", 1.0)], 100_000), 1_i64, None));
        let newest = done(open.pull("w", Wanted::Newest, Mode::Share)).expect("it is there");
        assert_eq!(whole(guest.mesh(), &newest), expected(&[("a", 1.0)], 100_000));
        // The host has not started this guest itself.
        for refusing in [closed, client("trusting")] {
            let refused = refusing.push("w", Entry::of(1.0), 1_i64, None).and_then(|work| wait(&work));
            assert_eq!(failed(refused).kind(), ErrorKind::NotPermitted);
        }
        assert_eq!(done(group.versions("trusting", LONG).expect("begun").wait().expect("here").report()).keys, 0);
        let invitation = mesh.invite_own("own").expect("there is room");
        let own = Guest::attach(guest_config(&invitation, transport)).expect("it is invited");
        let trusting = VersionsClient::of_host(&own, "training", "trusting").expect("a key").with_timeout(LONG);
        assert!(done(trusting.push("w", Entry::of(1.0), 1_i64, None)).is_accepted());
        own.leave().expect("the host is there");
        // What it holds ends with it.
        let here = group.versions("open", LONG).expect("begun").wait().expect("it is here");
        let pin = done(open.pin("w", None, LEASE)).expect("it is there");
        let watch = open.watch("v", None, Mode::Copy).expect("begun");
        until("it watches", || done(here.report()).watches == 1);
        assert_eq!(done(here.report()).pins, 1);
        guest.leave().expect("the host is there");
        until("all of it is gone", || {
            let report = done(here.report());
            (report.watches, report.pins) == (0, 0)
        });
        assert!(wait(&watch).is_err());
        drop(pin);
        mesh.finish().expect("it is alone");
    }
}

/// Counters that several nodes raise by compare and push: nothing is lost.
#[test]
fn no_accepted_push_is_lost() {
    const EACH: i64 = 300;
    for transport in [Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(4), transport, |mesh| {
            let (client, own) = begin(&mesh, deep(1));
            let (mut version, mut seen) = (None, 0);
            for _ in 0..EACH {
                loop {
                    let next = version.clone().map_or(1, |version| match version {
                        Value::Int(number) => number + 1,
                        other => panic!("{other:?}"),
                    });
                    let pushed = done(client.push("count", Entry::of(next), next, version.clone()));
                    version = pushed.newest.clone();
                    match version {
                        Some(Value::Int(number)) if number >= seen => seen = number,
                        ref other => panic!("{other:?} after {seen}"),
                    }
                    if pushed.is_accepted() {
                        break;
                    }
                }
            }
            step(&mesh);
            if let Some(own) = own {
                assert_eq!(own.versions("count").expect("a key"), [Value::Int(4 * EACH)]);
                assert_eq!(own.report().accepted, 4 * EACH as u64);
            }
            mesh.finish().expect("all end");
        });
    }
}

/// What it costs, for whoever reads the output; only that it is done is checked.
#[test]
fn what_it_costs() {
    together(Expected::ranks(2), Transport::Shm, |mesh| {
        let (client, _own) = begin(&mesh, deep(1));
        if mesh.me().rank.0 == 1 {
            let names: Vec<String> = (0..16).map(|at| format!("layer {at}")).collect();
            let entries: Vec<(&str, f32)> = names.iter().map(|name| (name.as_str(), 1.0)).collect();
            let (mut best, mut previous) = ([Duration::MAX; 3], None);
            for version in 0..30_i64 {
                let entry = map(&entries, 90_000);
                let begun = Instant::now();
                done(client.push("w", entry, version, previous.replace(Value::Int(version))));
                best[0] = best[0].min(begun.elapsed());
                drop(done(client.pull("w", Wanted::Newest, Mode::Share)));
                best[1] = best[1].min(begun.elapsed());
            }
            for _ in 0..2_000 {
                let begun = Instant::now();
                done(client.pull("w", Wanted::NewerThan(Value::Int(29)), Mode::Copy));
                best[2] = best[2].min(begun.elapsed());
            }
            common::note(&format!("5.76 MB: push {:?}, push and pull {:?}; unchanged {:?}", best[0], best[1], best[2]));
        }
        mesh.finish().expect("all end");
    });
}
