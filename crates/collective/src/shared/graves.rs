//! Memory of operations that failed while others may still touch it.
//!
//! It is kept, and with it its leases, until its board is deserted: every other rank of the host has said that it
//! touches nothing of the group any more, or its process has ended. A thread looks after it while there is some.

use super::board::Board;
use crate::memory::Region;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How often it is looked whether the others are out; longer after a while, for a stopped process may take its time.
const PAUSE: Duration = Duration::from_micros(500);
const PAUSE_MAX: Duration = Duration::from_millis(100);

struct Grave {
    board: Arc<Board>,
    #[expect(dead_code, reason = "held for their drop")]
    regions: Vec<Region>,
}

/// The graves of one node.
#[derive(Default)]
pub(crate) struct Graves {
    list: Mutex<Vec<Grave>>,
}

impl Graves {
    /// Keeps these until nobody can touch them any more.
    pub(crate) fn bury(self: &Arc<Self>, board: &Arc<Board>, regions: Vec<Region>) {
        let mut list = self.list.lock();
        list.push(Grave { board: Arc::clone(board), regions });
        if list.len() > 1 {
            return;
        }
        drop(list);
        let graves = Arc::clone(self);
        // Without a thread they stay until somebody looks.
        let _ = sheave_base::thread::spawn("sheave-graves", move || {
            let mut pause = PAUSE;
            while !graves.sweep() {
                std::thread::sleep(pause);
                pause = (pause * 2).min(PAUSE_MAX);
            }
        });
    }

    /// Lets go of what nobody can touch any more. True when nothing is left.
    fn sweep(&self) -> bool {
        let mut list = self.list.lock();
        let (free, kept) = std::mem::take(&mut *list).into_iter().partition(|grave: &Grave| grave.board.is_deserted());
        *list = kept;
        let is_empty = list.is_empty();
        drop(list);
        // Leases end with no lock held.
        let free: Vec<Grave> = free;
        drop(free);
        is_empty
    }

    /// Waits until nothing of this board's is left, for at most so long. True when that is so.
    pub(crate) fn await_board(&self, board: &Board, until: Instant) -> bool {
        loop {
            self.sweep();
            if !self.list.lock().iter().any(|grave| std::ptr::eq(&*grave.board, board)) {
                return true;
            }
            if Instant::now() >= until {
                return false;
            }
            std::thread::sleep(PAUSE);
        }
    }
}
