//! Prints everything that happens in one seed.
fn main() {
    let seed = std::env::args().nth(1).and_then(|seed| seed.parse().ok()).unwrap_or(0);
    let scenario = sheave_sim::Scenario::from_seed(seed);
    println!("{scenario:?}");
    let mut world = sheave_sim::World::new(scenario, sheave_sim::Faults::default());
    world.log = Some(String::new());
    let end = world.run();
    println!("{}{end:?}", world.log.unwrap_or_default());
}
