//! The optimum of small problems, beside the truth.

use crate::common::{brute_force, fits, problem, problems};
use proptest::prelude::*;
use sheave_placement::{Error, Options, Problem, objective, solve};

/// As far as two sums of the same numbers may be apart.
fn is_same(one: f64, other: f64) -> bool {
    (one - other).abs() <= 1e-11 * one.abs().max(other.abs()) + 1e-15
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn no_placement_is_better(problem in problems(6, 4)) {
        let solved = solve(&problem, &Options::default());
        match (solved, brute_force(&problem)) {
            (Ok(placement), Some(least)) => {
                prop_assert!(fits(&problem, &placement.device_of));
                prop_assert!(placement.exact && placement.gap == 0.0, "{placement:?}");
                prop_assert!(is_same(placement.objective, least), "{placement:?} instead of {least:e}");
                prop_assert_eq!(placement.objective, objective(&problem, &placement.device_of).unwrap());
                prop_assert_eq!(placement.objective, placement.lower_bound);
            }
            (Err(error), None) => prop_assert!(
                matches!(
                    error,
                    Error::Infeasible { .. } | Error::TotalTooLarge { .. } | Error::ModelTooLarge { .. }
                ),
                "{error}"
            ),
            (solved, least) => prop_assert!(false, "{solved:?}, but {least:?}"),
        }
    }

    #[test]
    fn few_devices_hold_more_models(problem in problems(10, 2)) {
        let solved = solve(&problem, &Options::default());
        match brute_force(&problem) {
            Some(least) => prop_assert!(is_same(solved.unwrap().objective, least)),
            None => prop_assert!(solved.is_err()),
        }
    }

    /// Nothing but their order tells the models of the two problems apart.
    #[test]
    fn the_order_of_models_does_not_matter(seed in any::<u64>(), models in 7..=9_usize, devices in 5..=6_usize) {
        let problem = problem(models, devices, seed);
        let mut reversed = problem.clone();
        reversed.model_bytes.reverse();
        reversed.model_complexity.reverse();
        reversed.connections.reverse();
        match (solve(&problem, &Options::default()), solve(&reversed, &Options::default())) {
            (Ok(one), Ok(other)) => prop_assert!(is_same(one.objective, other.objective), "{one:?} {other:?}"),
            (one, other) => prop_assert!(one.is_err() && other.is_err()),
        }
    }
}

#[test]
fn the_largest_exact_problem_is_solved() {
    let mut problem = problem(12, 8, 5);
    problem.device_bytes = vec![20; 8];
    problem.weights.connection = 1.0;
    let placement = solve(&problem, &Options::default()).unwrap();
    assert!(placement.exact && fits(&problem, &placement.device_of));
    assert_eq!(solve(&problem, &Options { effort: 1, seed: 9 }).unwrap(), placement);
}

#[test]
fn connected_models_meet_where_connections_count() {
    let mut problem = Problem::uniform(&[1; 4], &[4; 2]);
    problem.connect(0, 3, 1.0);
    problem.connect(1, 2, 1.0);
    assert_eq!(solve(&problem, &Options::default()).unwrap().device_of, [0, 1, 1, 0]);
    problem.connect(3, 1, 0.5);
    problem.weights.connection = 1000.0;
    assert_eq!(solve(&problem, &Options::default()).unwrap().device_of, [0; 4]);
    problem.device_bytes = vec![3, 3];
    let three = solve(&problem, &Options::default()).unwrap();
    assert!(three.objective > 0.0 && fits(&problem, &three.device_of));
}

#[test]
fn what_would_divide_by_zero_is_defined() {
    // Machin's assigner gives all of these to the first device, whatever fits.
    let mut problem = Problem::uniform(&[3, 3, 3], &[3, 3, 3]);
    assert_eq!(solve(&problem, &Options::default()).unwrap().device_of, [0, 1, 2]);
    problem.device_complexity = vec![0.0; 3];
    assert_eq!(solve(&problem, &Options::default()).unwrap().device_of, [0, 1, 2]);
    problem.model_complexity = vec![0.0; 3];
    problem.distances = vec![0.0; 9];
    let placement = solve(&problem, &Options::default()).unwrap();
    assert_eq!((placement.device_of, placement.objective, placement.gap), (vec![0, 1, 2], 0.0, 0.0));
    problem.weights.connection = 0.0;
    problem.weights.complexity = 0.0;
    assert_eq!(solve(&problem, &Options::default()).unwrap().objective, 0.0);
    let one = Problem::uniform(&[1, 2], &[3]);
    assert_eq!(solve(&one, &Options::default()).unwrap().device_of, [0, 0]);
    let none = Problem::uniform(&[], &[3, 3]);
    assert_eq!(solve(&none, &Options::default()).unwrap().device_of, [0; 0]);
    let huge = Problem { model_complexity: vec![1e300, 1e300], ..Problem::uniform(&[1, 1], &[2, 2]) };
    assert_eq!(solve(&huge, &Options::default()).unwrap().device_of, [0, 1]);
    let tiny = Problem { model_complexity: vec![5e-324, 5e-324], ..huge };
    assert_eq!(solve(&tiny, &Options::default()).unwrap().device_of, [0, 1]);
}
