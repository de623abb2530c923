//! Steps downhill, as long as there are any.

use super::state::State;

/// Rounds of a descent, at most; a few are usual.
const ROUNDS_MAX: usize = 200;

/// The least gain that is worth a step, of what a placement costs: less could be rounding, and go round in circles.
const LEAST_GAIN: f64 = 1e-12;

/// Models up to which ejections are tried: they look at pairs of models, and then at every device.
const EJECTIONS_MODELS_MAX: usize = 512;

/// Takes moves, swaps, exchanges and ejections that cost less than nothing until there are none. Cheap kinds first:
/// a dearer one is looked at when none of the cheaper ones is left.
pub(super) fn descend(state: &mut State<'_>) {
    for _ in 0..ROUNDS_MAX {
        state.refresh();
        let enough = -LEAST_GAIN * state.terms.cost(state.device_of());
        let has_changed = moves(state, enough)
            || swaps(state, enough)
            || exchanges(state, enough)
            || state.terms.models <= EJECTIONS_MODELS_MAX && ejections(state, enough);
        if !has_changed {
            return;
        }
    }
}

/// Moves each model where it costs least. Whether any has moved.
fn moves(state: &mut State<'_>, enough: f64) -> bool {
    let mut has_changed = false;
    for model in 0..state.terms.models {
        let mut best = (enough, None);
        for device in 0..state.terms.devices {
            let cost = state.move_cost(model, device);
            if cost < best.0 && state.fits(model, device) {
                best = (cost, Some(device));
            }
        }
        if let Some(device) = best.1 {
            state.apply(model, device);
            has_changed = true;
        }
    }
    has_changed
}

/// Lets each model change places with the one with which that costs least.
fn swaps(state: &mut State<'_>, enough: f64) -> bool {
    let mut has_changed = false;
    for model in 0..state.terms.models {
        let mut best = (enough, None);
        for other in 0..model {
            if state.device(other) == state.device(model) {
                continue;
            }
            let cost = state.swap_cost(model, other);
            if cost < best.0 && state.swap_fits(model, other) {
                best = (cost, Some(other));
            }
        }
        if let Some(other) = best.1 {
            let (here, there) = (state.device(model), state.device(other));
            state.apply(model, there);
            state.apply(other, here);
            has_changed = true;
        }
    }
    has_changed
}

/// Lets whole devices exchange their models.
fn exchanges(state: &mut State<'_>, enough: f64) -> bool {
    let mut has_changed = false;
    for one in 0..state.terms.devices {
        for other in 0..one {
            if state.exchange_fits(one, other) && state.exchange_cost(one, other) < enough {
                state.exchange(one, other);
                has_changed = true;
            }
        }
    }
    has_changed
}

/// Lets a model take the place of another one, which goes to a third device.
fn ejections(state: &mut State<'_>, enough: f64) -> bool {
    let mut has_changed = false;
    for model in 0..state.terms.models {
        let mut best = (enough, None);
        for other in (0..state.terms.models).filter(|&other| other != model) {
            let (here, there) = (state.device(model), state.device(other));
            if here == there || !state.fits_in_place_of(model, other) {
                continue;
            }
            for device in (0..state.terms.devices).filter(|&device| device != here && device != there) {
                let cost = state.eject_cost(model, other, device);
                if cost < best.0 && state.fits(other, device) {
                    best = (cost, Some((other, device)));
                }
            }
        }
        if let Some((other, device)) = best.1 {
            let there = state.device(other);
            state.apply(other, device);
            state.apply(model, there);
            has_changed = true;
        }
    }
    has_changed
}
