//! Pictures and tables.

use crate::common::problem;
use sheave_placement::{Labels, Options, Problem, picture, solve, table};

/// Whether tags are closed in order, which is what makes it XML, and how many there are of one name.
fn count(svg: &str, name: &str) -> usize {
    let mut open: Vec<&str> = Vec::new();
    let mut found = 0;
    for tag in svg.split('<').skip(1) {
        let inner = tag.split('>').next().unwrap();
        assert_eq!(inner.matches('"').count() % 2, 0, "{inner}");
        let tag_name = inner.trim_start_matches('/').split([' ', '/']).next().unwrap();
        if inner.starts_with('/') {
            assert_eq!(open.pop(), Some(tag_name));
        } else {
            found += usize::from(tag_name == name);
            if !inner.ends_with('/') {
                open.push(tag_name);
            }
        }
    }
    assert!(open.is_empty() && !svg.contains("NaN") && !svg.contains("inf"), "{svg}");
    found
}

#[test]
fn a_picture_has_each_device_model_and_connection() {
    let mut problem = Problem::uniform(&[1 << 30; 5], &[4 << 30; 3]);
    problem.connect(0, 1, 2.0);
    problem.connect(3, 4, 1.0);
    problem.weights.connection = 0.0;
    let placement = solve(&problem, &Options::default()).unwrap();
    let labels = Labels { models: vec!["a<b> & \"c\"\u{1}".to_owned()], devices: vec!["cuda:0".to_owned()] };
    let svg = picture(&problem, &placement, &labels);
    // A background, three boxes, and two rectangles for each of three times two and five bars.
    assert_eq!(count(&svg, "rect"), 1 + 3 + 2 * (3 * 2 + 5));
    let cut = usize::from(placement.device_of[0] != placement.device_of[1])
        + usize::from(placement.device_of[3] != placement.device_of[4]);
    assert_eq!(count(&svg, "path"), 3 + cut);
    assert!(svg.contains("a&lt;b&gt; &amp; &quot;c&quot;\u{fffd}") && svg.contains("cuda:0"), "{svg}");
    assert!(svg.contains("device 1") && svg.contains("which is the optimum"));
}

#[test]
fn every_problem_has_a_picture_and_a_table() {
    for seed in 0..60 {
        let mut problem = problem(seed as usize % 16, 1 + seed as usize % 6, seed);
        problem.device_bytes.iter_mut().for_each(|bytes| *bytes += 40);
        let placement = solve(&problem, &Options { effort: 100, seed: 0 }).unwrap();
        let devices = problem.device_bytes.len();
        let svg = picture(&problem, &placement, &Labels::default());
        assert_eq!(count(&svg, "title"), 2 * devices + problem.model_bytes.len());
        let text = table(&problem, &placement, &Labels::default());
        assert_eq!(text.lines().count(), devices + 2, "{text}");
        assert!(!text.contains("NaN") && !text.contains("inf") && !text.contains("-0 %"), "{text}");
        assert_eq!(text.contains("optimum"), placement.exact, "{text}");
    }
}

#[test]
fn sizes_are_for_people() {
    for (bytes, said) in
        [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), ((1 << 20) - 1, "1.0 MiB"), (3 << 40, "3.0 TiB")]
    {
        let problem = Problem::uniform(&[bytes], &[bytes]);
        let placement = solve(&problem, &Options::default()).unwrap();
        let text = table(&problem, &placement, &Labels::default());
        assert!(text.contains(&format!("device 0  {said}  ")), "{text}");
    }
}
