//! No stranger gets through, and whoever is turned away learns why, and nothing else.

use sheave_base::{Error, ErrorKind, NodeId, Secret, limits};
use sheave_wire::handshake::{Hello, Initiator, Medium, Refusal, RejectReason, Responder, Step, reject};

const SECRET: &[u8] = b"the secret of this job";
const OTHER_SECRET: &[u8] = b"the secret of another job";

fn hello(node: u64, name: &str, source: &str) -> Hello {
    Hello {
        host: format!("host-of-{name}"),
        pid: 4000 + node as u32,
        secret_source: source.into(),
        ..Hello::new(NodeId(node), name, Medium::Tcp)
    }
}

fn worker() -> Hello {
    hello(1, "worker-0", "SHEAVE_SECRET")
}

fn server() -> Hello {
    hello(2, "server-0", "cookie file ~/.config/sheave/cookie")
}

fn initiate(hello: Hello, secret: &[u8], nonce: u8) -> (Initiator, Vec<u8>) {
    Initiator::new(hello, Secret::new(secret).unwrap(), [nonce; 32]).unwrap()
}

fn respond(hello: Hello, secret: &[u8], nonce: u8) -> Responder {
    Responder::new(hello, Secret::new(secret).unwrap(), [nonce; 32]).unwrap()
}

/// How a handshake ended for one side.
type Outcome = Result<Vec<u8>, Error>;

fn bytes_of(step: Step, outcome: &mut Option<Outcome>) -> Vec<u8> {
    match step {
        Step::Need => Vec::new(),
        Step::Send(bytes) => bytes,
        Step::Done { send, session_key, .. } => {
            *outcome = Some(Ok(session_key.expose().to_vec()));
            send.unwrap_or_default()
        }
    }
}

fn take(fed: Result<sheave_wire::handshake::Progress, Refusal>, outcome: &mut Option<Outcome>) -> Vec<u8> {
    match fed {
        Ok(progress) => bytes_of(progress.step, outcome),
        Err(refusal) => {
            *outcome = Some(Err(refusal.error));
            refusal.send.unwrap_or_default()
        }
    }
}

/// Lets both sides talk until neither has anything to say; `change` may touch each message, counted from zero.
fn converse(
    (mut initiator, first): (Initiator, Vec<u8>),
    mut responder: Responder,
    mut change: impl FnMut(usize, &mut Vec<u8>),
) -> (Option<Outcome>, Option<Outcome>) {
    let (mut of_initiator, mut of_responder) = (None, None);
    let mut message = first;
    for index in 0..6 {
        change(index, &mut message);
        let is_for_responder = index % 2 == 0;
        let is_over = if is_for_responder { of_responder.is_some() } else { of_initiator.is_some() };
        if message.is_empty() || is_over {
            break;
        }
        message = match is_for_responder {
            true => take(responder.feed(&message), &mut of_responder),
            false => take(initiator.feed(&message), &mut of_initiator),
        };
    }
    (of_initiator, of_responder)
}

fn untouched(_: usize, _: &mut Vec<u8>) {}

fn errors_of(outcomes: (Option<Outcome>, Option<Outcome>)) -> (Error, Error) {
    let (of_initiator, of_responder) = outcomes;
    (of_initiator.unwrap().unwrap_err(), of_responder.unwrap().unwrap_err())
}

#[test]
fn holders_of_one_secret_meet_and_their_key_is_fresh() {
    let key = |nonce| {
        let outcomes = converse(initiate(worker(), SECRET, nonce), respond(server(), SECRET, 9), untouched);
        let (of_initiator, of_responder) = (outcomes.0.unwrap().unwrap(), outcomes.1.unwrap().unwrap());
        assert_eq!(of_initiator, of_responder);
        of_initiator
    };
    assert_ne!(key(1), key(2));
}

#[test]
fn a_wrong_secret_is_told_to_both_with_both_sources() {
    let outcomes = converse(initiate(worker(), OTHER_SECRET, 1), respond(server(), SECRET, 2), untouched);
    let (of_initiator, of_responder) = errors_of(outcomes);
    for error in [&of_initiator, &of_responder] {
        assert_eq!(error.kind(), ErrorKind::Unauthenticated);
        let hint = error.advice().unwrap();
        assert!(hint.contains("SHEAVE_SECRET") && hint.contains("~/.config/sheave/cookie"), "{error}");
        assert_eq!(error.operation_name(), Some("handshake"));
    }
    assert_eq!(of_initiator.about().unwrap().name, "server-0");
    assert_eq!(of_responder.about().unwrap().name, "worker-0");
}

#[test]
fn an_initiator_that_cannot_prove_anything_is_refused_by_the_responder() {
    let mut responder = respond(server(), SECRET, 2);
    let (mut stranger, first) = initiate(worker(), SECRET, 1);
    let Step::Send(challenge) = responder.feed(&first).unwrap().step else { panic!("a challenge") };
    let Step::Send(mut proof) = stranger.feed(&challenge).unwrap().step else { panic!("a proof") };
    *proof.last_mut().unwrap() ^= 1;
    let refusal = responder.feed(&proof).unwrap_err();
    assert_eq!(refusal.error.kind(), ErrorKind::Unauthenticated);
    assert_eq!(refusal.send, Some(reject(RejectReason::Unauthenticated, &server())));
    assert_eq!(responder.feed(&proof).unwrap_err().error.kind(), ErrorKind::Closed, "there is no second try");
}

#[test]
fn a_wrong_version_names_both_on_both_sides() {
    let old = Hello { version_min: 3, version_max: 4, ..worker() };
    let new = Hello { version_min: 5, version_max: 7, ..server() };
    let (of_initiator, of_responder) =
        errors_of(converse(initiate(old, SECRET, 1), respond(new, SECRET, 2), untouched));
    for error in [&of_initiator, &of_responder] {
        assert_eq!(error.kind(), ErrorKind::Protocol);
        assert!(error.what().contains("3 to 4") && error.what().contains("5 to 7"), "{error}");
    }
}

#[test]
fn a_hello_of_a_later_version_is_understood_as_far_as_it_must_be() {
    // Whatever a later version puts behind its two version bytes, this one can say what is wrong.
    let mut responder = respond(server(), SECRET, 2);
    let later = [&[14, 0, 0, 0, 1][..], b"sheave", &[8, 9], b"?????"].concat();
    let refusal = responder.feed(&later).unwrap_err();
    assert!(refusal.error.what().contains("8 to 9"), "{}", refusal.error);
    assert_eq!(refusal.send, Some(reject(RejectReason::Version, &server())));
}

#[test]
fn the_newest_common_version_is_agreed_on() {
    let (mut initiator, first) = initiate(Hello { version_max: 6, ..worker() }, SECRET, 1);
    let mut responder = respond(Hello { version_max: 4, ..server() }, SECRET, 2);
    let Step::Send(challenge) = responder.feed(&first).unwrap().step else { panic!("a challenge") };
    let Step::Send(proof) = initiator.feed(&challenge).unwrap().step else { panic!("a proof") };
    let Step::Done { version, send, .. } = responder.feed(&proof).unwrap().step else { panic!("done") };
    assert_eq!(version, 4);
    let Step::Done { version, .. } = initiator.feed(&send.unwrap()).unwrap().step else { panic!("done") };
    assert_eq!(version, 4);
}

#[test]
fn what_holders_of_a_secret_disagree_about_is_told_to_both() {
    let shared = Hello { medium: Medium::SharedMemory, ..worker() };
    let small = Hello { limits_hash: 7, ..worker() };
    for disagreeing in [shared, small] {
        let (of_initiator, of_responder) =
            errors_of(converse(initiate(disagreeing, SECRET, 1), respond(server(), SECRET, 2), untouched));
        assert_eq!(of_initiator.kind(), ErrorKind::Mismatch, "{of_initiator}");
        assert_eq!(of_responder.kind(), ErrorKind::Mismatch, "{of_responder}");
        assert_eq!(of_initiator.about().unwrap().name, "server-0");
        assert_eq!(of_responder.about().unwrap().name, "worker-0");
    }
}

#[test]
fn echoes_are_refused() {
    // Everything comes back as it was sent.
    let (mut initiator, first) = initiate(worker(), SECRET, 1);
    let refusal = initiator.feed(&first).unwrap_err();
    assert_eq!(refusal.error.kind(), ErrorKind::Unauthenticated);

    // A node that connects to itself; a stranger that repeats the responder's nonce.
    for (node, nonce) in [(2, 1), (1, 2)] {
        let stranger = initiate(hello(node, "stranger", ""), SECRET, nonce);
        let (of_initiator, of_responder) = errors_of(converse(stranger, respond(server(), SECRET, 2), untouched));
        assert_eq!(of_responder.kind(), ErrorKind::Unauthenticated);
        assert_eq!(of_initiator.kind(), ErrorKind::Unauthenticated);
        assert!(of_initiator.advice().unwrap().contains("lead back"), "{of_initiator}");
    }
}

/// The classic: a stranger without the secret lets the victim answer its own challenge.
#[test]
fn proofs_that_come_back_prove_nothing() {
    let mut responder = respond(server(), SECRET, 2);
    let (_, first) = initiate(worker(), OTHER_SECRET, 1);
    let Step::Send(challenge) = responder.feed(&first).unwrap().step else { panic!("a challenge") };
    // Length and type of a proof, with the responder's own code as content.
    let reflected = [&[33, 0, 0, 0, 3][..], &challenge[5..37]].concat();
    assert_eq!(responder.feed(&reflected).unwrap_err().error.kind(), ErrorKind::Unauthenticated);

    // The same through a second connection: a proof made in one is no proof in another.
    let mut victim = respond(server(), SECRET, 3);
    let mut helper = respond(server(), SECRET, 4);
    let Step::Send(_) = victim.feed(&first).unwrap().step else { panic!("a challenge") };
    let Step::Send(borrowed) = helper.feed(&first).unwrap().step else { panic!("a challenge") };
    let borrowed = [&[33, 0, 0, 0, 3][..], &borrowed[5..37]].concat();
    assert!(victim.feed(&borrowed).is_err());
}

#[test]
fn a_recorded_conversation_is_worth_nothing_later() {
    let mut recorded = Vec::new();
    let keep = |_: usize, message: &mut Vec<u8>| recorded.push(message.clone());
    converse(initiate(worker(), SECRET, 1), respond(server(), SECRET, 2), keep);
    let [first, challenge, proof, accepted] = &recorded[..4] else { panic!("four messages") };

    let mut responder = respond(server(), SECRET, 3);
    responder.feed(first).unwrap();
    assert_eq!(responder.feed(proof).unwrap_err().error.kind(), ErrorKind::Unauthenticated);

    let (mut initiator, _) = initiate(worker(), SECRET, 4);
    assert_eq!(initiator.feed(challenge).unwrap_err().error.kind(), ErrorKind::Unauthenticated);

    // Even with an honest challenge before it, the old acceptance is refused.
    let (mut initiator, fresh) = initiate(worker(), SECRET, 5);
    let Step::Send(challenge) = respond(server(), SECRET, 6).feed(&fresh).unwrap().step else { panic!() };
    initiator.feed(&challenge).unwrap();
    assert!(initiator.feed(accepted).is_err());
}

#[test]
fn every_flipped_bit_of_every_message_ends_it() {
    let mut lengths = Vec::new();
    converse(initiate(worker(), SECRET, 1), respond(server(), SECRET, 2), |_, message| lengths.push(message.len()));
    for (flipped, length_bytes) in lengths.into_iter().take(4).enumerate() {
        for bit in 0..length_bytes * 8 {
            let (of_initiator, of_responder) =
                converse(initiate(worker(), SECRET, 1), respond(server(), SECRET, 2), |index, message| {
                    if index == flipped {
                        message[bit / 8] ^= 1 << (bit % 8);
                    }
                });
            assert!(!matches!(of_initiator, Some(Ok(_))), "message {flipped}, bit {bit}");
            // The responder is done before its last message leaves.
            assert!(flipped == 3 || !matches!(of_responder, Some(Ok(_))), "message {flipped}, bit {bit}");
        }
    }
}

#[test]
fn messages_out_of_turn_are_refused() {
    let conversation = crate::samples::conversation();
    let mut out_of_turn = 0;
    for (name, message) in conversation.iter().filter(|(name, _)| *name != "session_key") {
        let (mut initiator, mut responder, _) = crate::fuzz::both_sides();
        if *name != "hello" {
            assert!(responder.feed(message).is_err(), "{name} to a fresh responder");
            out_of_turn += 1;
        }
        if *name != "challenge" {
            assert!(initiator.feed(message).is_err(), "{name} to a fresh initiator");
            out_of_turn += 1;
        }
    }
    assert_eq!(out_of_turn, 8);
}

#[test]
fn a_rejection_says_a_reason_and_versions_and_nothing_else() {
    let reasons = RejectReason::ALL;
    for reason in reasons {
        let message = reject(*reason, &server());
        assert_eq!(message, [4, 0, 0, 0, 5, reason.code(), 3, 3]);
        let (mut initiator, _) = initiate(worker(), SECRET, 1);
        let refusal = initiator.feed(&message).unwrap_err();
        assert!(refusal.send.is_none(), "a rejection is not answered");
    }
    let (mut initiator, _) = initiate(worker(), SECRET, 1);
    let unknown = [4, 0, 0, 0, 5, 200, 1, 1];
    assert_eq!(initiator.feed(&unknown).unwrap_err().error.kind(), ErrorKind::Protocol);
}

#[test]
fn nothing_of_the_secret_is_said_or_printed() {
    let mut said = Vec::new();
    for secret in [SECRET, OTHER_SECRET] {
        let keep = |_: usize, message: &mut Vec<u8>| said.extend_from_slice(message);
        let outcomes = converse(initiate(worker(), secret, 1), respond(server(), SECRET, 2), keep);
        said.extend_from_slice(format!("{outcomes:?}").as_bytes());
    }
    let (mut initiator, _) = initiate(worker(), SECRET, 1);
    said.extend_from_slice(format!("{:?}", initiator.feed(b"GET / HTTP/1.1\r\n")).as_bytes());
    for secret in [SECRET, OTHER_SECRET] {
        assert!(!said.windows(secret.len()).any(|window| window == secret));
    }
}

#[test]
fn lengths_beyond_the_limit_are_refused_before_they_are_filled() {
    for length_bytes in [0, limits::HANDSHAKE_BYTES_MAX as u32 + 1, u32::MAX] {
        let mut responder = respond(server(), SECRET, 2);
        let (outcome, requested) =
            crate::allocation::requested_bytes(|| responder.feed(&length_bytes.to_le_bytes()).unwrap_err());
        assert_eq!(outcome.error.kind(), ErrorKind::Protocol);
        assert!(requested < 1024, "{requested} bytes for an error");
    }
    let mut responder = respond(server(), SECRET, 2);
    let largest = (limits::HANDSHAKE_BYTES_MAX as u32).to_le_bytes();
    assert!(matches!(responder.feed(&largest).unwrap().step, Step::Need));
}

#[test]
fn a_hello_that_cannot_be_sent_is_refused_at_once() {
    let new = |hello| Responder::new(hello, Secret::new(SECRET).unwrap(), [0; 32]).err().map(|error| error.kind());
    let long = "x".repeat(limits::HANDSHAKE_TEXT_BYTES_MAX);
    assert_eq!(new(Hello { name: long.clone(), ..server() }), None);
    assert_eq!(new(Hello { name: long + "x", ..server() }), Some(ErrorKind::InvalidArgument));
    assert_eq!(new(Hello { host: "a\x1b[2Jb".into(), ..server() }), Some(ErrorKind::InvalidArgument));
    assert_eq!(new(Hello { payload: vec![0; 3000], ..server() }), None);
    let payload = vec![0; limits::HANDSHAKE_BYTES_MAX];
    assert_eq!(new(Hello { payload, ..server() }), Some(ErrorKind::LimitExceeded));
}
