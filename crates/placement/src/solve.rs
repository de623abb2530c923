//! From a problem to a placement.

use crate::bound::lower_bound;
use crate::error::{Error, Result};
use crate::problem::Problem;
use crate::terms::Terms;
use crate::{exact, pack, search};

/// Up to so many models, and [`EXACT_DEVICES_MAX`] devices, placements are optimal.
pub const EXACT_MODELS_MAX: usize = 12;

/// Up to so many devices, and [`EXACT_MODELS_MAX`] models, placements are optimal.
pub const EXACT_DEVICES_MAX: usize = 8;

/// Moves for each model before a small problem is solved: the better a placement is known, the less is searched.
const KNOWN_EFFORT: u64 = 4000;

/// How hard to look for a placement of a large problem. Small ones are solved whatever it says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Options {
    /// How many moves are tried for each model; more find better placements and take as much longer. 250,000 by
    /// default.
    pub effort: u64,
    /// What determines the moves that are tried; 0 by default.
    pub seed: u64,
}

impl Default for Options {
    fn default() -> Self {
        Self { effort: 250_000, seed: 0 }
    }
}

/// Which device each model is on, and how good that is.
#[derive(Clone, Debug, PartialEq)]
pub struct Placement {
    /// By model: its device.
    pub device_of: Vec<usize>,
    /// What it costs: see the crate's documentation.
    pub objective: f64,
    /// What no placement can cost less than.
    pub lower_bound: f64,
    /// By how much the objective may be above the optimum, as a share of it: `(objective - lower_bound) / objective`.
    pub gap: f64,
    /// Whether it is proven to be the best, up to a rounding error of 1e-12 of the objective. Its gap is 0 then.
    pub exact: bool,
}

/// Returns the best placement that fits, or a good one where the problem is too large for the best.
///
/// Up to [`EXACT_MODELS_MAX`] models × [`EXACT_DEVICES_MAX`] devices, and on one device, it is the best. Beyond, the
/// time is that of `options.effort`, and for up to 512 models that of the lower bound, `O(n³)`. Blocks; nothing is
/// started, read or written.
///
/// Of devices that nothing tells apart, the first takes the first model, and so on; of other placements that cost the
/// same, the one that is found first is taken, the same in every run.
///
/// # Errors
/// Those of [`Problem::check`]. [`Error::ModelTooLarge`], [`Error::TotalTooLarge`] and [`Error::Infeasible`] where no
/// placement fits; [`Error::NothingFound`] where a large problem may have one.
pub fn solve(problem: &Problem, options: &Options) -> Result<Placement> {
    problem.check()?;
    let terms = Terms::new(problem);
    let (bytes, available) = may_fit(&terms)?;
    if terms.models == 0 || terms.devices == 1 {
        return Ok(placement(&terms, &vec![0; terms.models], true));
    }
    if terms.models <= EXACT_MODELS_MAX && terms.devices <= EXACT_DEVICES_MAX {
        let packed = pack::pack(&terms, 0);
        let known = packed.ok().map(|packing| search::search(&terms, &packing, KNOWN_EFFORT, 0));
        let best = exact::solve(&terms, known).ok_or(Error::Infeasible { bytes, available })?;
        return Ok(placement(&terms, &best, true));
    }
    let packing = pack::pack(&terms, options.seed).map_err(|packing| left_over(&terms, &packing))?;
    let found = search::search(&terms, &packing, options.effort, options.seed);
    Ok(placement(&terms, &found, false))
}

/// Returns what a placement costs, whether or not it fits.
///
/// # Errors
/// Those of [`Problem::check`], [`Error::Length`] unless there is a device for each model, and
/// [`Error::NoSuchDevice`].
///
/// ```
/// use sheave_placement::{Problem, objective};
///
/// let problem = Problem::uniform(&[1, 1], &[2, 2]);
/// assert_eq!(objective(&problem, &[0, 1])?, 0.0);
/// assert_eq!(objective(&problem, &[0, 0])?, 0.25);
/// # Ok::<(), sheave_placement::Error>(())
/// ```
pub fn objective(problem: &Problem, device_of: &[usize]) -> Result<f64> {
    problem.check()?;
    let (expected, devices) = (problem.model_bytes.len(), problem.device_bytes.len());
    if device_of.len() != expected {
        return Err(Error::Length { field: "device_of", length: device_of.len(), expected });
    }
    match device_of.iter().position(|&device| device >= devices) {
        Some(model) => Err(Error::NoSuchDevice { model, device: device_of[model], devices }),
        None => Ok(Terms::new(problem).cost(device_of)),
    }
}

/// Bytes of all models and of all devices, unless these say already that nothing fits.
fn may_fit(terms: &Terms) -> Result<(u64, u64)> {
    let largest = terms.capacity.iter().copied().max().unwrap_or(0);
    if let Some(model) = terms.bytes.iter().position(|&bytes| bytes > largest) {
        return Err(Error::ModelTooLarge { model, bytes: terms.bytes[model], largest });
    }
    let (bytes, available) = (terms.bytes.iter().sum(), terms.capacity.iter().sum());
    if bytes > available { Err(Error::TotalTooLarge { bytes, available }) } else { Ok((bytes, available)) }
}

/// What did not fit in the best packing that there is.
fn left_over(terms: &Terms, packing: &[usize]) -> Error {
    let used = terms.used(packing);
    let is_over = |model: &usize| used[packing[*model]] > terms.capacity[packing[*model]];
    let model = (0..terms.models).filter(is_over).min_by_key(|&model| terms.bytes[model]).unwrap_or(0);
    let free = terms.capacity.iter().zip(used).map(|(capacity, used)| capacity.saturating_sub(used)).max();
    Error::NothingFound { model, bytes: terms.bytes[model], free: free.unwrap_or(0) }
}

fn placement(terms: &Terms, device_of: &[usize], exact: bool) -> Placement {
    let device_of = renamed(terms, device_of);
    let objective = terms.cost(&device_of);
    let lower_bound = if exact { objective } else { lower_bound(terms).min(objective) };
    let gap = if objective > lower_bound { (objective - lower_bound) / objective } else { 0.0 };
    Placement { device_of, objective, lower_bound, gap, exact }
}

/// The same placement, with those devices that nothing tells apart in the order of their first models.
fn renamed(terms: &Terms, device_of: &[usize]) -> Vec<usize> {
    let mut names: Vec<Option<usize>> = vec![None; terms.devices];
    let mut is_taken = vec![false; terms.devices];
    let mut renamed = Vec::with_capacity(device_of.len());
    for &device in device_of {
        let first = || (0..device).find(|&other| !is_taken[other] && terms.are_alike(other, device));
        // One that is alike and behind this one is left if this one's name is gone.
        let later = || {
            (device..terms.devices)
                .find(|&other| !is_taken[other] && (other == device || terms.are_alike(other, device)))
        };
        let name = names[device].or_else(first).or_else(later).unwrap_or(device);
        (names[device], is_taken[name]) = (Some(name), true);
        renamed.push(name);
    }
    renamed
}
