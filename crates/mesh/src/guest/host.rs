//! What a host does: it invites guests, takes them in at its door, and takes note of their ends.

use super::attached::{Departed, Farewell, Standing, digest_of};
use super::invitation::Invitation;
use super::{ATTACH, DOOR, READY};
use crate::awaited::Sort;
use crate::call::{Callers, Lane, Request, Service};
use crate::driver::Shared;
use crate::endpoints::CALLS;
use crate::engine::Member;
use crate::mesh::Mesh;
use sheave_base::work::Completer;
use sheave_base::{Error, ErrorKind, LinkId, NodeId, Peer, Result, Secret, Tag, Work, limits};
use sheave_net::{Address, Envelope, Outgoing, Parts};
use sheave_wire::Value;
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Weak};

/// The context of a word for [`CALLS`] by which an attached node says that it ends. Its aux is one of the next two, its
/// control part the reason of a failure.
const ENDS: u64 = 3;
const ENDS_BY_LEAVING: u32 = 0;
const ENDS_BY_FAILING: u32 = 1;

/// A guest, as its host knows it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct AttachedGuest {
    /// Its identity, by which it is called.
    pub node: NodeId,
    /// The name that its host has given it, unique among the host's guests and none of a member.
    pub name: String,
    /// The name of the machine on which it runs.
    pub host: String,
    /// Its process id there.
    pub pid: u32,
}

impl AttachedGuest {
    pub(super) fn of(peer: &Peer) -> Self {
        let (name, host) = (peer.name.clone(), peer.host.clone().unwrap_or_default());
        Self { node: peer.node.unwrap_or_default(), name, host, pid: peer.pid.unwrap_or_default() }
    }
}

impl Mesh {
    /// Invites a guest: a process that attaches itself to this node and is no member of the mesh. The text of the
    /// invitation ([`Invitation::to_text`]) is for that process alone, which may use it once, with
    /// [`Guest::attach`](crate::Guest::attach). The guest is named after this node, the label and a number, as in
    /// `rank-0.worker-3`. Guests reach this node where members do: through shared memory where both are on one host.
    ///
    /// # Errors
    ///
    /// `LimitExceeded` if this node has [`limits::GUESTS_MAX`] guests and open invitations, `InvalidArgument` for a
    /// label that is empty, longer than [`limits::GUEST_LABEL_BYTES_MAX`], or of other letters than `a` to `z`, `0` to
    /// `9`, `-` and `_`; whatever ended this node's membership.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Guest, GuestConfig, Mesh, Request, Role};
    /// # use sheave_base::config::Endpoint;
    /// # use sheave_wire::Value;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
    /// let invitation = mesh.invite("worker")?;
    /// // In another process, as a rule, which finds the text in its environment.
    /// let guest = Guest::attach(GuestConfig::new(invitation.to_text().parse()?))?;
    /// guest.serve("greeter", |request: Request| request.reply.value("hello"))?;
    /// let called = mesh.guests().remove(0);
    /// assert_eq!(called.name, "rank-0.worker-1");
    /// # use sheave_mesh::Callers;
    /// assert_eq!(mesh.call(called.node, "greeter", "greet", Value::None)?.wait()?.value, Value::from("hello"));
    /// guest.leave()?;
    /// mesh.guest_end(called.node)?.wait()?;
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn invite(&self, label: &str) -> Result<Invitation> {
        self.shared.invite(label, false).map_err(|error| error.operation("invite"))
    }

    /// As [`Mesh::invite`], for a process that this one starts itself and trusts as it does itself: it alone is given
    /// the invitation. [`Mesh::trusts`] says so of the guest.
    ///
    /// # Errors
    ///
    /// As [`Mesh::invite`].
    pub fn invite_own(&self, label: &str) -> Result<Invitation> {
        self.shared.invite(label, true).map_err(|error| error.operation("invite"))
    }

    /// Whether this node may take a program from that one, as a pickle is: from members of its mesh, from its host, and
    /// from those of its guests that this process has started itself ([`Mesh::invite_own`]), while they are there and
    /// as long as they are remembered.
    #[must_use]
    pub fn trusts(&self, node: NodeId) -> bool {
        let (shared, attached) = (&self.shared, &self.shared.attached);
        if attached.has(node) { attached.is_own(node) || attached.is_host(node) } else { shared.member(node).is_some() }
    }

    /// Lets a guest go, without a wait: behind all that this node has sent to it, it hears that its host has left it,
    /// and [`Guest::until_gone`](crate::Guest::until_gone) returns there. Here it counts as one that has left; calls
    /// that wait for their answers, or for room in its window, end with `PeerLost`. Nothing happens if it is gone
    /// already.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such guest, and was none that is remembered.
    pub fn dismiss(&self, node: NodeId) -> Result<()> {
        let shared = &self.shared;
        let Some(link) = shared.attached.link_of(node) else { return self.guest_end(node).map(drop) };
        // An end that this node wants is one in order.
        shared.attached.says_farewell(node, link, Farewell::Dismissed);
        shared.say_farewell_to(link, None);
        let reason = Error::new(ErrorKind::Closed, "this node has let the guest go");
        let reason = shared.attached.peer(node).map_or(reason.clone(), |peer| reason.peer(peer));
        // The link may have ended meanwhile, which is as good.
        let _ = shared.node.close_because(link, &reason);
        Ok(())
    }

    /// Returns the job's secret, which a process needs besides its invitation.
    #[must_use]
    pub fn secret(&self) -> Option<Secret> {
        self.shared.node_config().secret.as_ref().map(|resolved| resolved.secret.clone())
    }

    /// Withdraws the invitation for this name. False if it is not open: its guest has come, or it was withdrawn.
    pub fn withdraw_invitation(&self, name: &str) -> bool {
        let waiting = self.shared.attached.uninvite(name);
        let is_open = waiting.is_some();
        if let Some(completer) = waiting {
            let what = format!("the invitation of {name} was withdrawn");
            completer.complete(Err(Error::new(ErrorKind::Cancelled, what).operation("guest_arrival")));
        }
        is_open
    }

    /// The guests of this node, by name.
    #[must_use]
    pub fn guests(&self) -> Vec<AttachedGuest> {
        self.shared.attached.guests()
    }

    /// Returns a member, a guest or the host of this node as errors name it, those that are gone and remembered too.
    #[must_use]
    pub fn peer_of(&self, node: NodeId) -> Option<Peer> {
        let attached = self.shared.attached.peer(node);
        attached.or_else(|| self.shared.member(node).map(Member::peer))
    }

    /// A work that ends when the guest of this name is attached; at once if it is. It ends with an error when its
    /// invitation is withdrawn or this node is no member any more.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is neither such an invitation nor such a guest.
    pub fn guest_arrival(&self, name: &str) -> Result<Work<AttachedGuest>> {
        self.shared.attached.arrival(name).map_err(|error| error.operation("guest_arrival"))
    }

    /// A work that ends when this guest has said that it is ready ([`Guest::ready`](crate::Guest::ready)): at once if
    /// it has, and with the error that says how it was lost if it is gone.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such guest, and was none that is remembered.
    pub fn guest_ready(&self, node: NodeId) -> Result<Work<()>> {
        self.shared.attached.ready_of(node).map_err(|error| error.operation("guest_ready"))
    }

    /// A work that ends when this guest has left in order, or with the error that says how it was lost. Services have
    /// heard of it by then. Of the last [`limits::GUESTS_MAX`] guests that are gone it tells afterwards too.
    ///
    /// # Errors
    ///
    /// `NotFound` if there is no such guest, and was none that is remembered.
    pub fn guest_end(&self, node: NodeId) -> Result<Work<()>> {
        self.shared.attached.end_of(node).map_err(|error| error.operation("guest_end"))
    }
}

/// The service that takes guests in.
struct Door(Weak<Shared>);

impl Service for Door {
    fn handle(&self, request: Request) {
        let admitted = match self.0.upgrade() {
            Some(shared) if request.method == READY => shared.hear_ready(request.from),
            Some(shared) => shared.take_in(&request),
            None => Err(Error::new(ErrorKind::Closed, "this node has ended")),
        };
        request.reply.send(admitted.map(|rank| (Value::Int(rank), Parts::default())));
    }

    fn lane(&self) -> Lane {
        Lane::Inline
    }

    fn callers(&self, _: &str) -> Callers {
        Callers::Strangers
    }
}

impl Shared {
    /// Opens the door for guests. Nobody comes in without an invitation.
    pub(crate) fn serve_guests(self: &Arc<Self>) -> Result<()> {
        self.serve_named(DOOR, Door(Arc::downgrade(self)))
    }

    fn invite(&self, label: &str, is_own: bool) -> Result<Invitation> {
        if let Some(error) = self.failure() {
            return Err(error.clone());
        }
        let is_word = |letter: u8| letter.is_ascii_lowercase() || letter.is_ascii_digit() || b"-_".contains(&letter);
        if !(1..=limits::GUEST_LABEL_BYTES_MAX).contains(&label.len()) || !label.bytes().all(is_word) {
            let what = format!("{label:?} is no label of a guest");
            let hint =
                format!("a label has up to {} letters of a to z, 0 to 9, - and _", limits::GUEST_LABEL_BYTES_MAX);
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
        }
        let me = self.member(self.me).unwrap_or(&self.introduced);
        let host = me.introduction.name.clone();
        let mut address: Address = me.introduction.address.parse()?;
        (address.node, address.name) = (self.me, host.clone());
        let named = |number: u64| format!("{host}.{label}-{number}");
        if named(u64::MAX).len() > limits::HANDSHAKE_TEXT_BYTES_MAX {
            let most = limits::HANDSHAKE_TEXT_BYTES_MAX;
            let what = format!("a guest of {host} labelled {label} would have a name of more than {most} bytes");
            return Err(Error::new(ErrorKind::InvalidArgument, what).hint("use a shorter label"));
        }
        let is_member = |name: &str| self.table().iter().any(|member| member.introduction.name == name);
        let draw = |name| {
            let invitation = Invitation::draw(address, name)?;
            let digest = digest_of(invitation.token.expose());
            Ok((invitation, digest))
        };
        self.attached.invite(named, is_member, draw, self.node.pair("guest_arrival", None), is_own)
    }

    /// A guest says that it is ready. Returns this node's rank.
    fn hear_ready(&self, from: NodeId) -> Result<i64> {
        if self.attached.link_of(from).is_none() {
            let what = "only a guest that is attached can be ready";
            return Err(Error::new(ErrorKind::NotPermitted, what).operation("ready"));
        }
        if let Some(ready) = self.attached.says_ready(from) {
            ready.complete(Ok(()));
        }
        Ok(self.rank())
    }

    fn rank(&self) -> i64 {
        self.member(self.me).map_or(0, |me| me.rank.0).into()
    }

    /// A stranger shows an invitation. Returns this node's rank.
    fn take_in(self: &Arc<Self>, request: &Request) -> Result<i64> {
        let refused = |kind, what: String| Err(Error::new(kind, what).operation("attach"));
        let (from, Some(link)) = (request.from, request.reply.link()) else {
            return refused(ErrorKind::InvalidArgument, "a node cannot be its own guest".to_owned());
        };
        let stranger = self.node.link(link)?.peer().clone();
        if let Some(error) = self.failure() {
            return Err(error.clone().operation("attach"));
        }
        if self.is_going.load(SeqCst) || self.stopping.load(SeqCst) {
            return refused(ErrorKind::Closed, "the host is about to leave its mesh".to_owned());
        }
        if let Some(member) = self.member(from) {
            let name = &member.introduction.name;
            return refused(ErrorKind::NotPermitted, format!("{name} is a member of the mesh, and no guest of it"));
        }
        let Value::List(args) = &request.args else {
            return refused(ErrorKind::Protocol, format!("\"{}\" without an invitation", request.method));
        };
        let (ATTACH, [Value::Str(name), Value::Bytes(token), Value::Int(host)]) = (&*request.method, args.as_slice())
        else {
            return refused(ErrorKind::Protocol, format!("\"{}\" without an invitation", request.method));
        };
        if host.cast_unsigned() != self.me.0 {
            let what = format!("the invitation is one of node {}, not of this one", NodeId(host.cast_unsigned()));
            return refused(ErrorKind::Mismatch, what);
        }
        if *name != stranger.name {
            let what = format!("the invitation is for {name}, and the link is that of {}", stranger.name);
            return refused(ErrorKind::Mismatch, what);
        }
        // What it is there for says nobody but its host.
        let peer = Peer { role: None, rank: None, node: Some(from), ..stranger };
        let guest = AttachedGuest::of(&peer);
        let arrival = {
            let ready = self.node.pair("guest_ready", None);
            self.attached.admit((peer, link), token, self.end_pair(from), ready)
        };
        let arrival = arrival.map_err(|error| error.operation("attach"))?;
        self.check_link_of(from, link);
        self.calls.guest_attached(&guest);
        arrival.complete(Ok(guest));
        Ok(self.rank())
    }

    /// Ends with the end of an attached node.
    pub(super) fn end_pair(&self, node: NodeId) -> (Completer<()>, Work<()>) {
        self.node.described("guest_end", None, self.awaited(Sort::Link, node.0))
    }

    /// A link that ended before its node was noted as attached was said to have ended to nobody.
    pub(super) fn check_link_of(self: &Arc<Self>, node: NodeId, link: LinkId) {
        if let Err(reason) = self.node.link(link) {
            self.detach(node, link, &reason);
        }
    }

    /// The link of an attached node has ended. No lock may be held: handlers may run.
    pub(crate) fn detach(self: &Arc<Self>, node: NodeId, link: LinkId, reason: &Error) {
        let Some(error) = self.attached.ended(node, link, reason) else { return };
        self.references.lost(node);
        self.routes.note_change();
        // Behind what it has asked for before.
        self.calls.queue_departure(node, error);
        self.serve();
    }

    /// The turn of the news that an attached node is gone.
    pub(crate) fn departed(&self, node: NodeId, error: &Error) {
        let Some(departed) = self.attached.departs(node, error) else { return };
        let Departed { peer, standing, forgotten, .. } = &departed;
        match standing {
            Standing::Guest => self.calls.guest_lost(&AttachedGuest::of(peer), error),
            Standing::Host(_) => self.calls.host_lost(),
        }
        forgotten.iter().for_each(|node| self.references.forget(*node));
        self.tell_departures();
        departed.tell(error);
    }

    /// Whether a reference to an object of `owner` may go from one node to another: over a link between a host and its
    /// guest go those to objects of these two.
    pub(crate) fn may_pass(&self, from: NodeId, to: NodeId, owner: NodeId) -> bool {
        let is_between = owner == from || owner == to;
        is_between || ![from, to, owner].into_iter().any(|node| node != self.me && self.attached.has(node))
    }

    /// Refuses promises between a host and its guest: the name of one tells the rank of the member that has drawn it,
    /// and a guest has none.
    pub(crate) fn check_promising(&self, owner: NodeId) -> Result<()> {
        if !self.attached.has(owner) {
            return Ok(());
        }
        let what = format!("{} is no member of this node's mesh, and promises go between members", self.name_of(owner));
        let hint = "call something there that returns a reference to an exported object";
        Err(Error::new(ErrorKind::Unsupported, what).operation("promise").hint(hint))
    }

    /// Refuses references that cannot be counted where they are to go.
    pub(crate) fn check_passing(&self, to: NodeId, owners: impl Iterator<Item = NodeId>) -> Result<()> {
        for owner in owners {
            if !self.may_pass(self.me, to, owner) {
                let (owner, to) = (self.name_of(owner), self.name_of(to));
                let what = format!("a reference to an object of {owner} cannot be passed to {to}");
                let hint = "a host and its guest pass each other references to their own objects alone; send the \
                            value, or let the host keep the reference and serve what the guest needs of it";
                return Err(Error::new(ErrorKind::InvalidArgument, what).hint(hint));
            }
        }
        Ok(())
    }

    /// Tells those who are attached that this node ends: it leaves, or it fails for this reason.
    pub(crate) fn say_farewell(&self, failure: Option<&str>) {
        self.attached.links().into_iter().for_each(|link| self.say_farewell_to(link, failure));
    }

    fn say_farewell_to(&self, link: LinkId, failure: Option<&str>) {
        let aux = if failure.is_some() { ENDS_BY_FAILING } else { ENDS_BY_LEAVING };
        let envelope = Envelope { aux, ..Envelope::of(CALLS, Tag(0), ENDS) };
        let reason = failure.unwrap_or_default().as_bytes().to_vec();
        // On a link that has ended there is nobody to tell.
        let _ = self.node.isend(link, Outgoing::control(envelope, reason));
    }
}

/// The farewell in a word for [`CALLS`], if it is one. What it says stays one line of bounded length.
pub(crate) fn leaving_word(word: &Envelope, control: &[u8]) -> Option<Farewell> {
    match (word.context, word.aux) {
        (ENDS, ENDS_BY_LEAVING) => Some(Farewell::Left),
        (ENDS, _) => {
            let text = String::from_utf8_lossy(control);
            let text = text.chars().take(limits::FAILURE_CHARACTERS_MAX);
            Some(Farewell::Failed(text.map(|letter| if letter.is_control() { ' ' } else { letter }).collect()))
        }
        _ => None,
    }
}
