//! Commands that wait for others to leave with them.
//!
//! Values are written when a command is issued, once for all workers. Names of registers, which differ, are added for
//! each worker when the commands leave ([`Kept::write_to`]). So a register that nobody holds any more by then, and that
//! no command behind its own takes, never gets a name: its command says that nothing is to be filled, and the worker
//! lets go of what comes of it at once. Nobody can ask for it later, for who has no handle makes none.

use crate::args::Item;
use crate::commands::{Callee, Command, Commands};
use crate::results::Results;
use sheave_base::Result;
use sheave_base::planted::{self, Bug};
use sheave_mesh::{ArgList, Mark, Written};
use sheave_wire::Value;
use std::sync::Arc;

/// Instead of a function: the one of the command before in the same message.
pub(crate) const SAME: Value = Value::Bool(true);

/// Room for most commands: how many arguments, what is filled, the function and an argument.
const USUAL_ITEMS: usize = 4;

/// Part of a command.
enum Piece {
    /// It begins.
    Begin { args: Option<usize>, results: Arc<Results> },
    /// Items that are written already, up to there.
    Written(Mark),
    /// A register.
    Register(Arc<Results>),
}

/// Commands that have not left.
#[derive(Default)]
pub(crate) struct Kept {
    count: usize,
    pieces: Vec<Piece>,
    written: Written,
    /// The function of the last one, if it is in a register.
    callee: Option<Arc<Results>>,
}

impl Kept {
    /// Returns how many there are.
    pub(crate) fn len(&self) -> usize {
        self.count
    }

    /// Returns whether there are none.
    pub(crate) fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Adds a command with short arguments, whose registers have names; or nothing, if it fails.
    pub(crate) fn push(&mut self, command: &Command<'_>, results: &Arc<Results>) -> Result<()> {
        let (pieces, end) = (self.pieces.len(), self.written.end());
        let pushed = self.push_all(command, results);
        match pushed {
            Ok(()) => self.count += 1,
            Err(_) => {
                self.pieces.truncate(pieces);
                self.written.truncate(end);
                self.callee = None;
            }
        }
        pushed
    }

    fn push_all(&mut self, command: &Command<'_>, results: &Arc<Results>) -> Result<()> {
        let args = command.args.map_or(&[][..], |args| args.items());
        self.pieces.push(Piece::Begin { args: command.args.map(|_| args.len()), results: Arc::clone(results) });
        match command.callee {
            Callee::Named(name) => {
                self.callee = None;
                self.write(&Value::from(name))?;
            }
            Callee::Held(register)
                if self.callee.as_ref().is_some_and(|last| Arc::ptr_eq(last, register.results())) =>
            {
                self.write(&SAME)?;
            }
            Callee::Held(register) => {
                self.callee = Some(Arc::clone(register.results()));
                self.pieces.push(Piece::Register(Arc::clone(register.results())));
            }
        }
        args.iter().try_for_each(|item| match item {
            Item::Value(value) => self.write(value),
            Item::Register(register) => {
                self.pieces.push(Piece::Register(Arc::clone(register.results())));
                Ok(())
            }
            // Not among short arguments.
            Item::Placed(..) => self.write(&Value::None),
        })
    }

    fn write(&mut self, value: &Value) -> Result<()> {
        self.written.push(value)?;
        let end = self.written.end();
        match self.pieces.last_mut() {
            Some(Piece::Written(last)) => *last = end,
            _ => self.pieces.push(Piece::Written(end)),
        }
        Ok(())
    }

    /// Gives names to the results that somebody may use later. One that cannot be had says so to whoever uses it.
    pub(crate) fn draw_wanted(&self, commands: &Commands) {
        for piece in &self.pieces {
            // Nobody else can come by a handle if this is the only one.
            if let Piece::Begin { results, .. } = piece
                && Arc::strong_count(results) > 1
                && !planted::strikes(Bug::NameUndrawn)
            {
                let _ = results.refs(commands);
            }
        }
    }

    /// Writes all for a worker, of which the first has this number.
    pub(crate) fn write_to(&self, list: &mut ArgList, worker: usize, first: u64) -> Result<()> {
        list.reserve(self.count * USUAL_ITEMS, self.count);
        list.push(&Value::Int(first.cast_signed()))?;
        let mut from = Mark::default();
        for piece in &self.pieces {
            match piece {
                Piece::Begin { args, results } => {
                    list.push(&count(*args))?;
                    match results.of(worker) {
                        Some(held) => list.push_to_fill(held)?,
                        None => list.push(&Value::None)?,
                    }
                }
                Piece::Written(to) => list.push_written(&self.written, std::mem::replace(&mut from, *to), *to),
                Piece::Register(results) => match results.of(worker) {
                    Some(held) => list.push_ref(held)?,
                    None => list.push(&Value::None)?,
                },
            }
        }
        Ok(())
    }
}

/// How many arguments a command has, if its function is called.
pub(crate) fn count(args: Option<usize>) -> Value {
    args.map_or(Value::None, |args| Value::Int(args as i64))
}
