//! Servers of models among nodes of one process, over real links.

use crate::common::{PATIENCE, failed, together, until};
use sheave_base::config::Transport;
use sheave_base::{ErrorKind, Result, Work};
use sheave_learner::{
    Choice, GradientClient, GradientServer, Model, ModelClient, ModelPulled, ModelServer, Servers, Settings, Tensors,
};
use sheave_mesh::{Expected, Mesh};
use sheave_optim::Rule;
use sheave_rpc::{Rpc, RpcGroup, VersionsSettings};
use sheave_tensor::{Mode, Tensor};
use std::time::Duration;

const LONG: Option<Duration> = Some(PATIENCE);

fn wait<T: Clone>(work: Result<Work<T>>) -> Result<T> {
    work?.wait_timeout(PATIENCE)
}

fn state(weights: &[f32], steps: i64) -> Tensors {
    let weights = Tensor::from_slice(weights, [weights.len() as u64]).expect("memory");
    let steps = Tensor::from_slice(&[steps], [1]).expect("memory");
    Tensors::from([("steps".to_owned(), steps), ("weights".to_owned(), weights)])
}

fn read(tensors: &Tensors) -> (Vec<f32>, i64) {
    let weights = tensors["weights"].to_vec::<f32>().expect("floats");
    (weights, tensors["steps"].to_vec::<i64>().expect("integers")[0])
}

/// Copies of what is shared with the server, which can be read.
fn own(mesh: &Mesh, tensors: &Tensors) -> Tensors {
    let copied = |(name, tensor): (&String, &Tensor)| (name.clone(), mesh.node().capture(tensor).expect("memory"));
    tensors.iter().map(copied).collect()
}

/// A node of a job whose first node has a server of models.
struct Node {
    mesh: Mesh,
    group: RpcGroup,
    server: Option<ModelServer>,
    rank: usize,
}

impl Node {
    fn new(mesh: &Mesh, depth: usize) -> Self {
        let rpc = Rpc::serve(mesh).expect("once");
        mesh.world().barrier().expect("all are there");
        let nodes: Vec<_> = mesh.members().iter().map(|member| member.node).collect();
        let group = rpc.create_group("learners", &nodes, LONG).wait().expect("all make it");
        let rank = mesh.me().rank.0 as usize;
        let settings = VersionsSettings { depth, ..VersionsSettings::default() };
        let start = || wait(ModelServer::start(mesh, &group, "models", settings, LONG)).expect("its name is free");
        let server = (rank == 0).then(start);
        let node = Self { mesh: mesh.clone(), group, server, rank };
        node.step();
        node
    }

    fn client(&self, model: &str) -> ModelClient {
        wait(ModelClient::connect(&self.group, "models", model, LONG)).expect("it is there")
    }

    fn step(&self) {
        wait(self.group.barrier(LONG)).expect("all come");
    }

    fn finish(self) {
        self.step();
        self.mesh.finish().expect("all end");
    }
}

fn each_transport(act: impl Fn(Mesh) + Copy + Send + 'static) {
    for transport in [Transport::Auto, Transport::Shm, Transport::Tcp] {
        together(Expected::ranks(3), transport, act);
    }
}

#[test]
fn one_of_those_who_push_from_a_version_is_accepted() {
    each_transport(|mesh| {
        let node = Node::new(&mesh, 1);
        let client = node.client("policy");
        let mut from = 0;
        for round in 1..=20_u64 {
            let own = state(&[node.rank as f32, round as f32], round as i64);
            let pushed = wait(client.push(&own, from)).expect("the server lives");
            assert_eq!(pushed.newest, round, "one of all, by whoever was first");
            node.step();
            let pulled = wait(client.pull(from, Mode::Copy)).expect("the server lives");
            assert_eq!(pulled.version, round);
            let (weights, steps) = read(&pulled.tensors);
            assert_eq!((weights[1], steps), (round as f32, round as i64));
            assert_eq!(pushed.is_accepted, weights[0] == node.rank as f32);
            from = pulled.version;
            node.step();
        }
        if let Some(server) = &node.server {
            let report = server.versions().report();
            assert_eq!((report.accepted, server.newest("policy").expect("a number")), (20, 20));
        }
        node.finish();
    });
}

#[test]
fn a_version_that_is_known_moves_nothing_and_a_change_moves_alone() {
    each_transport(|mesh| {
        let node = Node::new(&mesh, 2);
        let client = node.client("policy");
        let pull = |from, mode| wait(client.pull(from, mode)).expect("the server lives");
        assert_eq!(pull(0, Mode::Copy).version, 0, "nobody has pushed");
        node.step();
        if node.rank == 1 {
            let refused = failed(wait(client.push_changes(&state(&[1.0], 0), 0)));
            assert_eq!(refused.kind(), ErrorKind::InvalidArgument, "{refused}");
            assert!(refused.to_string().contains("\"policy\""), "{refused}");
            assert!(wait(client.push(&state(&[1.0, 2.0], 7), 0)).expect("it is the first").is_accepted);
        }
        let pulled = wait(client.watch(0, Mode::Share)).expect("somebody pushes");
        assert_eq!((pulled.version, read(&own(&mesh, &pulled.tensors))), (1, (vec![1.0, 2.0], 7)));
        assert!(pull(1, Mode::Share).tensors.is_empty());
        node.step();
        if node.rank == 2 {
            let changed = state(&[3.0, 4.0], 0).into_iter().filter(|(name, _)| name == "weights").collect();
            assert!(wait(client.push_changes(&changed, 1)).expect("the server lives").is_accepted);
        }
        let ModelPulled { version, tensors } = wait(client.watch(1, Mode::Copy)).expect("somebody pushes");
        assert_eq!((version, tensors.keys().map(String::as_str).collect::<Vec<_>>()), (2, vec!["weights"]));
        assert_eq!(read(&pull(0, Mode::Copy).tensors), (vec![3.0, 4.0], 7), "all of it for those who have nothing");
        node.finish();
    });
}

#[test]
fn gradient_servers_publish_into_a_model_and_go_on_behind_its_newest_version() {
    together(Expected::ranks(3), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, 1);
        let client = node.client("policy");
        let first = node.mesh.members()[0].node;
        let only = |value: f32| {
            Tensors::from([("weights".to_owned(), Tensor::from_slice(&[value, value], [2]).expect("memory"))])
        };
        let model = Model::of(&only(0.0)).expect("a model");
        let mut known = 0;
        for (start, name) in [(0, "first"), (4, "second")] {
            let servers = Servers { name: name.into(), primary: first, secondaries: vec![first] };
            let serve = |server: &ModelServer| {
                let begins = wait(client.pull(0, Mode::Copy)).expect("the server lives");
                assert_eq!(begins.version, start);
                let parameters = if start == 0 { only(10.0) } else { begins.tensors };
                let builder = GradientServer::builder(&node.mesh, &node.group, &servers, &model)
                    .settings(Settings { batch: 1, ..Settings::default() })
                    .optimizer(Rule::sgd(1.0).into())
                    .start_from(start, parameters)
                    .publish(server.publisher("policy"));
                wait(builder.start(LONG)).expect("its name is free")
            };
            let gradients = node.server.as_ref().map(serve);
            node.step();
            let choice = Choice::RoundRobin;
            let learner = wait(GradientClient::connect(&node.mesh, &node.group, &servers, choice, LONG));
            let learner = learner.expect("it is there");
            if node.rank > 0 {
                for _ in 0..2 {
                    wait(learner.push(&only(1.0))).expect("there is room");
                }
            }
            while known < start + 4 {
                let pulled = wait(client.watch(known, Mode::Share)).expect("it is published");
                let expected = 10.0 - pulled.version as f32;
                let pulled = ModelPulled { tensors: own(&node.mesh, &pulled.tensors), ..pulled };
                assert_eq!(pulled.tensors["weights"].to_vec::<f32>().expect("floats"), [expected, expected]);
                assert!(pulled.version > known);
                known = pulled.version;
            }
            node.step();
            drop(gradients);
            node.step();
        }
        node.finish();
    });
}

#[test]
fn a_gradient_server_whose_model_another_has_pushed_is_stopped_by_name() {
    together(Expected::ranks(1), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, 1);
        let client = node.client("policy");
        let weight = Tensors::from([("w".to_owned(), Tensor::from_slice(&[1.0_f32], [1]).expect("memory"))]);
        let servers = Servers::of_group("gradients", &node.group).expect("it is in it");
        let model = Model::of(&weight).expect("a model");
        let publisher = node.server.as_ref().expect("it is the first").publisher("policy");
        let builder = GradientServer::builder(&node.mesh, &node.group, &servers, &model)
            .settings(Settings { batch: 1, ..Settings::default() })
            .optimizer(Rule::sgd(1.0).into())
            .start_from(0, weight.clone())
            .publish(publisher);
        let server = wait(builder.start(LONG)).expect("its name is free");
        assert!(wait(client.push(&weight, 0)).expect("the server lives").is_accepted);
        let learner = wait(GradientClient::connect(&node.mesh, &node.group, &servers, Choice::RoundRobin, LONG));
        drop(wait(learner.expect("it is there").push(&weight)));
        let error = failed(server.watch().wait_timeout(PATIENCE));
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert!(error.to_string().contains("version 1 of the model \"policy\", which has version 1"), "{error}");
        node.finish();
    });
}

#[test]
fn what_is_no_model_is_refused_and_a_stopped_server_is_not_found() {
    together(Expected::ranks(2), Transport::Auto, |mesh| {
        let node = Node::new(&mesh, 1);
        let client = node.client("policy");
        if let Some(server) = &node.server {
            let push = |version: &str| server.versions().push("text", sheave_rpc::Entry::of("no map"), version, None);
            assert!(push("one").expect("it fits").is_accepted());
            assert_eq!(failed(server.newest("text")).kind(), ErrorKind::Mismatch);
        }
        node.step();
        let error = failed(wait(node.client("text").pull(0, Mode::Copy)));
        assert_eq!(error.kind(), ErrorKind::Mismatch, "{error}");
        assert_eq!(failed(wait(client.pull(u64::MAX, Mode::Copy))).kind(), ErrorKind::InvalidArgument);
        node.step();
        if let Some(server) = &node.server {
            server.stop();
            server.stop();
        }
        node.step();
        let error = failed(wait(client.pull(0, Mode::Copy)));
        assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains("\"policy\""), "{error}");
        node.finish();
    });
}

#[test]
fn a_server_stays_when_the_handle_of_a_stopped_one_of_its_name_goes() {
    each_transport(|mesh| {
        let mut node = Node::new(&mesh, 4);
        if let Some(old) = node.server.take() {
            old.stop();
            until("its name is free", || wait(ModelClient::connect(&node.group, "models", "policy", LONG)).is_err());
            let again = ModelServer::start(&mesh, &node.group, "models", VersionsSettings::default(), LONG);
            node.server = Some(wait(again).expect("its name is free again"));
            drop(old);
        }
        node.step();
        node.client("policy");
        node.finish();
    });
}
