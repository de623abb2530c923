//! Memory of operations that failed while others may still touch it.
//!
//! It is kept, and with it its leases, until its board is deserted: every other rank of the host has said that it
//! touches nothing of the group any more, or its process has ended. A task looks after it while there is some. Memory
//! that outlives its node, which polls nothing any more, is looked after by a thread.
//!
//! **Free, then told.** What is waited for is told to be free only when it has been dropped: memory that is being
//! dropped stays in the table, without its regions, until it was.

use super::board::Board;
use crate::memory::Region;
use parking_lot::Mutex;
use sheave_base::work::{Completer, Work};
use sheave_mesh::Runtime;
use sheave_net::Node;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often it is looked whether the others are out; longer after a while, for a stopped process may take its time.
const PAUSE: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(100);
/// The same while somebody waits for it.
const PAUSE_AWAITED_MAX: Duration = Duration::from_millis(2);

struct Deferred {
    board: Arc<Board>,
    regions: Vec<Region>,
    /// A thread is dropping its regions.
    is_leaving: bool,
}

#[derive(Default)]
struct Table {
    list: Vec<Deferred>,
    /// Those who wait until nothing of a board is left.
    waiting: Vec<(Arc<Board>, Completer<()>)>,
    /// Somebody looks after the list.
    is_watched: bool,
}

impl Table {
    fn has(&self, board: &Arc<Board>) -> bool {
        self.list.iter().any(|deferred| Arc::ptr_eq(&deferred.board, board))
    }
}

/// The memory of one node that is released later.
#[derive(Default)]
pub(crate) struct DeferredRelease {
    table: Mutex<Table>,
    runtime: Option<Runtime>,
    me: Weak<Self>,
}

impl DeferredRelease {
    pub(crate) fn new(runtime: Runtime) -> Arc<Self> {
        let runtime = Some(runtime);
        Arc::new_cyclic(|me| Self { table: Mutex::default(), runtime, me: Weak::clone(me) })
    }

    /// Keeps these until nobody can touch them any more.
    pub(crate) fn defer(&self, board: &Arc<Board>, regions: Vec<Region>) {
        let mut table = self.table.lock();
        table.list.push(Deferred { board: Arc::clone(board), regions, is_leaving: false });
        if std::mem::replace(&mut table.is_watched, true) {
            return;
        }
        drop(table);
        let watch = Watch(Weak::clone(&self.me));
        // What is refused is dropped, and what that leaves behind is looked after all the same.
        if let Some(Ok(task)) = self.runtime.as_ref().map(|runtime| runtime.spawn(watch.watch(runtime.clone()))) {
            task.detach();
        }
    }

    /// Releases what is free. Returns after which pause it is to be done again; `None` when nothing is left.
    fn look(&self, pause: Duration) -> Option<Duration> {
        self.release();
        let mut table = self.table.lock();
        if table.list.is_empty() {
            table.is_watched = false;
            return None;
        }
        let most = if table.waiting.is_empty() { PAUSE_MAX } else { PAUSE_AWAITED_MAX };
        Some((pause * 2).min(most))
    }

    /// Lets go of what nobody can touch any more, and tells those who wait for that.
    fn release(&self) {
        let mut table = self.table.lock();
        let mut free = Vec::new();
        for deferred in table.list.iter_mut().filter(|deferred| !deferred.is_leaving && deferred.board.is_deserted()) {
            deferred.is_leaving = true;
            free.push((Arc::clone(&deferred.board), std::mem::take(&mut deferred.regions)));
        }
        drop(table);
        let mut boards = Vec::new();
        // Leases end with no lock held; what another thread is dropping just now is still in the table.
        for (board, regions) in free {
            drop(regions);
            boards.push(board);
        }
        let mut table = self.table.lock();
        let Table { list, waiting, .. } = &mut *table;
        for board in &boards {
            let has_left = |deferred: &Deferred| deferred.is_leaving && Arc::ptr_eq(&deferred.board, board);
            // Which of several of one board is no matter: this takes out as many as were dropped.
            if let Some(at) = list.iter().position(has_left) {
                list.swap_remove(at);
            }
        }
        let is_free = |board: &Arc<Board>| !list.iter().any(|deferred| Arc::ptr_eq(&deferred.board, board));
        let told: Vec<_> = waiting.extract_if(.., |(board, _)| is_free(board)).collect();
        drop(table);
        told.into_iter().for_each(|(_, completer)| completer.complete(Ok(())));
    }

    /// Ends when nothing of this board's is left; none if that is so.
    pub(crate) fn released(&self, node: &Node, board: &Arc<Board>) -> Option<Work<()>> {
        self.release();
        let (completer, released) = node.pair("shrink", None);
        let mut table = self.table.lock();
        if !table.has(board) {
            return None;
        }
        table.waiting.retain(|(_, completer)| completer.is_awaited());
        table.waiting.push((Arc::clone(board), completer));
        drop(table);
        Some(released)
    }

    /// Waits until nothing of this board's is left, for at most so long. True when that is so.
    pub(crate) fn await_release(&self, node: &Node, board: &Arc<Board>, until: Instant) -> bool {
        let released = self.released(node, board);
        released.is_none_or(|released| released.wait_until(Some(until), None).is_ok_and(|is_free| is_free))
    }
}

/// Looks after the table while it lives. Where it ends before the table is empty, a thread goes on.
struct Watch(Weak<DeferredRelease>);

impl Watch {
    async fn watch(self, runtime: Runtime) {
        let mut pause = PAUSE / 2;
        while let Some(next) = self.0.upgrade().and_then(|deferred| deferred.look(pause)) {
            pause = next;
            let Ok(sleep) = runtime.sleep_until(runtime.after(pause)) else { return };
            sleep.await;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        let Some(deferred) = self.0.upgrade().filter(|deferred| deferred.table.lock().is_watched) else { return };
        // Without a thread it stays until somebody waits for it.
        let _ = sheave_base::thread::spawn("sheave-release", move || {
            let mut pause = PAUSE / 2;
            while let Some(next) = deferred.look(pause) {
                pause = next;
                std::thread::sleep(pause);
            }
        });
    }
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::super::board::{Seat, TensorWords};
    use super::*;
    use sheave_net::NodeConfig;
    use sheave_tensor::{Arena, ArenaConfig, Buffer, Dtype, Shape, Tensor};
    use std::ptr::NonNull;
    use std::sync::mpsc::{Receiver, Sender, channel};

    const LONG: Duration = Duration::from_secs(20);

    /// Foreign memory whose drop says that it has begun, and goes on when it is let.
    struct Slow(Vec<u8>, Sender<()>, std::sync::Mutex<Receiver<()>>);

    impl Drop for Slow {
        fn drop(&mut self) {
            self.1.send(()).expect("it waits");
            let gate = self.2.lock().expect("nobody panics");
            gate.recv_timeout(LONG).expect("it is let go");
        }
    }

    fn board(deferred: &Arc<DeferredRelease>) -> Arc<Board> {
        let arena = Arena::new(ArenaConfig { capacity_bytes: 16 << 20, ..ArenaConfig::default() });
        let seat = Seat::new(0, TensorWords::memory(&arena).expect("memory"), None).expect("a seat");
        // Nobody else is there, so it is deserted from the start.
        Arc::new(Board::new(0, vec![seat], arena, Arc::clone(deferred)))
    }

    #[test]
    fn memory_that_is_being_dropped_is_not_told_to_be_free() {
        let node = Node::start(NodeConfig::named("release")).expect("a node");
        // Nothing looks after it but those who ask.
        let deferred = Arc::new(DeferredRelease::default());
        let board = board(&deferred);
        let (begin, begun) = channel();
        let (gate, opened) = channel();
        let slow = Box::new(Slow(vec![0; 64], begin, std::sync::Mutex::new(opened)));
        let start = NonNull::new(slow.0.as_ptr().cast_mut()).expect("memory");
        // SAFETY: the vector is the owner's, and lives as long as that.
        let buffer = unsafe { Buffer::foreign(start, 64, false, slow) };
        let shape = Shape::new(&[64]).expect("a shape");
        let tensor = Tensor::from_buffer(buffer, 0, Dtype::U8, shape).expect("a tensor");
        let region = Region::writing(&tensor, "all_reduce").expect("nobody else has it");
        drop(tensor);
        deferred.defer(&board, vec![region]);
        let other = Arc::clone(&deferred);
        let dropper = std::thread::spawn(move || other.release());
        begun.recv_timeout(LONG).expect("its drop begins");
        assert!(!deferred.await_release(&node, &board, Instant::now()), "told to be free while it is being dropped");
        gate.send(()).expect("it waits");
        assert!(deferred.await_release(&node, &board, Instant::now() + LONG), "it was dropped");
        dropper.join().expect("no panic");
    }

    #[test]
    fn what_outlives_its_node_is_released_all_the_same() {
        let node = Node::start(NodeConfig::named("release")).expect("a node");
        let deferred = Arc::new_cyclic(|me| DeferredRelease { me: Weak::clone(me), ..DeferredRelease::default() });
        let board = board(&deferred);
        let tensor = Tensor::from_slice(&[1.0_f32, 2.0], [2]).expect("memory");
        let region = Region::writing(&tensor, "all_reduce").expect("nobody else has it");
        // As after the end of a runtime: no task looks after it.
        deferred.defer(&board, vec![region]);
        assert!(deferred.await_release(&node, &board, Instant::now() + LONG));
        assert!(tensor.write_lease("test").is_ok());
    }
}
