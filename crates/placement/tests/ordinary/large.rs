//! Problems that are too large to try all.

use crate::common::{Random, fits, problem};
use proptest::prelude::*;
use sheave_placement::{Options, Placement, Problem, objective, solve};

/// Little, so that the test is short in a build for debugging.
const OPTIONS: Options = Options { effort: 3000, seed: 0 };

fn check(problem: &Problem, placement: &Placement) {
    assert!(fits(problem, &placement.device_of));
    assert_eq!(objective(problem, &placement.device_of).unwrap(), placement.objective);
    assert!((0.0..=placement.objective).contains(&placement.lower_bound), "{placement:?}");
    assert!((0.0..=1.0).contains(&placement.gap), "{placement:?}");
    assert!(!placement.exact);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(60))]

    #[test]
    fn placements_fit_and_bounds_are_below(seed in any::<u64>(), models in 13..40_usize, devices in 2..10_usize) {
        let mut problem = problem(models, devices, seed);
        // Enough for any order.
        let largest = problem.model_bytes.iter().copied().max().unwrap();
        let each = problem.model_bytes.iter().sum::<u64>() / devices as u64 + largest + 1;
        problem.device_bytes.iter_mut().for_each(|bytes| *bytes = each.max(*bytes));
        let placement = solve(&problem, &OPTIONS).unwrap();
        check(&problem, &placement);
        prop_assert_eq!(&solve(&problem, &OPTIONS).unwrap(), &placement);
        let mut random = Random(seed);
        for _ in 0..20 {
            let other: Vec<usize> = (0..models).map(|_| random.below(devices as u64) as usize).collect();
            if fits(&problem, &other) {
                prop_assert!(objective(&problem, &other).unwrap() >= placement.lower_bound);
            }
        }
    }
}

/// Clusters whose best placement is known: one on each device, with nothing cut and all work divided evenly.
#[test]
fn a_planted_optimum_is_found() {
    let (clusters, size) = (8, 6);
    let models = clusters * size;
    let mut planted = Problem::uniform(&vec![10; models], &vec![65; clusters]);
    for one in 0..models {
        for other in 0..models {
            if one != other && one % clusters == other % clusters {
                planted.connect(one, other, 1.0);
            }
        }
    }
    planted.weights.connection = 1.0;
    let placement = solve(&planted, &OPTIONS).unwrap();
    check(&planted, &placement);
    assert!(placement.objective < 1e-30, "{placement:?}");
    assert_eq!(placement.device_of, (0..models).map(|model| model % clusters).collect::<Vec<_>>());
    // What no bound can be above.
    planted.connect(0, 1, 1.0);
    let cut = solve(&planted, &OPTIONS).unwrap();
    check(&planted, &cut);
    assert!(cut.objective > 0.0 && cut.lower_bound <= cut.objective);
}

/// Three models of a third of a device each fill it: there is a packing without a gap, and few others.
#[test]
fn memory_without_a_gap_is_filled() {
    let mut random = Random(11);
    for _ in 0..10 {
        let devices = 8;
        let mut sizes = Vec::new();
        for _ in 0..devices {
            let (one, other) = (250 + random.below(200), 250 + random.below(100));
            sizes.extend([one, other, 1000 - one - other]);
        }
        let problem = Problem::uniform(&sizes, &vec![1010; devices]);
        check(&problem, &solve(&problem, &OPTIONS).unwrap());
    }
}

/// The bound is worth something: within a factor of the optimum where clusters must be cut.
#[test]
fn the_bound_sees_cuts_and_lumps() {
    let mut clique = Problem::uniform(&[1; 20], &[5; 4]);
    for one in 0..20 {
        for other in (0..20).filter(|&other| other != one) {
            clique.connect(one, other, 1.0);
        }
    }
    let placement = solve(&clique, &OPTIONS).unwrap();
    assert!(placement.gap < 1e-6, "{placement:?}");
    // One model has most of the work, so one device has more than its share.
    let mut lump = Problem::uniform(&[1; 20], &[20; 4]);
    lump.model_complexity[7] = 81.0;
    let placement = solve(&lump, &OPTIONS).unwrap();
    assert!(placement.objective > 0.05 && placement.gap < 0.1, "{placement:?}");
}
