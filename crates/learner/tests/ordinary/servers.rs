//! Gradient servers among nodes of one process, over real links.

use crate::common::{PATIENCE, failed, together, until};
use sheave_base::config::Transport;
use sheave_base::{Error, ErrorKind, Result, Work, limits};
use sheave_learner::{
    Choice, GradientClient, GradientServer, GradientServerBuilder, Method, Model, Overflow, Servers, Settings, Tensors,
};
use sheave_mesh::{Answer, Call, Expected, Mesh, Request};
use sheave_net::Part;
use sheave_optim::{Decay, Optimizer, Rule};
use sheave_rpc::{Rpc, RpcGroup};
use sheave_tensor::{Dtype, Mode, Tensor};
use sheave_wire::Value;
use std::sync::mpsc::{Receiver, channel};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TRANSPORTS: [Transport; 3] = [Transport::Auto, Transport::Shm, Transport::Tcp];
const LONG: Option<Duration> = Some(PATIENCE);

fn weights(values: &[f32]) -> Tensors {
    Tensors::from([("weight".to_owned(), Tensor::from_slice(values, [values.len() as u64]).expect("memory"))])
}

fn values(tensors: &Tensors) -> Vec<f32> {
    tensors["weight"].to_vec::<f32>().expect("floats")
}

fn settings(method: Method, batch: usize) -> Settings {
    Settings { method, batch, ..Settings::default() }
}

fn wait<T: Clone>(work: Result<Work<T>>) -> Result<T> {
    work?.wait_timeout(PATIENCE)
}

/// A node of a job in which all are in one group, and the first is the primary.
struct Node {
    mesh: Mesh,
    group: RpcGroup,
    servers: Servers,
    rank: usize,
}

impl Node {
    /// These ranks are secondaries.
    fn new(mesh: &Mesh, secondaries: &[usize]) -> Self {
        let rpc = Rpc::serve(mesh).expect("once");
        mesh.world().barrier().expect("all are there");
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        let group = rpc.create_group("learners", &nodes, LONG).wait().expect("all make it");
        let secondaries = secondaries.iter().map(|rank| nodes[*rank]).collect();
        let servers = Servers { name: "gradients".into(), primary: nodes[0], secondaries };
        Self { mesh: mesh.clone(), group, servers, rank: mesh.me().rank.0 as usize }
    }

    fn serves(&self) -> bool {
        let node = self.mesh.me().node;
        self.servers.primary == node || self.servers.secondaries.contains(&node)
    }

    fn builder(&self, settings: Settings) -> GradientServerBuilder {
        let model = Model::of(&weights(&[0.0; 3])).expect("a model");
        GradientServer::builder(&self.mesh, &self.group, &self.servers, &model).settings(settings)
    }

    /// Starts a server where there is to be one, and waits until all have done so.
    fn start(&self, builder: GradientServerBuilder) -> Option<GradientServer> {
        let server = self.serves().then(|| wait(builder.start(LONG)).expect("its key is free"));
        self.step();
        server
    }

    /// As [`Node::start`], with parameters of 1, 2 and 3 that are stepped by their gradients; also what is published.
    fn start_with(&self, settings: Settings) -> (Option<GradientServer>, Receiver<(Vec<f32>, u64)>) {
        let (published, versions) = channel();
        let builder = self.builder(settings).optimizer(Rule::sgd(1.0).into()).start_from(0, weights(&[1.0, 2.0, 3.0]));
        let tell = move |parameters: Tensors, version| {
            published.send((values(&parameters), version)).map_err(|_| Error::new(ErrorKind::Closed, "nobody listens"))
        };
        (self.start(builder.publish(tell)), versions)
    }

    /// What others ask the server of this node, in place of one.
    fn stand_in(&self) -> Receiver<Request> {
        let ((heard, requests), key) = (channel(), format!("gradients/rank-{}", self.rank));
        wait(self.group.register(key, move |request: Request| _ = heard.send(request), LONG)).expect("its key is free");
        requests
    }

    fn connect(&self) -> GradientClient {
        wait(GradientClient::connect(&self.mesh, &self.group, &self.servers, Choice::RoundRobin, LONG)).expect("there")
    }

    fn step(&self) {
        wait(self.group.barrier(LONG)).expect("all come");
    }

    fn finish(self) {
        self.mesh.finish().expect("all end");
    }
}

fn push(client: &GradientClient, values: &[f32]) -> Result<u64> {
    wait(client.push(&weights(values)))
}

fn heard(versions: &Receiver<(Vec<f32>, u64)>) -> (Vec<f32>, u64) {
    versions.recv_timeout(PATIENCE).expect("it is published")
}

#[test]
fn four_gradients_are_a_step_of_two_levels() {
    for (method, expected) in [(Method::Mean, [-5.0_f32, -1.0, 1.0]), (Method::Sum, [-23.0, -10.0, -5.0])] {
        for transport in TRANSPORTS {
            together(Expected::ranks(3), transport, move |mesh| {
                let node = Node::new(&mesh, &[0, 1]);
                let (server, versions) = node.start_with(settings(method, 2));
                if node.rank == 2 {
                    let client = node.connect();
                    assert_eq!([(); 4].map(|()| push(&client, &[6.0, 3.0, 2.0]).expect("there is room")), [1, 2, 3, 4]);
                }
                if node.rank == 0 {
                    assert_eq!(heard(&versions), (expected.to_vec(), 1), "{method:?}, {transport:?}");
                }
                node.step();
                drop(server);
                node.finish();
            });
        }
    }
}

#[test]
fn all_learners_push_at_once_and_every_gradient_counts() {
    const COUNT: u64 = 50;
    for transport in TRANSPORTS {
        together(Expected::ranks(4), transport, |mesh| {
            let node = Node::new(&mesh, &[0, 1, 2, 3]);
            let (server, versions) = node.start_with(Settings { queue_max: 8, ..settings(Method::Sum, 3) });
            let client = node.connect();
            let pushes: Vec<_> = (0..COUNT).map(|_| client.push(&weights(&[1.0, 0.5, 0.0])).expect("sent")).collect();
            for push in pushes {
                wait(Ok(push)).expect("there is room");
            }
            node.step();
            if node.rank == 0 {
                let version = wait(client.flush()).expect("all live");
                let last = std::iter::repeat_with(|| heard(&versions)).find(|(_, number)| *number == version);
                let total = (4 * COUNT) as f32;
                assert_eq!(last.expect("it is the last").0, [1.0 - total, 2.0 - total / 2.0, 3.0]);
                let primary = server.as_ref().and_then(|server| server.report().primary).expect("it is the primary");
                assert_eq!((primary.applied, primary.version, primary.queued), (4 * COUNT, version, 0));
            }
            node.step();
            let report = wait(client.report()).expect("all live");
            assert_eq!((report.pushed, report.acknowledged, report.applied), (COUNT, COUNT, COUNT), "{report:?}");
            assert_eq!((report.pending, report.lost, report.dropped), (0, 0, 0));
            node.step();
            node.finish();
        });
    }
}

#[test]
fn partial_batches_are_flushed_by_request_and_their_mean_is_true() {
    for transport in TRANSPORTS {
        together(Expected::ranks(3), transport, |mesh| {
            let node = Node::new(&mesh, &[1, 2]);
            let (_server, versions) = node.start_with(settings(Method::Mean, 4));
            if node.rank == 0 {
                let client = node.connect();
                // Two go to one secondary and one to the other.
                for value in [1.0, 5.0, 3.0] {
                    push(&client, &[value, 0.0, 0.0]).expect("there is room");
                }
                assert_eq!(wait(client.report()).expect("all live").pending, 3);
                assert_eq!(wait(client.flush()).expect("all live"), 1);
                assert_eq!(heard(&versions), (vec![1.0 - 3.0, 2.0, 3.0], 1));
                assert_eq!(wait(client.flush()).expect("all live"), 1, "there is nothing more");
                assert_eq!(wait(client.report()).expect("all live").applied, 3);
            }
            node.step();
            node.finish();
        });
    }
}

#[test]
fn partial_batches_go_on_after_a_time() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[1]);
            let soon = Settings { flush_after: Some(Duration::from_millis(20)), ..settings(Method::Mean, 4) };
            let (_server, versions) = node.start_with(soon);
            if node.rank == 0 {
                let client = node.connect();
                for version in 1..=3 {
                    push(&client, &[2.0, 0.0, 1.0]).expect("there is room");
                    let steps = version as f32;
                    assert_eq!(heard(&versions), (vec![1.0 - 2.0 * steps, 2.0, 3.0 - steps], version));
                }
            }
            node.step();
            node.finish();
        });
    }
}

#[test]
fn a_server_flushes_what_it_has() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, &[0]);
        let (server, versions) = node.start_with(settings(Method::Sum, 2));
        let (server, client) = (server.expect("it serves"), node.connect());
        push(&client, &[1.0, 0.0, 0.0]).expect("there is room");
        server.flush();
        until("the sum is at the primary", || server.report().forwarded == 1);
        server.flush();
        assert_eq!(heard(&versions), (vec![0.0, 2.0, 3.0], 1));
        node.finish();
    });
}

/// Steps wait for a word, and so fill all queues: one gradient is in a step, two are queued at the primary, one waits
/// there, and two are queued at the secondary.
fn full(
    overflow: Overflow,
    act: impl Fn(&Node, Option<&GradientServer>, &GradientClient, &dyn Fn()) + Clone + Send + 'static,
) {
    for transport in TRANSPORTS {
        let act = act.clone();
        together(Expected::ranks(2), transport, move |mesh| {
            let node = Node::new(&mesh, &[1]);
            let (go, waits) = channel::<()>();
            let step = move |_, _| {
                // Ends when the other side goes.
                let _ = waits.recv_timeout(PATIENCE);
                Ok(None)
            };
            let dropped = Arc::new(Mutex::new(Vec::new()));
            let noted = Arc::clone(&dropped);
            let on_drop = move |ids: &[sheave_learner::GradientId]| {
                noted.lock().expect("nobody panics").extend(ids.iter().map(|id| id.number));
            };
            let settings = Settings { queue_max: 2, overflow, ..settings(Method::Sum, 1) };
            let server = node.start(node.builder(settings).step(step).on_drop(on_drop));
            let client = node.connect();
            let fill = || {
                for number in 1..=6 {
                    assert_eq!(push(&client, &[1.0; 3]).expect("there is room"), number);
                    let queued = [0, 0, 0, 0, 1, 2][number as usize - 1];
                    let server = server.as_ref().expect("it is the secondary");
                    until("what has room goes on", || server.report().queued == queued);
                }
            };
            if node.rank == 1 {
                act(&node, server.as_ref(), &client, &fill);
                assert_eq!(
                    *dropped.lock().expect("nobody panics"),
                    if overflow == Overflow::PushBack { vec![] } else { vec![5] }
                );
            } else {
                node.step();
                drop(go);
            }
            node.step();
            node.finish();
        });
    }
}

#[test]
fn who_pushes_too_much_waits() {
    full(Overflow::PushBack, |node, server, client, fill| {
        fill();
        let mut gradient = weights(&[1.0; 3]);
        let pushed = client.push(&gradient).expect("sent");
        let server = server.expect("it is the secondary");
        until("it waits for room", || server.report().waiting == 1);
        assert!(!pushed.is_done());
        let tensor = gradient.get_mut("weight").expect("it is there");
        assert_eq!(tensor.as_mut_slice::<f32>().expect_err("it is borrowed").kind(), ErrorKind::BufferInUse);
        // One that gives up is not taken.
        let late = client.push_within(&weights(&[1.0; 3]), Some(Duration::from_millis(20)));
        assert_eq!(failed(wait(late)).kind(), ErrorKind::DeadlineExceeded);
        node.step();
        assert_eq!(wait(Ok(pushed)).expect("there is room"), 7);
        assert_eq!(tensor.as_mut_slice::<f32>().expect("it is borrowed no more").len(), 3);
        wait(client.flush()).expect("all live");
        until("all is known", || wait(client.report()).expect("all live").pending == 0);
        let report = client.known();
        assert_eq!((report.pushed, report.acknowledged, report.lost), (8, 7, 0), "{report:?}");
        // Its time was up here a moment before it was there.
        assert!((report.applied, report.dropped) == (7, 1) || (report.applied, report.dropped) == (8, 0), "{report:?}");
    });
}

#[test]
fn the_oldest_is_dropped_and_reported() {
    full(Overflow::DropOldest, |node, server, client, fill| {
        fill();
        assert_eq!(push(client, &[1.0; 3]).expect("there is room then"), 7);
        let dropped = server.expect("it is the secondary").report().dropped;
        assert_eq!((dropped.count, dropped.latest[0].number), (1, 5));
        node.step();
        wait(client.flush()).expect("all live");
        let report = wait(client.report()).expect("all live");
        assert_eq!((report.acknowledged, report.applied, report.dropped, report.pending), (7, 6, 1, 0), "{report:?}");
    });
}

fn fails(
    builder: impl Fn(GradientServerBuilder) -> GradientServerBuilder + Clone + Send + 'static,
    text: &'static str,
) {
    for transport in TRANSPORTS {
        let builder = builder.clone();
        together(Expected::ranks(2), transport, move |mesh| {
            let node = Node::new(&mesh, &[0, 1]);
            let server = node.start(builder(node.builder(settings(Method::Sum, 1)))).expect("all serve");
            let client = node.connect();
            if node.rank == 1 {
                push(&client, &[1.0; 3]).expect("it is taken");
            }
            // Both end, with the same error, and so does every push from then on.
            let error = failed(wait(Ok(server.watch())));
            assert!(error.to_string().contains(text), "{error}");
            if node.rank == 1 {
                for _ in 0..2 {
                    let error = failed(push(&client, &[1.0; 3]));
                    assert!(error.to_string().contains(text), "{error}");
                }
            }
            node.step();
            assert!(failed(push(&client, &[1.0; 3])).to_string().contains(text));
            assert!(failed(wait(client.flush())).to_string().contains(text));
            // What was in the step that failed is in no other.
            let report = wait(client.report()).expect("the primary answers");
            assert_eq!((report.applied, report.dropped, report.pending), (0, report.acknowledged, 0), "{report:?}");
            node.step();
            node.finish();
        });
    }
}

#[test]
fn a_step_that_fails_stops_all_servers() {
    let error = || Error::new(ErrorKind::InvalidArgument, "the loss is not a number");
    fails(move |builder| builder.step(move |_, _| Err(error())), "the loss is not a number");
}

#[test]
fn a_step_that_panics_stops_all_servers() {
    fails(|builder| builder.step(|_, _| panic!("no luck")), "the callback of step panicked: no luck");
}

#[test]
fn a_version_that_is_not_published_stops_all_servers() {
    let optimizer = || Optimizer::from(Rule::sgd(1.0));
    let publish = |_, version| Err(Error::new(ErrorKind::Io, format!("no room for {version}")));
    fails(
        move |builder| builder.optimizer(optimizer()).start_from(6, weights(&[0.0; 3])).publish(publish),
        "no room for 7",
    );
}

#[test]
fn gradients_that_do_not_fit_are_named() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, &[0, 1]);
        let other = Model::new([("weight", Dtype::F64, [3].into())]).expect("a model");
        let model = if node.rank == 0 { Model::of(&weights(&[0.0; 3])).expect("a model") } else { other };
        let builder = GradientServer::builder(&node.mesh, &node.group, &node.servers, &model);
        let builder = builder.optimizer(Rule::sgd(1.0).into()).start_from(0, weights(&[0.0; 3]));
        let _server = node.start(builder);
        if node.rank == 0 {
            let client = node.connect();
            let error = failed(client.push(&weights(&[1.0; 2])));
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            let expected = "f32[2] for \"weight\"; expected f32[3]";
            assert!(error.to_string().contains(expected), "{error}");
            let double = Tensor::from_slice(&[1.0_f64; 3], [3]).expect("memory");
            let error = failed(client.push(&Tensors::from([("weight".into(), double)])));
            assert!(error.to_string().contains("f64[3] for \"weight\"; expected f32[3]"), "{error}");
            push(&client, &[1.0; 3]).expect("it fits");
            // The other secondary was given another model.
            let error = failed(push(&client, &[1.0; 3]));
            assert_eq!(error.kind(), ErrorKind::Mismatch);
            assert!(error.to_string().contains("of another model"), "{error}");
            assert_eq!(client.known().pushed, 2);
        }
        node.step();
        node.finish();
    });
}

#[test]
fn what_cannot_be_started_is_refused() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, &[0]);
        let kind = |builder: GradientServerBuilder| failed(builder.start(LONG)).kind();
        let rule = || Optimizer::from(Rule::sgd(1.0));
        assert_eq!(kind(node.builder(Settings::default())), ErrorKind::InvalidArgument);
        assert_eq!(kind(node.builder(Settings::default()).optimizer(rule())), ErrorKind::InvalidArgument);
        assert_eq!(kind(node.builder(settings(Method::Sum, 0)).step(|_, _| Ok(None))), ErrorKind::InvalidArgument);
        let other = weights(&[0.0; 2]);
        assert_eq!(kind(node.builder(Settings::default()).optimizer(rule()).start_from(0, other)), ErrorKind::Mismatch);
        let connect =
            |servers: &Servers, choice| GradientClient::connect(&node.mesh, &node.group, servers, choice, LONG);
        assert_eq!(failed(connect(&node.servers, Choice::Fixed(1))).kind(), ErrorKind::InvalidArgument);
        assert_eq!(failed(wait(connect(&node.servers, Choice::Fixed(0)))).kind(), ErrorKind::NotFound);
        let twice = Servers { secondaries: vec![node.servers.primary; 2], ..node.servers.clone() };
        assert_eq!(failed(connect(&twice, Choice::RoundRobin)).kind(), ErrorKind::InvalidArgument);
        node.finish();
    });
}

#[test]
fn versions_and_schedules_go_on_after_a_new_start() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[0, 1]);
            let (mut parameters, mut old) = (weights(&[8.0, 0.0, 0.0]), None);
            for start in 0..3 {
                let (published, versions) = channel();
                let decay = Decay::Step { every: 1, factor: 0.5, floor: 0.0 };
                let optimizer = Optimizer { schedule: decay.into(), ..Rule::sgd(1.0).into() };
                let builder = node.builder(settings(Method::Sum, 1)).optimizer(optimizer);
                let builder = builder.start_from(start, parameters.clone());
                let server = node.start(builder.publish(move |parameters, version| {
                    let _ = published.send((parameters, version));
                    Ok(())
                }));
                if node.rank == 0 {
                    let client = node.connect();
                    if let Some(old) = old.replace(client.clone()) {
                        assert_eq!(failed(wait(old.report())).kind(), ErrorKind::NotFound);
                    }
                    push(&client, &[4.0, 0.0, 0.0]).expect("there is room");
                    let version;
                    (parameters, version) = versions.recv_timeout(PATIENCE).expect("it is published");
                    assert_eq!(version, start + 1);
                }
                node.step();
                let server = server.expect("all serve");
                if node.rank == 0 {
                    // A secondary ends with its primary, and so before it.
                    node.step();
                }
                server.stop();
                wait(Ok(server.watch())).expect("it was stopped");
                let deregistered = || {
                    !wait(node.group.is_registered(format!("gradients/{}", node.mesh.name()), LONG)).expect("looked up")
                };
                until("nobody finds it any more", deregistered);
                if node.rank == 1 {
                    node.step();
                }
                node.step();
            }
            if node.rank == 0 {
                assert_eq!(values(&parameters), [8.0 - 4.0 - 2.0 - 1.0, 0.0, 0.0]);
            }
            node.finish();
        });
    }
}

#[test]
fn a_secondary_names_the_primary_that_was_stopped() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[1]);
            let (server, _versions) = node.start_with(settings(Method::Sum, 4));
            let server = server.expect("all serve");
            let client = (node.rank == 1).then(|| node.connect());
            node.step();
            if node.rank == 0 {
                server.stop();
            }
            if let Some(client) = client {
                let told = [failed(wait(Ok(server.watch()))), failed(push(&client, &[1.0; 3]))];
                for error in told {
                    assert_eq!(error.kind(), ErrorKind::Closed, "{error}");
                    assert_eq!(error.about().and_then(|peer| peer.node), Some(node.servers.primary), "{error}");
                    assert!(error.to_string().contains("peer rank-0 "), "{error}");
                    assert!(
                        error.to_string().contains("the primary of gradient servers gradients was stopped"),
                        "{error}"
                    );
                }
            }
            node.step();
            node.finish();
        });
    }
}

#[test]
fn what_a_stopped_server_had_taken_is_reported() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[1]);
            let (server, _versions) = node.start_with(settings(Method::Sum, 4));
            let client = (node.rank == 0).then(|| node.connect());
            if let Some(client) = &client {
                for _ in 0..3 {
                    push(client, &[1.0; 3]).expect("there is room");
                }
            }
            node.step();
            if node.rank == 1 {
                server.as_ref().expect("it serves").stop();
                assert_eq!(server.as_ref().expect("it serves").report().dropped.count, 3);
            }
            node.step();
            if let Some(client) = &client {
                let error = failed(push(client, &[1.0; 3]));
                assert!(matches!(error.kind(), ErrorKind::Closed | ErrorKind::NotFound), "{error}");
                until("the primary has heard of it", || wait(client.report()).expect("all live").pending == 0);
                let report = client.known();
                assert_eq!((report.acknowledged, report.dropped, report.applied), (3, 3, 0), "{report:?}");
            }
            node.step();
            node.finish();
        });
    }
}

/// A client of many pushes asks by itself what became of them.
#[test]
fn what_is_known_is_forgotten() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, &[1]);
        let step = |_, _| Ok(None);
        let _server = node.start(node.builder(settings(Method::Sum, 2)).step(step));
        if node.rank == 0 {
            let client = node.connect();
            let gradient = weights(&[1.0; 3]);
            for _ in 0..5_000 {
                wait(client.push(&gradient)).expect("there is room");
            }
            until("it asks by itself", || client.known().applied > 2_000);
            assert!(client.known().pending < 3_000, "{:?}", client.known());
            wait(client.flush()).expect("all live");
            assert_eq!(wait(client.report()).expect("all live").applied, 5_000);
        }
        node.step();
        node.finish();
    });
}

/// A client that gives up when the primary has heard of it and has not answered yet.
#[test]
fn who_gives_up_while_it_connects_says_goodbye() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[0]);
            if node.rank == 0 {
                let requests = node.stand_in();
                node.step();
                let hello = requests.recv_timeout(PATIENCE).expect("it connects");
                assert_eq!(hello.method, "hello");
                node.step();
                let goodbye = requests.recv_timeout(PATIENCE).expect("it says so");
                assert_eq!((goodbye.method.as_str(), goodbye.args), ("bye", hello.args));
            } else {
                node.step();
                let (group, servers) = (&node.group, &node.servers);
                let connecting = GradientClient::connect(&mesh, group, servers, Choice::RoundRobin, None);
                let connecting = connecting.expect("all of it has a meaning");
                node.step();
                connecting.cancel();
                assert_eq!(failed(connecting.wait_timeout(PATIENCE)).kind(), ErrorKind::Cancelled);
            }
            node.step();
            node.finish();
        });
    }
}

/// What a node knows that stands in for a secondary: a push, and so what a client that breaks the protocol sends.
struct Overheard {
    /// Says goodbye when it is dropped, and its push with it.
    client: Option<GradientClient>,
    pushing: Work<u64>,
    request: Request,
    segments: Vec<Tensor>,
}

impl Overheard {
    /// The first push of a client of this node, at the secondary of this node.
    fn new(node: &Node, requests: &Receiver<Request>) -> Self {
        let (group, servers) = (&node.group, &node.servers);
        let client = wait(GradientClient::connect(&node.mesh, group, servers, Choice::Fixed(1), LONG)).expect("there");
        let pushing = client.push(&weights(&[1.0; 3])).expect("it is on its way");
        let mut request = requests.recv_timeout(PATIENCE).expect("it comes");
        let segments = std::mem::take(&mut request.tensors).into_vec();
        Self { client: Some(client), pushing, request, segments }
    }

    /// Calls the primary with the same gradient.
    fn call(&self, node: &Node, method: &str, args: Value) -> Result<Answer> {
        let (primary, service) = wait(node.group.find("gradients/rank-0", LONG))?;
        let tensors = self.segments.iter().map(|segment| Part::new(segment.clone(), Mode::Copy)).collect();
        wait(node.mesh.call(primary, service, method, Call { tensors, ..Call::of(args) }))
    }

    /// Has the client say goodbye, and waits until the primary has heard it.
    fn part(&mut self, node: &Node) {
        self.pushing.cancel();
        self.client = None;
        let Value::List(push) = &self.request.args else { panic!("{:?}", self.request) };
        let nothing = Value::List(vec![push[0].clone(), Value::Int(1), Value::List(Vec::new())]);
        let is_unknown = |outcome: Result<_>| outcome.is_err_and(|error: Error| error.kind() == ErrorKind::NotFound);
        until("it is unknown", || is_unknown(self.call(node, "settle", nothing.clone())));
    }

    /// A sum that is the gradient, of which it says that it is made of these numbers.
    fn sum(&self, node: &Node, numbers: &[i64]) -> Value {
        let Value::List(push) = &self.request.args else { panic!("{:?}", self.request) };
        let own = node.mesh.me().node.0.cast_signed();
        let ids = numbers.iter().flat_map(|number| [Value::Int(own), push[0].clone(), Value::Int(*number)]);
        Value::List(vec![Value::None, push[2].clone(), Value::List(ids.collect()), Value::List(Vec::new())])
    }
}

#[test]
fn who_gives_a_number_twice_stops_no_server() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[0, 1]);
            if node.rank == 0 {
                let (server, versions) = node.start_with(settings(Method::Sum, 1));
                assert_eq!(heard(&versions), (vec![0.0, 1.0, 2.0], 1));
                assert_eq!(heard(&versions), (vec![-2.0, -1.0, 0.0], 2));
                node.step();
                let server = server.expect("it serves");
                assert!(!server.watch().is_done());
                let primary = || server.report().primary.expect("it is the primary");
                // A version is published before it is counted.
                until("both are in", || primary().applied == 2);
                // Of what was refused one gradient was in no other sum.
                assert_eq!((server.report().dropped.count, primary().dropped.count), (1, 1));
            } else {
                let requests = node.stand_in();
                node.step();
                let overheard = Overheard::new(&node, &requests);
                overheard.call(&node, "forward", overheard.sum(&node, &[1])).expect("it is the first time");
                // A secondary that sends a gradient again, or twice at once.
                for numbers in [&[1][..], &[7, 7]] {
                    let error = failed(overheard.call(&node, "forward", overheard.sum(&node, numbers)));
                    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                    let text = format!("gradient {} of client 0 of {}", numbers[0], mesh.me().node);
                    assert!(error.to_string().contains(&text), "{error}");
                }
                // A client that pushes it to another secondary too, which cannot know of that.
                overheard.call(&node, "push", overheard.request.args.clone()).expect("it is taken");
                overheard.request.reply.value(());
                assert_eq!(wait(Ok(overheard.pushing.clone())).expect("it was taken"), 1);
                let (group, servers) = (&node.group, &node.servers);
                let other = wait(GradientClient::connect(&mesh, group, servers, Choice::Fixed(0), LONG));
                push(&other.expect("all live"), &[2.0; 3]).expect("all live");
                node.step();
            }
            node.finish();
        });
    }
}

#[test]
fn who_gives_a_number_twice_at_one_secondary_is_refused_alone() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[0, 1]);
            if node.rank == 0 {
                let (server, versions) = node.start_with(settings(Method::Sum, 2));
                node.step();
                let server = server.expect("it serves");
                // What is flushed may not have come to the primary yet.
                until("there is a step", || {
                    server.flush();
                    server.report().primary.is_some_and(|primary| primary.version == 1)
                });
                assert_eq!(heard(&versions), (vec![-2.0, -1.0, 0.0], 1));
            } else {
                let requests = node.stand_in();
                node.step();
                let overheard = Overheard::new(&node, &requests);
                let again = || overheard.call(&node, "push", overheard.request.args.clone());
                again().expect("it is the first time there");
                assert_eq!(failed(again()).kind(), ErrorKind::AlreadyExists);
                let (group, servers) = (&node.group, &node.servers);
                let other = wait(GradientClient::connect(&mesh, group, servers, Choice::Fixed(0), LONG));
                push(&other.expect("all live"), &[2.0; 3]).expect("its sum is not refused");
                node.step();
            }
            node.step();
            node.finish();
        });
    }
}

/// The same gradient comes by another way after its client has gone, and so does one that has not come before.
#[test]
fn what_comes_again_after_a_goodbye_is_refused() {
    for transport in TRANSPORTS {
        together(Expected::ranks(2), transport, |mesh| {
            let node = Node::new(&mesh, &[0, 1]);
            if node.rank == 0 {
                let (server, versions) = node.start_with(settings(Method::Sum, 1));
                assert_eq!(heard(&versions), (vec![0.0, 1.0, 2.0], 1));
                assert_eq!(heard(&versions), (vec![-1.0, 0.0, 1.0], 2));
                node.step();
                let primary = || server.as_ref().and_then(|server| server.report().primary).expect("it serves");
                until("both are in", || primary().applied == 2);
                assert_eq!((primary().queued, primary().version), (0, 2));
            } else {
                let requests = node.stand_in();
                node.step();
                let mut overheard = Overheard::new(&node, &requests);
                overheard.call(&node, "forward", overheard.sum(&node, &[1])).expect("it is the first time");
                overheard.part(&node);
                overheard.call(&node, "forward", overheard.sum(&node, &[2])).expect("it was with a secondary");
                for number in [1, 2] {
                    let error = failed(overheard.call(&node, "forward", overheard.sum(&node, &[number])));
                    assert_eq!(error.kind(), ErrorKind::AlreadyExists, "{error}");
                }
                node.step();
            }
            node.step();
            node.finish();
        });
    }
}

/// The primary has bounded room for questions that take one for gone who is not.
#[test]
fn questions_that_nobody_waits_for_keep_no_room() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, &[0]);
        let (_server, _) = node.start_with(settings(Method::Sum, 1));
        let client = node.connect();
        let (primary, service) = wait(node.group.find("gradients/rank-0", LONG)).expect("it serves");
        let ask = |gone: u64| {
            let asked = vec![Value::Int(1), Value::Int(gone.cast_signed()), Value::Bool(true)];
            let settle = Value::List(vec![Value::Int(0), Value::Int(1), Value::List(asked)]);
            mesh.call(primary, service.clone(), "settle", settle).expect("it is sent")
        };
        let stranger = failed(ask(primary.0 ^ 1).wait_timeout(PATIENCE));
        assert_eq!(stranger.kind(), ErrorKind::InvalidArgument, "{stranger}");
        let asked: Vec<_> = (0..limits::LEARNER_CLIENTS_MAX).map(|_| ask(primary.0)).collect();
        let error = failed(wait(client.report()));
        assert_eq!(error.kind(), ErrorKind::LimitExceeded, "{error}");
        asked.iter().for_each(Work::cancel);
        until("their room is free", || wait(client.report()).is_ok());
        node.finish();
    });
}
