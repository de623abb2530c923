//! What a seed stands for: a job, its network and its troubles.

use sheave_base::clock::SeededEntropy;
use sheave_mesh::engine::Expected;

/// Something that goes wrong; nodes are numbered as they were started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Trouble {
    Crash(usize),
    /// A new process under the name of this node.
    Restart(usize),
    /// Both ends of a link learn that it ended.
    Cut(usize, usize),
    /// A way that swallows everything from now on.
    Silence(usize, usize),
    /// Nothing passes between these nodes and the others any more.
    Partition(Vec<usize>),
    /// The process does nothing for so many milliseconds.
    Stop(usize, u64),
    /// The user wants this node to leave in an orderly way.
    Leave(usize),
    /// The user gives up what this node waits for.
    Cancel(usize),
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    pub expected: Expected,
    pub delay_ms_max: u64,
    /// The longest time between two barriers of a node.
    pub think_ms_max: u64,
    /// When, in milliseconds, and what.
    pub troubles: Vec<(u64, Trouble)>,
    /// Whether the job runs on small groups besides the one of all.
    pub has_small_groups: bool,
    /// Whether nodes bring names of their own.
    pub has_names: bool,
    /// Whether everybody has a link to everybody, besides those that engines make.
    pub is_full_mesh: bool,
    /// Everybody leaves after this barrier of a group of all.
    pub ends_after: Option<u64>,
    /// Whether all processes are of one host, whose system says which of them have ended.
    pub is_one_host: bool,
}

impl Scenario {
    /// How many nodes there are at the start.
    pub fn nodes(&self) -> usize {
        self.expected.total() as usize
    }

    pub fn from_seed(seed: u64) -> Self {
        let mut dice = SeededEntropy::new(seed);
        let nodes = match dice.below(20) {
            0 => 20 + dice.below(31),
            1..=4 => 8 + dice.below(12),
            _ => 3 + dice.below(6),
        };
        let expected = if dice.below(2) == 0 {
            Expected::ranks(nodes as u32)
        } else {
            let servers = dice.below(nodes - 1) as u32;
            Expected { schedulers: 1, servers, workers: nodes as u32 - 1 - servers, ranks: 0 }
        };
        let delay_ms_max = [5, 20, 60][dice.below(3) as usize];
        let think_ms_max = [30, 300, 900][dice.below(3) as usize];
        let troubles = troubles(&mut dice, nodes);
        let has_small_groups = dice.below(2) == 0;
        let has_names = dice.below(2) == 0;
        let ends_after = (dice.below(4) == 0).then(|| dice.below(6));
        let is_full_mesh = dice.below(2) == 0;
        let is_one_host = dice.below(2) == 0;
        Self {
            seed,
            expected,
            delay_ms_max,
            think_ms_max,
            troubles,
            has_small_groups,
            has_names,
            is_full_mesh,
            ends_after,
            is_one_host,
        }
    }

    fn count(&self, which: impl Fn(&Trouble) -> bool) -> usize {
        self.troubles.iter().filter(|(_, trouble)| which(trouble)).count()
    }

    /// Whether nothing happens but that some leave and some crash, and those who live can know that they may go on:
    /// they see that the others have ended, or those are the lesser half of all who stay.
    pub fn survivors_go_on(&self) -> bool {
        let crashes = self.count(|trouble| matches!(trouble, Trouble::Crash(_)));
        let leaves = self.count(|trouble| matches!(trouble, Trouble::Leave(_)));
        let others =
            self.count(|trouble| !matches!(trouble, Trouble::Crash(_) | Trouble::Restart(_) | Trouble::Leave(_)));
        let stay = if self.ends_after.is_none() { self.nodes().saturating_sub(leaves) } else { 0 };
        others == 0 && (self.is_one_host || crashes == 0 || 2 * crashes < stay)
    }

    /// Whether nothing goes wrong at all, although members may leave.
    pub fn is_orderly(&self) -> bool {
        self.count(|trouble| !matches!(trouble, Trouble::Leave(_))) == 0
    }
}

fn troubles(dice: &mut SeededEntropy, nodes: u64) -> Vec<(u64, Trouble)> {
    let mut troubles = Vec::new();
    let mut at = 1500 + dice.below(1500);
    // All kinds, or only these: crashes, leaves, both.
    let kinds: &[u64] = match dice.below(7) {
        0 | 1 => &[0],
        2 => &[9],
        3 => &[0, 9],
        _ => &[0, 1, 2, 3, 4, 5, 6, 7, 8, 9],
    };
    for _ in 0..dice.below(4) {
        let one = dice.below(nodes) as usize;
        let other = (one + 1 + dice.below(nodes - 1) as usize) % nodes as usize;
        let trouble = match kinds[dice.below(kinds.len() as u64) as usize] {
            0..=2 => Trouble::Crash(one),
            3 => Trouble::Cut(one, other),
            4 => Trouble::Silence(one, other),
            5 => Trouble::Partition((0..nodes as usize).filter(|_| dice.below(3) == 0).collect()),
            6 => Trouble::Stop(one, 200 + dice.below(4000)),
            7 => Trouble::Cancel(one),
            9 => {
                troubles.extend(leaves(dice, nodes, at));
                Trouble::Leave(one)
            }
            // Two in one blow, the coordinator among them.
            _ => {
                troubles.push((at, Trouble::Crash(0)));
                Trouble::Crash(one)
            }
        };
        if matches!(trouble, Trouble::Crash(_)) && dice.below(2) == 0 {
            troubles.push((at + 100 + dice.below(1000), Trouble::Restart(one)));
        }
        troubles.push((at, trouble));
        at += [dice.below(50), dice.below(2500)][dice.below(2) as usize];
    }
    troubles.sort_by_key(|(at, _)| *at);
    troubles
}

/// Some, or nearly all, leave one after the other.
fn leaves(dice: &mut SeededEntropy, nodes: u64, mut at: u64) -> Vec<(u64, Trouble)> {
    let count = [0, 0, dice.below(3), dice.below(nodes)][dice.below(4) as usize];
    let gap_ms_max = [1, 40, 400][dice.below(3) as usize];
    let mut leaves = Vec::new();
    for _ in 0..count {
        leaves.push((at, Trouble::Leave(dice.below(nodes) as usize)));
        at += dice.below(gap_ms_max);
    }
    leaves
}
