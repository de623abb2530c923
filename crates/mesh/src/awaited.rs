//! What a node's calls, barriers and departures wait for, for notices and tools.
//!
//! Of a call only the callee knows more than who that is, and of a barrier only the first member of its group. Both are
//! asked through a service that every node has ([`SERVICE`]): "what does my call of this number wait for?", "who has
//! not entered this barrier?". Nobody is asked over a link that would have to be made first, and whoever does not
//! answer soon is done without.

use crate::call::{Answer, Call, Callers, Lane, Request, Service};
use crate::driver::Shared;
use crate::engine::{GroupId, Lacking, OperationId};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::work::pair;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, limits};
use sheave_wire::Value;
use std::sync::{Arc, Weak};

/// The service by which nodes tell each other what their calls wait for.
const SERVICE: &str = "sheave.call";
/// What a call to a service waits for: the service's name and the call's number.
const CALL: &str = "call";
/// Who has not entered a barrier: the group and the barrier's number.
const BARRIER: &str = "barrier";

/// Sorts of things that a node waits for; the second number says which one.
#[derive(Clone, Copy)]
pub(crate) enum Sort {
    /// A call, by its number.
    Call,
    /// An operation of the engine, by its number.
    Operation,
    /// The join of this node.
    Join,
    /// The link to a node.
    Link,
    /// A promised object of this node, by its name.
    Object,
}

impl Shared {
    /// Who knows what that waits for: this.
    pub(crate) fn awaited(&self, sort: Sort, number: u64) -> Awaited {
        Awaited::new(self.weak() as Weak<dyn Describe>, [sort as u64, number])
    }

    /// Offers what others ask.
    pub(crate) fn serve_awaited(self: &Arc<Self>) -> Result<()> {
        self.serve_as(SERVICE, Arc::new(Answers(Arc::downgrade(self))))
    }

    pub(crate) fn name_of(&self, node: NodeId) -> String {
        self.peer_of(node).map_or_else(|| format!("node {node}"), |peer| peer.name)
    }

    /// Asks a member, unless a link would have to be made; `told` makes of the answer who is waited for.
    fn ask_member(
        self: &Arc<Self>,
        to: NodeId,
        method: &str,
        args: Vec<Value>,
        told: impl FnOnce(String) -> String + Send + 'static,
    ) -> Option<Work<String>> {
        self.routes.get(to)?;
        let call = Call { args: Value::List(args), deadline: Some(limits::WAIT_ANSWER), ..Call::default() };
        let call = self.call(to, SERVICE, method, call).ok()?;
        let (completer, work) = pair("asking");
        call.on_complete(move |answer: &Result<Answer>| {
            completer.complete(match answer {
                Ok(Answer { value: Value::Str(text), .. }) => Ok(told(text.clone())),
                Ok(_) => Err(Error::new(ErrorKind::NotFound, "the node knows no more")),
                Err(error) => Err(error.clone()),
            });
        });
        Some(work)
    }

    fn ask_callee(self: &Arc<Self>, number: u64) -> Option<Work<String>> {
        let (to, service, _) = self.calls.asked(number)?;
        let name = self.name_of(to);
        let told = move |text: String| format!("{name} ({text})");
        if to == self.me {
            let text = self.calls.awaited(&service, to, number)?;
            return Some(Work::ready("asking", Ok(told(text))));
        }
        self.ask_member(to, CALL, vec![Value::Str(service), Value::Int(number.cast_signed())], told)
    }

    fn ask_first(self: &Arc<Self>, number: u64) -> Option<Work<String>> {
        let Some(Lacking::Word { group, sequence, first }) = self.look(|engine| engine.lacking(OperationId(number)))
        else {
            return None;
        };
        let args = vec![Value::Int(group.0.cast_signed()), Value::Int(sequence.cast_signed())];
        self.ask_member(first, BARRIER, args, |text| text)
    }

    fn describe_operation(&self, number: u64) -> Option<Account> {
        let id = OperationId(number);
        let (what, lacking) = self.look(|engine| Some((engine.name_of_operation(id)?, engine.lacking(id))))?;
        let whom = lacking.map(|lacking| match lacking {
            Lacking::Members(names) => format!("{} to enter", names.join(", ")),
            Lacking::Word { first, .. } => format!("{}, which counts who has entered", self.name_of(first)),
            Lacking::Agreement => "the others to agree on who is gone".to_owned(),
            Lacking::Answers(names) => names.join(", "),
        });
        Some(Account { what: Some(what), whom })
    }
}

impl Describe for Shared {
    fn describe(&self, [sort, number]: Which) -> Option<Account> {
        match sort {
            sort if sort == Sort::Call as u64 => {
                let (to, service, method) = self.calls.asked(number)?;
                let what = Some(format!("call {number}, {service}.{method}"));
                Some(Account { what, whom: Some(self.name_of(to)) })
            }
            sort if sort == Sort::Operation as u64 => self.describe_operation(number),
            sort if sort == Sort::Join as u64 => {
                let missing = self.with_engine(|state, _| state.engine.missing_at_rendezvous());
                let whom = missing.unwrap_or_else(|| "the coordinator to say that all have come".to_owned());
                Some(Account { what: None, whom: Some(whom) })
            }
            sort if sort == Sort::Object as u64 => self.references.awaited_object(number),
            _ => Some(Account { what: None, whom: Some(self.name_of(NodeId(number))) }),
        }
    }

    fn ask(&self, [sort, number]: Which) -> Option<Work<String>> {
        let this = self.this()?;
        match sort {
            sort if sort == Sort::Call as u64 => this.ask_callee(number),
            sort if sort == Sort::Operation as u64 => this.ask_first(number),
            _ => None,
        }
    }
}

/// What is served.
struct Answers(Weak<Shared>);

impl Answers {
    fn answer(&self, request: &Request) -> Option<String> {
        let shared = self.0.upgrade()?;
        let Value::List(args) = &request.args else { return None };
        match (request.method.as_str(), args.as_slice()) {
            (CALL, [Value::Str(service), Value::Int(number)]) => {
                shared.calls.awaited(service, request.from, number.cast_unsigned())
            }
            (BARRIER, [Value::Int(group), Value::Int(sequence)]) => {
                let (group, sequence) = (GroupId(group.cast_unsigned()), sequence.cast_unsigned());
                shared.look(|engine| engine.not_entered(group, sequence)).map(|names| match names.is_empty() {
                    true => format!("{}, which has not made the group", shared.name_of(shared.me)),
                    false => format!("{} to enter", names.join(", ")),
                })
            }
            _ => None,
        }
    }
}

impl Service for Answers {
    fn handle(&self, request: Request) {
        let answer = self.answer(&request);
        request.reply.value(answer.map_or(Value::None, Value::Str));
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, method: &str) -> Callers {
        // What somebody's own call waits for is no secret to whoever has made it.
        if method == CALL { Callers::MembersAndGuests } else { Callers::Members }
    }
}
