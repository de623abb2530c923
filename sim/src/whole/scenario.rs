//! What a seed stands for: processes on hosts, the network between them, and troubles.

use crate::lockstep::{Trouble, Way};
use sheave_base::clock::SeededEntropy;
use std::collections::BTreeMap;
use std::time::Duration;

/// A stop of this length is one that others may take for an end: half of the liveness timeout.
const LONG_STOP: Duration = Duration::from_millis(500);

/// Learners at most: all of them have a place in what the servers sum.
const LEARNERS_MAX: usize = 7;

/// A trouble and its time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hit {
    pub at: Duration,
    pub trouble: Trouble,
}

/// How a job ends.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum End {
    /// Everybody waits for everybody.
    Finish,
    /// Each one leaves when it is through.
    Leave,
}

#[derive(Clone, Debug)]
pub struct Scenario {
    pub seed: u64,
    /// By process, its host. First come the ranks, and then their guests.
    pub hosts: Vec<usize>,
    /// Of each guest, the rank that it is one of.
    pub guests: Vec<usize>,
    pub way: Way,
    pub rounds: u64,
    /// What each process does at most in a round.
    pub steps: u64,
    pub hits: Vec<Hit>,
    pub end: End,
    /// A process that gives up in that round, or ends there without a word.
    pub quits: Option<(usize, u64, Quit)>,
}

/// How a process ends that does not come to the end of its program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Quit {
    /// It says that it fails.
    Fails,
    /// Its program ends.
    Returns,
}

/// What a process has met with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Doom {
    /// From when on it may be blamed.
    pub from: Duration,
    /// The others hear of it at once, for a system says so.
    pub is_told: bool,
    /// It ends with that.
    pub ends: bool,
}

impl Scenario {
    #[must_use]
    pub fn from_seed(seed: u64) -> Self {
        let mut dice = SeededEntropy::new(seed);
        let processes = match dice.below(8) {
            0 => 9 + dice.below(8),
            1 => 2,
            _ => 3 + dice.below(5),
        } as usize;
        let hosts = match dice.below(3) {
            0 => vec![0; processes],
            1 => (0..processes).collect(),
            _ => (0..processes).map(|_| dice.below(3) as usize).collect(),
        };
        let guests: Vec<usize> = match dice.below(2) {
            0 => Vec::new(),
            _ => (0..1 + dice.below(3)).map(|_| dice.below(processes as u64) as usize).collect(),
        };
        // Most guests are on the hosts of theirs.
        let near = guests.iter().map(|host| if dice.below(4) == 0 { dice.below(3) as usize } else { hosts[*host] });
        let hosts: Vec<usize> = hosts.iter().copied().chain(near).collect();
        let jitter_ns = [20_000, 500_000, 8_000_000][dice.below(3) as usize];
        let way = Way { delay_ns: 20_000 + dice.below(jitter_ns), jitter_ns, bytes_per_s: 50 << 20 };
        let (rounds, steps) = (2 + dice.below(4), 2 + dice.below(6));
        let mut hits = hits(&mut dice, hosts.len() as u64);
        if !guests.is_empty() && dice.below(3) == 0 {
            let at = Duration::from_millis(5 + dice.below(200));
            hits.insert(0, Hit { at, trouble: Trouble::Kill(processes + dice.below(guests.len() as u64) as usize) });
        }
        let end = [End::Finish, End::Leave][dice.below(2) as usize];
        let quit = [Quit::Fails, Quit::Returns][dice.below(2) as usize];
        let quits = (dice.below(5) == 0).then(|| (dice.below(processes as u64) as usize, dice.below(rounds), quit));
        Self { seed, hosts, guests, way, rounds, steps, hits, end, quits }
    }

    /// A pool of some workers and its host, which may be killed. What the workers meet with is drawn by the host.
    #[must_use]
    pub fn of_pool(seed: u64) -> Self {
        let mut dice = SeededEntropy::new(seed ^ 0x9001);
        let drawn = Self::from_seed(seed);
        let workers = 1 + dice.below(5) as usize;
        let at = Duration::from_millis(5 + dice.below(1500));
        let hits = if dice.below(8) == 0 { vec![Hit { at, trouble: Trouble::Kill(0) }] } else { Vec::new() };
        Self { hosts: vec![0; 1 + workers], guests: vec![0; workers], hits, quits: None, ..drawn }
    }

    /// The same without guests, and without the troubles that they would meet with.
    #[must_use]
    pub fn without_guests(self) -> Self {
        let ranks = self.ranks();
        self.of_first(ranks)
    }

    /// Some learners, of whom some are servers.
    #[must_use]
    pub fn of_learners(seed: u64) -> Self {
        let mut drawn = Self::from_seed(seed ^ 0x6c1e);
        let ranks = drawn.ranks().min(LEARNERS_MAX);
        drawn.quits = drawn.quits.filter(|(quitter, ..)| *quitter < ranks);
        Self { seed, ..drawn.of_first(ranks) }
    }

    /// Three ranks, of whom one may end: it is killed, or its host is.
    #[must_use]
    pub fn of_three(seed: u64) -> Self {
        let mut dice = SeededEntropy::new(seed ^ 0x3b1d);
        let drawn = Self::from_seed(seed);
        let hosts = [vec![0; 3], vec![0, 1, 2], vec![0, 0, 1]][dice.below(3) as usize].clone();
        let (at, process) = (Duration::from_millis(30 + dice.below(700)), dice.below(3) as usize);
        let trouble = match dice.below(6) {
            0 | 1 => Some(Trouble::Kill(process)),
            2 => Some(Trouble::Crash(2)),
            3 => Some(Trouble::Cut(process, (process + 1) % 3)),
            _ => None,
        };
        // A host that ends takes all of its processes along: more than half have to be left.
        let trouble = trouble.filter(|trouble| !matches!(trouble, Trouble::Crash(_)) || hosts[2] != hosts[0]);
        let hits = trouble.map(|trouble| Hit { at, trouble }).into_iter().collect();
        Self { hosts, guests: Vec::new(), hits, quits: None, end: End::Finish, ..drawn }
    }

    /// The first of its ranks alone.
    fn of_first(mut self, ranks: usize) -> Self {
        self.hosts.truncate(ranks);
        self.guests.clear();
        self.hits.retain(|hit| match hit.trouble {
            Trouble::Kill(process) | Trouble::Crash(process) | Trouble::Stop(process, _) => process < ranks,
            Trouble::Cut(one, other) | Trouble::Silence(one, other) => one < ranks && other < ranks,
            Trouble::Heal => true,
        });
        self
    }

    /// Who may be blamed for what does not go well, apart from one that quits.
    #[must_use]
    pub fn doomed(&self) -> BTreeMap<usize, Doom> {
        let mut doomed = BTreeMap::new();
        let mut doom = |process: usize, from: Duration, (is_told, ends): (bool, bool)| {
            let known = doomed.entry(process).or_insert(Doom { from, is_told, ends });
            known.from = known.from.min(from);
        };
        for Hit { at, trouble } in &self.hits {
            match *trouble {
                Trouble::Kill(process) => doom(process, *at, (true, true)),
                Trouble::Crash(process) => {
                    self.on_host_of(process).for_each(|process| doom(process, *at, (false, true)))
                }
                Trouble::Stop(process, span) if span >= LONG_STOP => doom(process, *at, (false, false)),
                Trouble::Stop(..) | Trouble::Heal => {}
                Trouble::Cut(one, other) => {
                    [one, other].into_iter().for_each(|process| doom(process, *at, (true, false)));
                }
                Trouble::Silence(one, other) => {
                    self.on_host_of(one)
                        .chain(self.on_host_of(other))
                        .for_each(|process| doom(process, *at, (false, false)));
                }
            }
        }
        doomed
    }

    fn on_host_of(&self, process: usize) -> impl Iterator<Item = usize> {
        let host = self.hosts[process];
        (0..self.hosts.len()).filter(move |other| self.hosts[*other] == host)
    }

    /// Whether those who are not doomed must go on: they are more than half, whatever they can see of the others.
    #[must_use]
    pub fn must_go_on(&self) -> bool {
        let quits = self.quits.map(|(process, ..)| process);
        let doomed = self.doomed();
        let gone = (0..self.ranks()).filter(|process| doomed.contains_key(process) || quits == Some(*process));
        2 * gone.count() < self.ranks()
    }

    /// How many processes are ranks.
    #[must_use]
    pub fn ranks(&self) -> usize {
        self.hosts.len() - self.guests.len()
    }

    /// The guests of a rank, as numbers of processes.
    pub fn guests_of(&self, rank: usize) -> impl Iterator<Item = usize> {
        let of_it = self.guests.iter().enumerate().filter(move |(_, host)| **host == rank);
        of_it.map(|(guest, _)| self.ranks() + guest)
    }

    /// The rank that this process is a guest of.
    #[must_use]
    pub fn host_of(&self, process: usize) -> Option<usize> {
        self.guests.get(process.checked_sub(self.ranks())?).copied()
    }

    /// When the last trouble is over.
    #[must_use]
    pub fn last_trouble(&self) -> Duration {
        let end = |hit: &Hit| match hit.trouble {
            Trouble::Stop(_, span) => hit.at + span,
            _ => hit.at,
        };
        self.hits.iter().map(end).max().unwrap_or_default()
    }
}

fn hits(dice: &mut SeededEntropy, processes: u64) -> Vec<Hit> {
    let mut hits = Vec::new();
    // Some come while all join.
    let mut at_ms = if dice.below(6) == 0 { dice.below(60) } else { 100 + dice.below(600) };
    // All kinds, or only ends of processes.
    let kinds = if dice.below(2) == 0 { 2 } else { 8 };
    for _ in 0..dice.below(4) {
        let one = dice.below(processes) as usize;
        let other = (one + 1 + dice.below(processes - 1) as usize) % processes as usize;
        let at = Duration::from_millis(at_ms);
        let trouble = match dice.below(kinds) {
            0 | 1 => Trouble::Kill(one),
            2 => Trouble::Crash(one),
            3 => Trouble::Stop(one, Duration::from_millis(20 + dice.below(300))),
            4 => Trouble::Stop(one, Duration::from_millis(500 + dice.below(3000))),
            5 => Trouble::Cut(one, other),
            _ => {
                let healed = at + Duration::from_millis(50 + dice.below(3000));
                hits.push(Hit { at: healed, trouble: Trouble::Heal });
                Trouble::Silence(one, other)
            }
        };
        hits.push(Hit { at, trouble });
        at_ms += [0, dice.below(50), dice.below(1500)][dice.below(3) as usize];
    }
    hits.sort_by_key(|hit| hit.at);
    hits
}
