//! Models that many change: each has versions, and a push is accepted if it was made from the newest.
//!
//! [`ModelServer`] has a [table of versions](Versions) for the models of a group, [`ModelClient`] is the access to one
//! of them. The versions of a model count from 1, and 0 is that of a model which nobody has pushed yet. A client keeps
//! no version: who pulls says which one it has, and pushes from which one it was made, so a client may be used by many
//! threads at once, and nothing depends on the order in which works end.
//!
//! **Nobody is overwritten.** Of several who push from one version one is accepted, and the others are told what is
//! newest: they pull it and decide themselves what to make of their own. What is accepted is one more than before, so
//! versions only grow, and no two parameters have one number.
//!
//! **What moves.** A pull of the version that the caller has moves no tensor. One by [`Mode::Share`] reads the memory
//! of the server where the host is the same, as all who pull that version do. Where the server still has the version of
//! the caller (by a `depth` of 2 or a pin), only parameters that were pushed since are moved.
//!
//! A gradient server publishes into a model by [`ModelServer::publisher`]: one that is started again goes on behind the
//! newest version of the table, or is told that somebody else has pushed.

use crate::model::Tensors;
use crate::step::Publish;
use sheave_base::{Error, ErrorKind, Result, Work};
use sheave_mesh::Mesh;
use sheave_net::{Part, Parts};
use sheave_rpc::{Contents, Entry, PushOutcome, Pushed, RpcGroup, Versions, VersionsClient, VersionsSettings, Wanted};
use sheave_tensor::Mode;
use sheave_wire::Value;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::time::Duration;

/// The models of a group at one member; a handle, cheap to clone. With the last one the server is stopped.
///
/// ```
/// # use sheave_mesh::{Config, Expected, Mesh, Role};
/// # use sheave_base::config::Endpoint;
/// use sheave_learner::{ModelClient, ModelServer, Tensors};
/// use sheave_rpc::{Rpc, VersionsSettings};
/// use sheave_tensor::{Mode, Tensor};
///
/// # let root = Endpoint { host: "127.0.0.1".into(), port: sheave_base::port::free()? };
/// let mesh = Mesh::join(Config::new(Role::Rank, Some(0), Expected::ranks(1), root))?;
/// let group = Rpc::serve(&mesh)?.create_group("learners", &[mesh.me().node], None).wait()?;
/// let server = ModelServer::start(&mesh, &group, "models", VersionsSettings::default(), None)?.wait()?;
///
/// let weights = |values: &[f32]| Ok::<_, sheave_base::Error>(Tensors::from([
///     ("weights".to_owned(), Tensor::from_slice(values, [2])?),
/// ]));
/// let policy = ModelClient::connect(&group, "models", "policy", None)?.wait()?;
/// assert!(policy.push(&weights(&[1.0, 2.0])?, 0)?.wait()?.is_accepted);
/// let refused = policy.push(&weights(&[5.0, 5.0])?, 0)?.wait()?;
/// assert_eq!((refused.is_accepted, refused.newest), (false, 1));
/// let pulled = policy.pull(0, Mode::Copy)?.wait()?;
/// assert_eq!((pulled.version, pulled.tensors["weights"].to_vec::<f32>()?), (1, vec![1.0, 2.0]));
/// assert!(policy.pull(1, Mode::Copy)?.wait()?.tensors.is_empty(), "it has not changed");
/// server.stop();
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone)]
pub struct ModelServer(Arc<Served>);

struct Served {
    versions: Versions,
    group: RpcGroup,
    name: String,
    /// Its name in the group has not been taken away.
    is_registered: AtomicBool,
}

impl Served {
    fn stop(&self) {
        // Once: another server of this name may stand there by the second time.
        if self.is_registered.swap(false, SeqCst) {
            drop(self.group.deregister(self.name.as_str(), None));
        }
    }
}

impl Drop for Served {
    fn drop(&mut self) {
        self.stop();
    }
}

impl ModelServer {
    /// Starts a server of models under a name of the group; the work ends when clients find it. Does not block.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for settings that cannot be; `NotPermitted` for a group that this node is not in. The work
    /// fails with `AlreadyExists` if a member has registered something under this name, and with `DeadlineExceeded`
    /// after the timeout.
    pub fn start(
        mesh: &Mesh,
        group: &RpcGroup,
        name: &str,
        settings: VersionsSettings,
        timeout: Option<Duration>,
    ) -> Result<Work<Self>> {
        let versions = Versions::new(mesh, settings)?;
        let registered = group.register(name, versions.service(), timeout)?;
        let server = Self(Arc::new(Served {
            versions,
            group: group.clone(),
            name: name.to_owned(),
            is_registered: AtomicBool::new(true),
        }));
        Ok(registered.map(move |()| Ok(server)))
    }

    /// Returns the table: each model is a key of it, whose values are maps of tensors by the names of parameters, and
    /// whose versions are integers.
    #[must_use]
    pub fn versions(&self) -> &Versions {
        &self.0.versions
    }

    /// Returns the newest version of a model; 0 if nobody has pushed it.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for what is no key; `Mismatch` if somebody has pushed something else under this name.
    pub fn newest(&self, model: &str) -> Result<u64> {
        number(self.0.versions.versions(model)?.last())
    }

    /// Returns what publishes the parameters of a gradient server as versions of a model, for
    /// [`GradientServerBuilder::publish`](crate::GradientServerBuilder::publish). It fails with `Mismatch`, which stops
    /// that server, if somebody else has pushed the model meanwhile.
    #[must_use]
    pub fn publisher(&self, model: &str) -> Publish {
        let (server, model) = (self.clone(), model.to_owned());
        Box::new(move |tensors, version| {
            let newest = server.newest(&model)?;
            let before = known(if newest == 0 { 0 } else { version.saturating_sub(1) })?;
            let pushed = server.0.versions.push(model.as_str(), entry(&tensors), whole(version)?, before)?;
            if pushed.is_accepted() {
                return Ok(());
            }
            let newest = read(&pushed)?.newest;
            let what = format!("version {version} of the model \"{model}\", which has version {newest}");
            Err(Error::new(ErrorKind::Mismatch, what)
                .operation("publish")
                .hint("start the gradient server from the newest version, and let nobody else push its model"))
        })
    }

    /// Stops the server: its clients' works fail with `NotFound` from then on. Does not block. Idempotent.
    pub fn stop(&self) {
        self.0.stop();
    }
}

impl std::fmt::Debug for ModelServer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ModelServer").field("name", &self.0.name).finish_non_exhaustive()
    }
}

/// The outcome of pushing a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ModelPushed {
    /// Whether it is a version now: the one behind that from which it was made.
    pub is_accepted: bool,
    /// The newest version from then on.
    pub newest: u64,
}

/// The outcome of pulling a model.
#[derive(Clone, Debug)]
pub struct ModelPulled {
    /// The newest version; 0 if nobody has pushed the model.
    pub version: u64,
    /// The parameters that may differ from those of the version that the caller has: none if that is the newest.
    pub tensors: Tensors,
}

/// The access to one model at a server of models; clones are handles to the same.
///
/// It stands for the server that it was connected to: when that is gone, works fail with `PeerLost`. No method blocks.
/// A work fails with `DeadlineExceeded` after the timeout, and with `Cancelled` when it is cancelled; a push may have
/// been accepted then, which a pull of the newest version tells.
#[derive(Clone, Debug)]
pub struct ModelClient {
    versions: VersionsClient,
    name: String,
}

impl ModelClient {
    /// Finds the server of this name in a group, for the model of this name, of any parameters. The work fails as that
    /// of [`RpcGroup::find`]; its timeout is that of all works of the client too.
    ///
    /// # Errors
    ///
    /// As [`RpcGroup::find`].
    pub fn connect(group: &RpcGroup, server: &str, name: &str, timeout: Option<Duration>) -> Result<Work<Self>> {
        let name = name.to_owned();
        let found = group.versions(server, timeout)?;
        Ok(found.map(move |versions| Ok(Self { versions: versions.with_timeout(timeout), name })))
    }

    /// Returns the name of the model.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Pushes parameters that were made from version `from` as the one behind it. They leave by copy, and may be
    /// written as soon as this returns.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a version of 2⁶³ and more, and those of [`VersionsClient::push`].
    pub fn push(&self, tensors: &Tensors, from: u64) -> Result<Work<ModelPushed>> {
        let begin = || {
            let version = whole(from.saturating_add(1))?;
            self.versions.push(self.name.as_str(), entry(tensors), version, known(from)?)
        };
        Ok(self.named(begin())?.map(|pushed| read(&pushed)))
    }

    /// Pushes those parameters that have changed since version `from`: all others are as they were.
    ///
    /// # Errors
    ///
    /// As [`ModelClient::push`]; `InvalidArgument` for changes of version 0, of which there is nothing.
    pub fn push_changes(&self, changed: &Tensors, from: u64) -> Result<Work<ModelPushed>> {
        let begin = || {
            let Some(before) = known(from)? else {
                let what = "changes of version 0, which has no parameters";
                return Err(Error::new(ErrorKind::InvalidArgument, what).hint("push all of them first"));
            };
            let version = whole(from.saturating_add(1))?;
            self.versions.push_changes(self.name.as_str(), entry(changed), &[], version, before)
        };
        Ok(self.named(begin())?.map(|pushed| read(&pushed)))
    }

    /// Pulls what is newer than the version that the caller has, which is 0 if it has none. By [`Mode::Share`] tensors
    /// are the memory of the server where this node reaches it, and nobody may write them.
    ///
    /// # Errors
    ///
    /// As [`VersionsClient::pull`]. The work fails with `Mismatch` if what is there is no model.
    pub fn pull(&self, from: u64, mode: Mode) -> Result<Work<ModelPulled>> {
        let wanted = || Ok(known(from)?.map_or(Wanted::Newest, Wanted::NewerThan));
        let begun = wanted().and_then(|wanted| self.versions.pull(self.name.as_str(), wanted, mode));
        Ok(self.named(begun)?.map(move |pulled| match pulled {
            None => Ok(ModelPulled { version: 0, tensors: Tensors::new() }),
            Some(pulled) => taken(&pulled.version, pulled.contents),
        }))
    }

    /// Waits for a version that is newer than the one that the caller has. What moves is as with [`ModelClient::pull`].
    ///
    /// # Errors
    ///
    /// As [`ModelClient::pull`], and [`VersionsClient::watch`].
    pub fn watch(&self, from: u64, mode: Mode) -> Result<Work<ModelPulled>> {
        let begun = known(from).and_then(|from| self.versions.watch(self.name.as_str(), from, mode));
        let watched = self.named(begun)?;
        Ok(watched.map(move |pulled| taken(&pulled.version, pulled.contents)))
    }

    fn named<T: Clone + Send + 'static>(&self, begun: Result<Work<T>>) -> Result<Work<T>> {
        let about = format!("model \"{}\"", self.name);
        let named = move |error: Error| error.context(&about);
        match begun {
            Ok(work) => Ok(work.or_else(move |error| Err(named(error)))),
            Err(error) => Err(named(error)),
        }
    }
}

/// The version that somebody has, as tables know it.
fn known(version: u64) -> Result<Option<Value>> {
    if version == 0 { Ok(None) } else { whole(version).map(Some) }
}

fn whole(version: u64) -> Result<Value> {
    let too_large = |_| Error::new(ErrorKind::InvalidArgument, format!("version {version}; expected less than 2⁶³"));
    i64::try_from(version).map(Value::Int).map_err(too_large)
}

fn number(version: Option<&Value>) -> Result<u64> {
    match version {
        None => Ok(0),
        Some(Value::Int(version)) if *version > 0 => Ok(version.unsigned_abs()),
        Some(other) => {
            let what = format!("version {other:?} of a model; expected a number from 1 on");
            Err(Error::new(ErrorKind::Mismatch, what).hint("let models be pushed by clients of models alone"))
        }
    }
}

fn read(pushed: &Pushed) -> Result<ModelPushed> {
    let is_accepted = pushed.outcome == PushOutcome::Accepted;
    Ok(ModelPushed { is_accepted, newest: number(pushed.newest.as_ref())? })
}

fn entry(tensors: &Tensors) -> Entry {
    let (mut entries, mut parts) = (Vec::new(), Parts::new());
    for (name, tensor) in tensors {
        entries.push((name.clone(), Value::Tensor(parts.len() as u32)));
        parts.push(Part::new(tensor.clone(), Mode::Copy));
    }
    Entry::new(Value::Map(entries), parts)
}

/// The parameters that have come.
fn taken(version: &Value, contents: Contents) -> Result<ModelPulled> {
    let version = number(Some(version))?;
    let (value, tensors) = match contents {
        Contents::Unchanged => return Ok(ModelPulled { version, tensors: Tensors::new() }),
        Contents::Whole { value, tensors } => (value, tensors),
        Contents::Changes { changed, tensors, removed } if removed.is_empty() => (changed, tensors),
        Contents::Changes { removed, .. } => {
            let what = format!("version {version} has no \"{}\" any more", removed[0]);
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
    };
    let Value::Map(entries) = value else {
        let what = format!("version {version} is a {}; expected a map of tensors", value.kind_name());
        return Err(Error::new(ErrorKind::Mismatch, what));
    };
    let mut named = Tensors::new();
    for (name, value) in entries {
        match value {
            Value::Tensor(at) if (at as usize) < tensors.len() => {
                named.insert(name, tensors[at as usize].clone());
            }
            other => {
                let what = format!("\"{name}\" of version {version} is a {}; expected a tensor", other.kind_name());
                return Err(Error::new(ErrorKind::Mismatch, what));
            }
        }
    }
    Ok(ModelPulled { version, tensors: named })
}
