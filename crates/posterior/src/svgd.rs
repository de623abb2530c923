//! Stein variational gradient descent of particles.
//!
//! Each step every member computes the gradient of its negative log posterior, all of the same batch. Then all are
//! moved along what they tell each other ([`sheave_bayes::svgd`]).
//!
//! **With a leader** ([`SteinVgd::new`]) that is done by the node that fits: each step sends each member its parameters
//! and gets its gradient back. **Cut over the parameters** ([`SteinVgd::sharded`]) there is no leader: each of `P`
//! nodes has `n / P` members whole, and moves a slice of `d / P` parameters of all of them. Gradients go to the owners
//! of slices and parameters come back, by one all-to-all each; what slices must know of each other is the sum of their
//! `n × n` Gram matrices, by an all-reduce. So a node sends `2 n d / P` numbers in a step, and none has more than its
//! share to do. Slices are padded with parameters that are zero and stay so: they add nothing to a Gram matrix.

use sheave_base::{Error, ErrorKind, Result};
use sheave_bayes::prior::Normal;
use sheave_bayes::svgd::{Flow, Forces, Gram, Svgd, Workspace};
use sheave_collective::{Communicator, Operator};
use sheave_optim::{Rule, State};
use sheave_particle::{Message, ParticleId};
use sheave_tensor::{Dtype, Tensor};

use parking_lot::Mutex;

use crate::behavior::{number, tensor};
use crate::ensemble::common;
use crate::inference::Inference;
use crate::member::Draw;
use crate::members::{Common, Members, Progress, check_likelihood, named};
use crate::prediction::Prediction;
use crate::settings::{Batches, Method};

/// Settings of [`SteinVgd`].
#[derive(Clone, Debug, PartialEq)]
pub struct SteinVgdSettings {
    /// How many particles there are.
    pub members: usize,
    /// Rows of a batch, which all particles see.
    pub batch_rows: usize,
    /// How particles follow their directions. Those are of the posterior of all data, so that a rule that does not
    /// depend on their scale is good, such as Adam or AdaGrad.
    pub rule: Rule,
    /// Kernel and lengthscale; an RBF of the median by default.
    pub svgd: Svgd,
    /// The prior of the parameters; none by default, which is a flat one.
    pub prior: Option<Normal>,
    /// The seed of the posterior; 0 by default.
    pub seed: u64,
}

impl SteinVgdSettings {
    /// Returns the settings of so many particles, with defaults.
    #[must_use]
    pub fn new(members: usize, batch_rows: usize, rule: Rule) -> Self {
        Self { members, batch_rows, rule, svgd: Svgd::default(), prior: None, seed: 0 }
    }
}

/// Stein variational gradient descent (Liu and Wang, NeurIPS 2016, arXiv:1608.04471): particles that go downhill, and
/// keep each other apart.
pub struct SteinVgd {
    members: Members,
    mover: Mutex<Mover>,
}

enum Mover {
    Leader(Box<Leader>),
    Shard(Box<Shard>),
}

impl SteinVgd {
    /// Makes the particles, which this node leads. Blocks until all nodes have theirs.
    ///
    /// # Errors
    /// Those of [`Ensemble::new`](crate::Ensemble::new); `InvalidArgument` for a loss that is no likelihood.
    pub fn new(inference: &Inference, settings: &SteinVgdSettings) -> Result<Self> {
        let SteinVgdSettings { members: count, rule, svgd, .. } = settings.clone();
        let flow = Flow::new(svgd, rule, count.max(1), inference.network().dimension())?;
        let members = settings.members(inference, 0..count)?;
        let leader = Leader { flow, parameters: members.parameters()?, gradients: vec![Vec::new(); count] };
        Ok(Self { members, mover: Mutex::new(Mover::Leader(Box::new(leader))) })
    }

    /// Makes this node's part of particles that all members of a group descend together, each with a slice of the
    /// parameters. Every one of them calls this and everything else, with the same settings, at the same time: it has
    /// `members / size` of the particles, on its own node. Predictions and parameters are those of its own.
    ///
    /// # Errors
    /// Those of [`new`](Self::new); `InvalidArgument` for particles that are no multiple of the group's size, or a rule
    /// that needs the norms of whole tensors; `PeerLost` where a member of the group is gone.
    pub fn sharded(inference: &Inference, group: &Communicator, settings: &SteinVgdSettings) -> Result<Self> {
        check_likelihood(inference.network().loss())?;
        let (size, rank) = (group.size() as usize, group.rank().0 as usize);
        let refuse = |what: String| Err(Error::new(ErrorKind::InvalidArgument, what).operation("posterior"));
        if settings.members == 0 || !settings.members.is_multiple_of(size) {
            return refuse(format!("members is {}; expected a multiple of {size}, the group's size", settings.members));
        }
        if settings.rule.needs_norms() {
            return refuse(format!("the rule is {}; expected one that needs no norms", settings.rule.name()));
        }
        settings.svgd.check()?;
        let own = settings.members / size;
        let here = inference.on(&[inference.particles.node()])?;
        let members = settings.members(&here, rank * own..(rank + 1) * own)?;
        let shard = Shard::new(group, settings, members.parameters()?)?;
        Ok(Self { members, mover: Mutex::new(Mover::Shard(Box::new(shard))) })
    }

    /// Moves all particles for some epochs, and returns the mean loss of each in the last one. Blocks; may be called
    /// again, to go on.
    ///
    /// # Errors
    /// Those of [`Ensemble::fit`](crate::Ensemble::fit), and of the collectives.
    pub fn fit(&self, epochs: usize, mut progress: impl FnMut(&Progress<'_>)) -> Result<Vec<f64>> {
        let mut mover = self.mover.lock();
        let mut losses = vec![0.0; self.members.len()];
        for epoch in 1..=epochs {
            losses.fill(0.0);
            for _ in 0..self.members.steps() {
                match &mut *mover {
                    Mover::Leader(leader) => leader.step(&self.members, &mut losses),
                    Mover::Shard(shard) => shard.step(&self.members, &mut losses),
                }
                .map_err(named("fit"))?;
            }
            losses.iter_mut().for_each(|loss| *loss /= self.members.steps() as f64);
            let parameters = match &*mover {
                Mover::Leader(leader) => &leader.parameters,
                Mover::Shard(shard) => &shard.own,
            };
            set(&self.members, parameters).map_err(named("fit"))?;
            progress(&Progress { epoch, epochs, losses: &losses });
        }
        Ok(losses)
    }

    /// Predicts rows of inputs with each particle. Blocks.
    ///
    /// # Errors
    /// Those of [`Ensemble::predict`](crate::Ensemble::predict).
    pub fn predict(&self, inputs: &[f32]) -> Result<Prediction> {
        self.members.predict(inputs, Draw::Own)
    }

    common!();
}

impl SteinVgdSettings {
    fn members(&self, inference: &Inference, range: std::ops::Range<usize>) -> Result<Members> {
        check_likelihood(inference.network().loss())?;
        self.rule.check()?;
        let common =
            Common { members: self.members, batch_rows: self.batch_rows, batches: Batches::Shared, seed: self.seed };
        Members::some(inference, common, &Method::Follow { prior: self.prior }, range)
    }
}

fn flat(values: &[f32]) -> Result<Tensor> {
    Tensor::from_slice(values, [values.len() as u64])
}

/// Tells each member its parameters.
fn set(members: &Members, parameters: &[Vec<f32>]) -> Result<()> {
    let tensors = parameters.iter().map(|values| flat(values)).collect::<Result<Vec<_>>>()?;
    members.ask("set", |member| Message::default().tensor(tensors[member].clone())).map(drop)
}

/// Tells each member its parameters, adds its loss, and hands its gradient over.
fn follow(
    members: &Members,
    parameters: &[Vec<f32>],
    losses: &mut [f64],
    mut take: impl FnMut(usize, &[f32]),
) -> Result<()> {
    let tensors = parameters.iter().map(|values| flat(values)).collect::<Result<Vec<_>>>()?;
    let answers = members.ask("follow", |member| Message::default().tensor(tensors[member].clone()))?;
    for (member, answer) in answers.iter().enumerate() {
        losses[member] += number(&answer.value)?;
        let gradient = tensor(answer)?.as_slice::<f32>()?;
        if gradient.len() != parameters[member].len() {
            let what = format!("a gradient of {} elements; expected {}", gradient.len(), parameters[member].len());
            return Err(Error::new(ErrorKind::Mismatch, what));
        }
        take(member, &gradient);
    }
    Ok(())
}

/// All particles of a leader.
struct Leader {
    flow: Flow<f32>,
    parameters: Vec<Vec<f32>>,
    gradients: Vec<Vec<f32>>,
}

impl Leader {
    fn step(&mut self, members: &Members, losses: &mut [f64]) -> Result<()> {
        let gradients = &mut self.gradients;
        follow(members, &self.parameters, losses, |member, gradient| {
            gradients[member].clear();
            gradients[member].extend_from_slice(gradient);
        })?;
        self.flow.step(&mut self.parameters, &mut self.gradients)
    }
}

/// One node's particles, and its slice of all.
struct Shard {
    group: Communicator,
    svgd: Svgd,
    rule: Rule,
    /// Elements of a slice; the last ones of the last slices are padding.
    width: usize,
    /// The parameters of this node's particles.
    own: Vec<Vec<f32>>,
    /// This node's slice of all particles, and what moves it.
    slices: Vec<Vec<f32>>,
    slopes: Vec<Vec<f32>>,
    states: Vec<State<f32>>,
    gram: Gram,
    workspace: Workspace<f32>,
    /// A row for each node, of the slices of its particles, or of its slice of this node's particles.
    sent: Tensor,
    received: Tensor,
    products: Tensor,
}

impl Shard {
    fn new(group: &Communicator, settings: &SteinVgdSettings, own: Vec<Vec<f32>>) -> Result<Self> {
        let (count, size) = (settings.members, group.size() as usize);
        let width = own[0].len().div_ceil(size);
        let all = || Tensor::private(Dtype::F32, [count as u64, width as u64]);
        let mut shard = Self {
            group: group.clone(),
            svgd: settings.svgd,
            rule: settings.rule.clone(),
            width,
            slices: vec![vec![0.0; width]; count],
            slopes: vec![vec![0.0; width]; count],
            states: (0..count).map(|_| settings.rule.state(width)).collect(),
            gram: Gram::new(count)?,
            workspace: Workspace::new(),
            sent: all()?,
            received: all()?,
            products: Tensor::private(Dtype::F64, [(count * count) as u64])?,
            own,
        };
        for member in 0..shard.own.len() {
            let values = std::mem::take(&mut shard.own[member]);
            shard.write(member, &values)?;
            shard.own[member] = values;
        }
        shard.exchange()?;
        let mut slices = std::mem::take(&mut shard.slices);
        read_rows(&shard.received, &mut slices)?;
        shard.slices = slices;
        Ok(shard)
    }

    /// Writes a vector of this node's particle `member`, slice by slice, to where its owners are sent it.
    fn write(&mut self, member: usize, values: &[f32]) -> Result<()> {
        let (width, own) = (self.width, self.own.len());
        let rows = self.sent.as_mut_slice::<f32>()?;
        for (owner, row) in rows.chunks_exact_mut(own * width).enumerate() {
            let place = &mut row[member * width..(member + 1) * width];
            let slice = &values[values.len().min(owner * width)..values.len().min((owner + 1) * width)];
            place[..slice.len()].copy_from_slice(slice);
            place[slice.len()..].fill(0.0);
        }
        Ok(())
    }

    fn exchange(&self) -> Result<()> {
        self.group.all_to_all(&self.sent, &self.received).wait()
    }

    fn step(&mut self, members: &Members, losses: &mut [f64]) -> Result<()> {
        let own = std::mem::take(&mut self.own);
        // As many as before, for the places that gradients go to.
        self.own.resize_with(own.len(), Vec::new);
        let mut written = Ok(());
        let followed = follow(members, &own, losses, |member, gradient| {
            if written.is_ok() {
                written = self.write(member, gradient);
            }
        });
        self.own = own;
        let outcome = followed.and(written);
        if outcome.is_err() {
            // The others are told by numbers that no gradient has, lest they wait for this node.
            self.sent.as_mut_slice::<f32>()?.fill(f32::NAN);
        }
        let exchanged = self.exchange();
        outcome.and(exchanged)?;
        read_rows(&self.received, &mut self.slopes)?;
        self.check_slopes()?;
        self.gram.clear();
        self.gram.add_slice(&self.slices, &mut self.workspace)?;
        self.products.as_mut_slice::<f64>()?.copy_from_slice(self.gram.values());
        self.group.all_reduce(&self.products, &self.products, Operator::Sum).wait()?;
        self.gram.values_mut().copy_from_slice(&self.products.as_slice::<f64>()?);
        let forces: Forces = self.svgd.forces(&self.gram)?;
        forces.apply(&self.slices, &mut self.slopes, &mut self.workspace)?;
        let moved = self.slices.iter_mut().zip(&self.slopes).zip(&mut self.states);
        for ((slice, direction), state) in moved {
            self.rule.step(state, slice, direction)?;
        }
        self.return_slices()
    }

    /// Every node gets a slice of each gradient, and all fail together.
    fn check_slopes(&self) -> Result<()> {
        let Some(member) = self.slopes.iter().position(|row| row.iter().any(|slope| slope.is_nan())) else {
            return Ok(());
        };
        let rank = member / self.own.len();
        let what = format!("no gradient of member {member} came from rank {rank} of the group, which has failed");
        Err(Error::new(ErrorKind::Remote, what).hint("see its error"))
    }

    /// Each node gets the new slices of its particles from all owners.
    fn return_slices(&mut self) -> Result<()> {
        let width = self.width;
        let rows = self.sent.as_mut_slice::<f32>()?;
        rows.chunks_exact_mut(width).zip(&self.slices).for_each(|(row, slice)| row.copy_from_slice(slice));
        self.exchange()?;
        let (count, received) = (self.own.len(), self.received.as_slice::<f32>()?);
        for (owner, rows) in received.chunks_exact(count * width).enumerate() {
            for (values, row) in self.own.iter_mut().zip(rows.chunks_exact(width)) {
                let (start, end) = (values.len().min(owner * width), values.len().min((owner + 1) * width));
                values[start..end].copy_from_slice(&row[..end - start]);
            }
        }
        Ok(())
    }
}

fn read_rows(tensor: &Tensor, rows: &mut [Vec<f32>]) -> Result<()> {
    let values = tensor.as_slice::<f32>()?;
    let width = values.len() / rows.len();
    rows.iter_mut().zip(values.chunks_exact(width)).for_each(|(row, values)| row.copy_from_slice(values));
    Ok(())
}
