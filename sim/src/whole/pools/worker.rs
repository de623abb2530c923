//! What a worker does: what it is told to, and it writes that down.

use super::book::{Book, Order, What};
use crate::jobs::{JOIN_TIMEOUT, node_config, pause};
use crate::lockstep::{Trouble, World};
use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Guest, GuestConfig};
use sheave_pool::{Packet, Program, Turn, work};
use sheave_wire::Value;
use std::sync::Arc;
use std::time::Duration;

/// Longer than any world lasts: who waits so long is killed meanwhile.
const FOR_EVER: Duration = Duration::from_secs(3600);

/// What a worker is started with.
pub(super) struct Part {
    pub(super) process: usize,
    pub(super) slot: usize,
    pub(super) host: usize,
    pub(super) invitation: String,
    pub(super) turn: Turn,
    pub(super) world: World,
    pub(super) book: Arc<Book>,
}

impl Part {
    pub(super) fn run(self) {
        let (process, turn, book) = (self.process, self.turn.clone(), Arc::clone(&self.book));
        let config = GuestConfig {
            node: node_config(self.host),
            timeout: JOIN_TIMEOUT,
            ..GuestConfig::new(self.invitation.parse().expect("it was written so"))
        };
        let worked = Guest::attach(config).and_then(|guest| {
            let worked = work(&guest, turn, self, None);
            // Its host may be gone, which it was told already.
            drop(guest.leave());
            worked
        });
        book.leaves(process, &worked);
    }

    fn dies(&self) -> ! {
        self.book.kills(self.process);
        self.world.strike(Trouble::Kill(self.process));
        loop {
            pause(FOR_EVER);
        }
    }
}

impl Program for Part {
    type Function = i64;

    fn set_up(&self, setup: Option<Packet>) -> Result<()> {
        let value = setup.map_or(Ok(Value::None), |setup| setup.value())?;
        let expected = self.book.setup.of(self.slot);
        if value != expected {
            self.book.fault(format!("worker {} is set up with {value:?}; expected {expected:?}", self.process));
        }
        self.book.sets_up(self.process)
    }

    fn function(&self, definition: Packet) -> Result<i64> {
        match definition.value()? {
            Value::Int(number) => Ok(number),
            other => panic!("{other:?} where a number was expected"),
        }
    }

    fn run(&self, function: &i64, args: Packet) -> Result<Packet> {
        let (value, tensors) = args.into_value()?;
        let (number, own, order) = Order::of(&value);
        if *function != own {
            self.book.fault(format!("task {number} of function {own} calls {function}"));
        }
        if order.is_tensor && tensors.first().is_none_or(|tensor| tensor.len_bytes() as u64 != order.bytes / 8 * 8) {
            self.book.fault(format!("task {number} has lost its tensor"));
        }
        self.book.begins(number, self.process);
        if order.what == What::Dies {
            self.dies();
        }
        if !order.span.is_zero() {
            pause(order.span);
        }
        if order.what == What::DiesLater {
            self.dies();
        }
        self.book.finishes(number, self.process, &order);
        match order.what {
            What::Fails => Err(Error::new(ErrorKind::Mismatch, format!("planned {number}."))),
            _ => {
                let pad = Value::Bytes(vec![0; order.result_bytes as usize]);
                Packet::new(&Value::List(vec![Value::Int(number as i64), pad]), Default::default())
            }
        }
    }
}
