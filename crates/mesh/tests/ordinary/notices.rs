//! What waits for members say: who has not entered a barrier, and what a call waits for at its callee.

use crate::common::{together_with, until};
use sheave_base::NodeId;
use sheave_base::config::Transport;
use sheave_mesh::{Config, Expected, Lane, Mesh, Reply, Request, Service};
use sheave_wire::Value;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::sync::{Arc, Mutex};
use std::time::Duration;

const TRANSPORTS: [Transport; 2] = [Transport::Shm, Transport::Tcp];
const SPANS: &[Duration] = &[Duration::from_millis(300), Duration::from_secs(2)];

static SAID: Mutex<Vec<String>> = Mutex::new(Vec::new());

fn note(text: &str) {
    SAID.lock().expect("no panic").push(text.to_owned());
}

fn has_said(begin: &str, rest: &str) -> bool {
    let said = SAID.lock().expect("no panic");
    said.iter().any(|text| text.starts_with(begin) && text.contains(rest))
}

fn with_notices(count: u32, transport: Transport, act: impl Fn(&Mesh) + Clone + Send + 'static) {
    SAID.lock().expect("no panic").clear();
    let change = |config: &mut Config| (config.node.notice, config.node.notices) = (note, SPANS);
    together_with(Expected::ranks(count), transport, change, move |mesh| {
        act(&mesh);
        mesh.finish().expect("all are well");
    });
}

/// One after the other, for they share what was said.
#[test]
fn f64_waits_for_members_say_who_is_missing() {
    for transport in TRANSPORTS {
        barriers(transport);
        calls(transport);
        calls_whose_callee_is_stuck(transport);
    }
}

fn barriers(transport: Transport) {
    with_notices(3, transport, |mesh| {
        let all: Vec<NodeId> = mesh.members().iter().map(|member| member.node).collect();
        let group = mesh.group("three", &all).expect("all are members");
        if mesh.me().rank.0 == 2 {
            let what = "barrier on group three, sequence 0, has been waiting for rank-2 to enter, for ";
            // The first member counts, and the other has asked it.
            until("the word of rank 0", || has_said(&format!("rank-0: {what}"), ""));
            until("the word of rank 1", || has_said(&format!("rank-1: {what}"), ""));
            until("the word of rank 0, again", || has_said(&format!("rank-0: {what}2 s"), ""));
        }
        group.barrier().expect("all come");
        assert!(mesh.node().waits().is_empty());
    });
}

/// Keeps what it is asked for, and knows why.
#[derive(Clone, Default)]
struct Keeping(Arc<Mutex<Vec<Reply>>>);

impl Service for Keeping {
    fn handle(&self, request: Request) {
        self.0.lock().expect("no panic").push(request.reply);
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn awaited(&self, _: NodeId, number: u64) -> Option<String> {
        let kept = self.0.lock().expect("no panic");
        kept.iter().any(|reply| reply.number() == number).then(|| "the moon has not risen".to_owned())
    }
}

fn calls(transport: Transport) {
    let keeping = Keeping::default();
    with_notices(2, transport, move |mesh| {
        if mesh.me().rank.0 == 1 {
            mesh.serve("sky", keeping.clone()).expect("the name is free");
            mesh.world().barrier().expect("both come");
            let waits = ", sky.rise, has been waiting for rank-1 (the moon has not risen), for ";
            until("the caller's word", || has_said("rank-0: call ", waits));
            let kept = std::mem::take(&mut *keeping.0.lock().expect("no panic"));
            kept.into_iter().for_each(|reply| reply.value(Value::None));
        } else {
            mesh.world().barrier().expect("both come");
            let call = mesh.call(mesh.members()[1].node, "sky", "rise", Value::None).expect("it is sent");
            call.wait().expect("it is answered");
        }
    });
}

/// Its handler keeps the thread that would say what the call waits for.
#[derive(Clone, Default)]
struct Stuck(Arc<AtomicBool>);

impl Service for Stuck {
    fn handle(&self, request: Request) {
        until("the caller's word", || has_said("rank-0: call ", ""));
        self.0.store(true, SeqCst);
        request.reply.value(Value::None);
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}

fn calls_whose_callee_is_stuck(transport: Transport) {
    let stuck = Stuck::default();
    with_notices(2, transport, move |mesh| {
        if mesh.me().rank.0 == 1 {
            mesh.serve("sky", stuck.clone()).expect("the name is free");
        }
        mesh.world().barrier().expect("both come");
        if mesh.me().rank.0 == 0 {
            let call = mesh.call(mesh.members()[1].node, "sky", "fall", Value::None).expect("it is sent");
            call.wait().expect("it is answered");
            assert!(stuck.0.load(SeqCst), "the notice comes without the callee");
            assert!(has_said("rank-0: call ", ", sky.fall, has been waiting for rank-1, for "), "{:?}", SAID.lock());
        }
    });
}
