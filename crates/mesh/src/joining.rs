//! Joining without waiting for it.

use crate::{Config, Mesh};
use sheave_base::thread;
use sheave_base::work::{self, Work};
use sheave_base::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

impl Mesh {
    /// Begins to join, on a thread of its own, which ends with it: as [`Mesh::join`], which blocks, for names are
    /// looked up and a root that is not there yet is tried again. Does not block. The work ends with the mesh, and
    /// fails as [`Mesh::join`] does; cancelling it ends it within 100 ms, as if this node had never come. Whoever drops
    /// it without that joins, and leaves at once.
    ///
    /// # Errors
    ///
    /// `Forked` and `LimitExceeded` if there can be no such thread.
    ///
    /// ```
    /// # use sheave_mesh::{Config, Expected, Mesh, Role};
    /// # use sheave_base::config::Endpoint;
    /// # let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    /// # let root = Endpoint { host: "127.0.0.1".into(), port };
    /// let ranks: Result<Vec<_>, _> = (0..2)
    ///     .map(|rank| Mesh::begin_join(Config::new(Role::Rank, Some(rank), Expected::ranks(2), root.clone())))
    ///     .collect();
    /// for rank in ranks? {
    ///     assert_eq!(rank.join()?.members().len(), 2);
    /// }
    /// # Ok::<(), sheave_base::Error>(())
    /// ```
    pub fn begin_join(config: Config) -> Result<Work<Self>> {
        let (completer, joined) = work::pair("join");
        let is_cancelled = Arc::new(AtomicBool::new(false));
        let mark = Arc::clone(&is_cancelled);
        completer.on_cancel(move || mark.store(true, SeqCst));
        thread::spawn("sheave-join", move || {
            let mut look = || match is_cancelled.load(SeqCst) {
                true => Err(Error::new(ErrorKind::Cancelled, "nobody wants to join any more").operation("join")),
                false => Ok(()),
            };
            completer.complete(Self::join_interruptible(config, Some(&mut look)));
        })?;
        Ok(joined)
    }
}
