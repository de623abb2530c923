//! The loader as the controller holds it.

use super::info::{self, ShardInfo};
use crate::args::Args;
use crate::register::Register;
use crate::session::Session;
use sheave_base::{Error, ErrorKind, Result};
use std::collections::BTreeMap;
use std::path::Path;

/// A loader of parameters on all workers. Its methods are commands: none waits for the workers.
///
/// ```
/// use sheave_session::{Session, ShardInfo};
/// use sheave_tensor::{Tensor, file};
/// use std::collections::BTreeMap;
///
/// let path = std::env::temp_dir().join(format!("sheave-doc-shards-{}.safetensors", std::process::id()));
/// let weights = Tensor::from_slice(&[1.0_f32, 2.0, 3.0, 4.0], [2, 2])?;
/// file::save(&path, &[("weights", &weights), ("bias", &weights)], &[])?;
/// let session = Session::threads(2, 1)?;
/// // The columns of `weights`; nothing is said of `bias`, which all get.
/// let infos = BTreeMap::from([("weights".to_owned(), ShardInfo::Dimension(1))]);
/// let loader = session.shard_loader(&[&path], &infos)?;
/// let columns = loader.load("weights")?.get::<Tensor>(1, None)?;
/// assert_eq!((columns.shape().dimensions(), columns.to_vec::<f32>()?), (&[2, 1][..], vec![2.0, 4.0]));
/// assert_eq!(loader.load("bias")?.get::<Tensor>(1, None)?.shape().dimensions(), [2, 2]);
/// # session.shutdown()?;
/// # std::fs::remove_file(&path)?;
/// # Ok::<(), sheave_base::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct ShardLoader {
    session: Session,
    loader: Register,
}

impl Session {
    /// Has worker 0 open safetensors files, whose parameters all workers load. `infos` say how parameters are cut.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a path that is no text; as [`Session::call`]. On the workers what
    /// [`file::Reader::open`](sheave_tensor::file::Reader::open) says, and `NotFound` for a parameter of the infos that
    /// no file holds.
    pub fn shard_loader(&self, paths: &[impl AsRef<Path>], infos: &BTreeMap<String, ShardInfo>) -> Result<ShardLoader> {
        let text = |path: &Path| {
            let what = || format!("the path {}; expected UTF-8", path.display());
            path.to_str().map(str::to_owned).ok_or_else(|| Error::new(ErrorKind::InvalidArgument, what()))
        };
        let paths: Vec<String> = paths.iter().map(|path| text(path.as_ref())).collect::<Result<_>>()?;
        let args = Args::new().value(paths).value(info::to_value(infos));
        let loader = self.built_in("sheave.shard_loader", &args)?;
        Ok(ShardLoader { session: self.clone(), loader })
    }
}

impl ShardLoader {
    /// Loads a parameter: each worker gets its shard, or all of it if nothing is said of it.
    ///
    /// # Errors
    ///
    /// As [`Session::call`]; on the workers `NotFound` for a name that is in no file, `Mismatch` if it cannot be cut as
    /// was said, what its functions say and what reading says.
    pub fn load(&self, name: &str) -> Result<Register> {
        self.call("sheave.shard_loader.load", Some(name))
    }

    /// Loads all parameters, one after the other, as [`ShardLoader::load`] does: a dict by name on each worker.
    ///
    /// # Errors
    ///
    /// As [`ShardLoader::load`].
    pub fn load_all(&self) -> Result<Register> {
        self.call("sheave.shard_loader.load_all", None)
    }

    /// Has each worker read its own shard of a parameter, from the same paths on its host: worker k - 1 of n that of
    /// the name `{name}_shard-{k}-of-{n}`.
    ///
    /// # Errors
    ///
    /// As [`Session::call`]; on a worker `NotFound`, and what reading says.
    pub fn load_presharded(&self, name: &str) -> Result<Register> {
        self.call("sheave.shard_loader.load_presharded", Some(name))
    }

    /// Has each worker read its own shards of all parameters: a dict by name, without the ends of the names.
    ///
    /// # Errors
    ///
    /// As [`ShardLoader::load_presharded`].
    pub fn load_all_presharded(&self) -> Result<Register> {
        self.call("sheave.shard_loader.load_all_presharded", None)
    }

    /// Loads a parameter on worker 0, as it is in the file. The others hold none.
    ///
    /// # Errors
    ///
    /// As [`ShardLoader::load`], on worker 0.
    pub fn load_on_first(&self, name: &str) -> Result<Register> {
        self.call("sheave.shard_loader.load_on_first", Some(name))
    }

    /// Returns a register of the names of all parameters, in the order of the letters: a list of texts.
    ///
    /// # Errors
    ///
    /// As [`Session::call`].
    pub fn names(&self) -> Result<Register> {
        self.call("sheave.shard_loader.names", None)
    }

    fn call(&self, function: &'static str, name: Option<&str>) -> Result<Register> {
        let args = Args::new().register(&self.loader);
        self.session.built_in(function, &name.into_iter().fold(args, Args::value))
    }
}
