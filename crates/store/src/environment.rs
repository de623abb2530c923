//! What the environment says of a process: the roles of a parameter server's job, as its launchers name them.

use sheave_base::{Error, ErrorKind, Result};
use sheave_mesh::{Config, Mesh, Role};
use std::collections::HashMap;
use std::ffi::OsString;

/// Variables of the process, and others that count before them: what `KVStore::InitPSEnv` of MXNet sets.
///
/// ```
/// use sheave_store::Environment;
///
/// let variables = [("DMLC_ROLE", "server"), ("DMLC_NUM_SERVER", "2"), ("DMLC_NUM_WORKER", "2")];
/// let environment = Environment::init_ps_env(variables);
/// assert!(environment.is_server_node() && !environment.is_worker_node());
/// ```
#[derive(Clone, Debug, Default)]
pub struct Environment {
    first: HashMap<String, String>,
}

impl Environment {
    /// The variables of this process alone.
    #[must_use]
    pub fn process() -> Self {
        Self::default()
    }

    /// These variables, and behind them those of this process.
    #[must_use]
    pub fn init_ps_env<N: Into<String>, V: Into<String>>(variables: impl IntoIterator<Item = (N, V)>) -> Self {
        Self { first: variables.into_iter().map(|(name, value)| (name.into(), value.into())).collect() }
    }

    /// What a variable says, if it is set and not empty.
    #[must_use]
    pub fn get(&self, name: &str) -> Option<OsString> {
        let said = self.first.get(name).map(OsString::from).or_else(|| std::env::var_os(name));
        said.filter(|value| !value.is_empty())
    }

    /// The role that `DMLC_ROLE` or `SHEAVE_ROLE` gives this process; a worker if nothing does.
    ///
    /// # Errors
    ///
    /// `InvalidArgument` for a role that is not known.
    pub fn role(&self) -> Result<Role> {
        let said = ["SHEAVE_ROLE", "DMLC_ROLE"].iter().find_map(|name| Some((*name, self.get(name)?)));
        let Some((name, value)) = said else { return Ok(Role::Worker) };
        let value = value.to_string_lossy();
        Role::from_name(&value).ok_or_else(|| {
            let shown: String = value.chars().take(80).flat_map(char::escape_debug).collect();
            Error::new(ErrorKind::InvalidArgument, format!("{name} is \"{shown}\""))
                .hint("roles are worker, server and scheduler")
        })
    }

    /// Whether this process is a worker; it is one if nothing says otherwise.
    #[must_use]
    pub fn is_worker_node(&self) -> bool {
        self.role().is_ok_and(|role| role == Role::Worker)
    }

    /// Whether this process is a server.
    #[must_use]
    pub fn is_server_node(&self) -> bool {
        self.role().is_ok_and(|role| role == Role::Server)
    }

    /// Whether this process is the scheduler.
    #[must_use]
    pub fn is_scheduler_node(&self) -> bool {
        self.role().is_ok_and(|role| role == Role::Scheduler)
    }

    /// Joins the mesh that the variables describe. Blocks as [`Mesh::join`] does.
    ///
    /// # Errors
    ///
    /// What is wrong with the variables, `InvalidArgument` if they describe no job, or what the join says.
    pub fn join(&self) -> Result<Mesh> {
        let config = Config::from_lookup(|name| self.get(name))?.ok_or_else(|| {
            Error::new(ErrorKind::InvalidArgument, "the environment describes no job").operation("join").hint(
                "set DMLC_ROLE, DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT, DMLC_NUM_SERVER and DMLC_NUM_WORKER, or \
                       start the program with `sheave launch`",
            )
        })?;
        Mesh::join(config)
    }
}
