//! What is refused, and in which words.
use sheave_placement::{DEVICES_MAX, Error, MODELS_MAX, Options, Problem, objective, solve};

fn refusal(change: impl FnOnce(&mut Problem)) -> String {
    let mut problem = Problem::uniform(&[1, 2, 3], &[4, 4]);
    change(&mut problem);
    let error = solve(&problem, &Options::default()).unwrap_err();
    let text = error.to_string();
    assert!(!text.ends_with('.') && text.starts_with(char::is_lowercase), "{text}");
    text
}

#[test]
fn numbers_without_a_meaning_are_refused() {
    let finite = "expected a finite number from 0 on";
    for value in [f64::NAN, f64::INFINITY, -1.0] {
        let said = |field: &str, index: usize| format!("{field}[{index}] is {value}; {finite}");
        assert_eq!(refusal(|problem| problem.model_complexity[1] = value), said("model_complexity", 1));
        assert_eq!(refusal(|problem| problem.connections[5] = value), said("connections", 5));
        assert_eq!(refusal(|problem| problem.device_complexity[0] = value), said("device_complexity", 0));
        assert_eq!(refusal(|problem| problem.distances[2] = value), said("distances", 2));
        let weight = format!("weights.connection[0] is {value}; expected a number from 0 to 1e100");
        assert_eq!(refusal(|problem| problem.weights.connection = value), weight);
        assert!(refusal(|problem| problem.weights.complexity = value).starts_with("weights.complexity"));
    }
    assert!(refusal(|problem| problem.weights.complexity = 1e101).contains("1e100"));
    assert_eq!(refusal(|problem| problem.distances[0] = 1.0), "distances[0] is 1; expected 0 on the diagonal");
    let asymmetric = "distances from device 1 to 0 is 1 and back is 2; expected the same both ways";
    assert_eq!(refusal(|problem| problem.distances[1] = 2.0), asymmetric);
    assert!(refusal(|problem| problem.model_complexity = vec![f64::MAX; 3]).contains("sum of model_complexity"));
    assert!(refusal(|problem| problem.device_bytes = vec![u64::MAX; 2]).contains("sum of device_bytes"));
}

#[test]
fn lengths_must_agree() {
    assert_eq!(refusal(|problem| _ = problem.connections.pop()), "connections has 8 entries; expected 9");
    assert_eq!(refusal(|problem| problem.device_complexity.push(1.0)), "device_complexity has 3 entries; expected 2");
    assert_eq!(refusal(|problem| problem.distances.clear()), "distances has 0 entries; expected 4");
    let none = refusal(|problem| *problem = Problem::uniform(&[1], &[]));
    assert_eq!(none, format!("device_bytes has 0 entries; expected 1 to {DEVICES_MAX}"));
    let many = Problem { model_bytes: vec![0; MODELS_MAX + 1], ..Problem::uniform(&[], &[1]) };
    assert!(matches!(solve(&many, &Options::default()), Err(Error::Count { most: MODELS_MAX, .. })));
    let problem = Problem::uniform(&[1, 2], &[4, 4]);
    assert!(matches!(objective(&problem, &[0]), Err(Error::Length { field: "device_of", length: 1, expected: 2 })));
    let error = objective(&problem, &[0, 2]).unwrap_err();
    assert_eq!(error.to_string(), "device_of[1] is 2; expected a device below 2");
}

#[test]
fn what_does_not_fit_is_named() {
    let model = "model 1 takes 9 bytes; expected at most the 4 of the largest device";
    assert_eq!(refusal(|problem| problem.model_bytes[1] = 9), model);
    let total = "the models take 9 bytes in all; expected at most the 8 of all devices";
    assert_eq!(refusal(|problem| problem.model_bytes = vec![3; 3]), total);
    let proven = "no placement fits: the models take 9 of 10 bytes, but cannot be divided among the devices";
    assert_eq!(refusal(|problem| (problem.model_bytes, problem.device_bytes) = (vec![3; 3], vec![5; 2])), proven);
    // Thirteen models are too many to try all.
    let large = Problem::uniform(&[3; 13], &[20; 2]);
    let error = solve(&large, &Options::default()).unwrap_err();
    assert_eq!(error, Error::NothingFound { model: 0, bytes: 3, free: 2 });
    let said =
        "found no placement that fits: model 0 of 3 bytes was left over, and no device had more than 2 bytes free";
    assert_eq!(error.to_string(), said);
}
