//! What nodes ask each other.
//!
//! Requests are taken where they are found, in the order of each link, and put into mailboxes: so the messages of one
//! sender to one particle keep their order.

use crate::id::ParticleId;
use crate::message::Payload;
use crate::particle::{End, Particle};
use crate::particles::Inner;
use sheave_base::{Error, ErrorKind, NodeId, Result};
use sheave_mesh::{Call, Lane, Request, Service};
use sheave_net::Tensors;
use sheave_wire::Value;
use std::sync::Arc;

pub(crate) const SEND: &str = "send";
pub(crate) const CREATE: &str = "create";
pub(crate) const REMOVE: &str = "remove";
pub(crate) const LIST: &str = "list";

fn unreadable() -> Error {
    Error::new(ErrorKind::Protocol, "what was sent cannot be read").hint("run the same release of sheave on all nodes")
}

fn whole(number: u64) -> Result<Value> {
    i64::try_from(number).map(Value::Int).map_err(|_| Error::new(ErrorKind::InvalidArgument, "no such particle"))
}

/// A call that puts a message into a mailbox, and is answered with the answer.
pub(crate) fn send<M: Payload>(number: u64, name: &str, message: M) -> Result<Call> {
    let (value, tensors) = message.write()?;
    Ok(Call { args: Value::List(vec![whole(number)?, name.into(), value]), tensors, ..Call::default() })
}

/// A call that makes a particle of a kind.
pub(crate) fn create<M: Payload>(kind: &str, arguments: M) -> Result<Call> {
    let (value, tensors) = arguments.write()?;
    Ok(Call { args: Value::List(vec![kind.into(), value]), tensors, ..Call::default() })
}

/// A call about one particle.
pub(crate) fn number(number: u64) -> Result<Call> {
    Ok(Call::of(whole(number)?))
}

pub(crate) fn read_ids(node: NodeId, value: &Value) -> Result<Vec<ParticleId>> {
    let Value::List(numbers) = value else { return Err(unreadable()) };
    numbers.iter().map(|number| Ok(ParticleId { node, number: read_number(number)? })).collect()
}

fn read_number(value: &Value) -> Result<u64> {
    match value {
        Value::Int(number) => u64::try_from(*number).map_err(|_| unreadable()),
        _ => Err(unreadable()),
    }
}

/// The particles of a node, as others call them.
pub(crate) struct Served<M: Payload>(pub(crate) Arc<Inner<M>>);

impl<M: Payload> Served<M> {
    fn send(&self, request: Request) {
        let Request { args, tensors, reply, .. } = request;
        let read = || -> Result<(Arc<Particle<M>>, String, M)> {
            let Value::List(items) = args else { return Err(unreadable()) };
            let [number, Value::Str(name), value] = <[Value; 3]>::try_from(items).map_err(|_| unreadable())? else {
                return Err(unreadable());
            };
            Ok((self.0.found(read_number(&number)?)?, name, M::read(value, tensors)?))
        };
        let (particle, name, message) = match read() {
            Ok(read) => read,
            Err(error) => return reply.error(error.operation("send")),
        };
        let mut reply = Some(reply);
        let pushed = particle.push(&name, message, |_, _| match reply.take() {
            Some(reply) => End::There(reply),
            // It is asked once.
            None => unreachable!("one message has one end"),
        });
        match (pushed, reply) {
            // Nobody of this node waits for it.
            (Ok(true), _) => self.0.start(&particle),
            (Ok(false), _) => {}
            (Err((error, _)), Some(reply)) => reply.error(error.operation("send")),
            (Err(_), None) => {}
        }
    }

    fn create(&self, args: Value, tensors: Tensors) -> Result<Value> {
        let Value::List(items) = args else { return Err(unreadable()) };
        let [Value::Str(kind), value] = <[Value; 2]>::try_from(items).map_err(|_| unreadable())? else {
            return Err(unreadable());
        };
        self.0.create_kind(&kind, M::read(value, tensors)?).map(Value::from)
    }
}

impl<M: Payload> Service for Served<M> {
    fn handle(&self, request: Request) {
        if request.method == SEND {
            return self.send(request);
        }
        let Request { method, args, tensors, reply, .. } = request;
        let outcome = match method.as_str() {
            CREATE => self.create(args, tensors),
            REMOVE => read_number(&args).map(|number| Value::Bool(self.0.remove(number))),
            LIST => self.0.numbers().into_iter().map(whole).collect::<Result<_>>().map(Value::List),
            _ => Err(Error::new(ErrorKind::NotFound, format!("particles have no method {method:?}"))),
        };
        match outcome {
            Ok(value) => reply.value(value),
            Err(error) => reply.error(error),
        }
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}
