//! What a node's calls, barriers and departures wait for, for notices and tools.
//!
//! Of a call only the callee knows more than who that is, and of a barrier only the first member of its group. Both are
//! asked through a service that every node has ([`SERVICE`]): "what does my call of this number wait for?", "who has
//! not entered this barrier?". Nobody is asked over a link that would have to be made first, and whoever does not
//! answer soon is done without.

use crate::call::{AnswerOf, CallOptions, Lane, Method, Methods, TypedService};
use crate::driver::Shared;
use crate::engine::{GroupId, Lacking, OperationId};
use sheave_base::work::awaited::{Account, Awaited, Describe, Which};
use sheave_base::work::pair;
use sheave_base::{Error, ErrorKind, NodeId, Result, Work, limits};
use std::sync::{Arc, Weak};

/// The service by which nodes tell each other what their calls wait for.
const SERVICE: &str = "sheave.call";

/// What the caller's call to a service waits for: the service's number and the call's.
struct OfCall;

/// Who has not entered a barrier: the group and the barrier's number.
struct OfBarrier;

crate::methods! {
    service SERVICE;
    // What somebody's own call waits for is no secret to whoever has made it.
    1, "call": OfCall[(u64, u64)] -> Option<String>, MembersAndGuests;
    2, "barrier": OfBarrier[(u64, u64)] -> Option<String>, Members;
}

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
    /// Room for a call, by the number of the wait.
    Room,
}

impl Shared {
    /// Who knows what that waits for: this.
    pub(crate) fn awaited(&self, sort: Sort, number: u64) -> Awaited {
        Awaited::new(self.weak() as Weak<dyn Describe>, [sort as u64, number])
    }

    /// Offers what others ask.
    pub(crate) fn serve_awaited(self: &Arc<Self>) -> Result<()> {
        self.serve_typed(Arc::new(Answers(Arc::downgrade(self))))
    }

    pub(crate) fn name_of(&self, node: NodeId) -> String {
        self.peer_of(node).map_or_else(|| format!("node {node}"), |peer| peer.name)
    }

    /// Asks a member, unless a link would have to be made; `told` makes of the answer who is waited for.
    fn ask_member<M: Method<Args = (u64, u64), Answer = Option<String>>>(
        self: &Arc<Self>,
        to: NodeId,
        args: (u64, u64),
        told: impl FnOnce(String) -> String + Send + 'static,
    ) -> Option<Work<String>> {
        self.routes.get(to)?;
        let options = CallOptions { deadline: Some(limits::WAIT_ANSWER), ..CallOptions::default() };
        let call = self.call_typed::<M>(to, &args, options).ok()?;
        let (completer, work) = pair("asking");
        call.on_complete(move |answer: &Result<AnswerOf<M>>| {
            let text = answer.as_ref().map_err(Error::clone).and_then(|answer| {
                answer.value.clone().ok_or_else(|| Error::new(ErrorKind::NotFound, "the node knows no more"))
            });
            completer.complete(text.map(told));
        });
        Some(work)
    }

    fn ask_callee(self: &Arc<Self>, number: u64) -> Option<Work<String>> {
        let (to, service, _) = self.calls.asked(number)?;
        let name = self.name_of(to);
        let told = move |text: String| format!("{name} ({text})");
        if to == self.me {
            let text = self.calls.awaited(service.number(), to, number)?;
            return Some(Work::ready("asking", Ok(told(text))));
        }
        self.ask_member::<OfCall>(to, (service.number(), number), told)
    }

    fn ask_first(self: &Arc<Self>, number: u64) -> Option<Work<String>> {
        let Some(Lacking::Word { group, sequence, first }) = self.look(|engine| engine.lacking(OperationId(number)))
        else {
            return None;
        };
        self.ask_member::<OfBarrier>(first, (group.0, sequence), |text| text)
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
                let what = Some(format!("call {number}, {}.{method}", service.as_str()));
                let name = self.name_of(to);
                let whom = if self.calls.is_unlinked(number) { format!("the link to {name}") } else { name };
                Some(Account { what, whom: Some(whom) })
            }
            sort if sort == Sort::Operation as u64 => self.describe_operation(number),
            sort if sort == Sort::Join as u64 => {
                let missing = self.with_engine(|state, _| state.engine.missing_at_rendezvous());
                let whom = missing.unwrap_or_else(|| "the coordinator to say that all have come".to_owned());
                Some(Account { what: None, whom: Some(whom) })
            }
            sort if sort == Sort::Object as u64 => self.references.awaited_object(number),
            sort if sort == Sort::Room as u64 => self.awaited_room(number),
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

    fn cancel(&self, [sort, number]: Which) {
        if sort == Sort::Call as u64 {
            self.cancel_call(number);
        }
    }
}

/// What is served.
struct Answers(Weak<Shared>);

impl Answers {
    fn of_call(&self, from: NodeId, (service, number): (u64, u64)) -> Option<String> {
        self.0.upgrade()?.calls.awaited(service, from, number)
    }

    fn of_barrier(&self, (group, sequence): (u64, u64)) -> Option<String> {
        let shared = self.0.upgrade()?;
        shared.look(|engine| engine.not_entered(GroupId(group), sequence)).map(|names| match names.is_empty() {
            true => format!("{}, which has not made the group", shared.name_of(shared.me)),
            false => format!("{} to enter", names.join(", ")),
        })
    }
}

impl TypedService for Answers {
    const NAME: &'static str = SERVICE;

    fn methods(methods: Methods<Self>) -> Methods<Self> {
        methods
            .on::<OfCall>(|answers, request| request.reply.ok(&answers.of_call(request.from, request.args)))
            .on::<OfBarrier>(|answers, request| request.reply.ok(&answers.of_barrier(request.args)))
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }
}
