//! Lock files: the simulator's workspace has the versions of other people's crates that ours has, so that what is
//! simulated is what is shipped. It also saves to compile them twice.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::Finding;
use crate::shell::Outcome;

const OURS: &str = "Cargo.lock";
const SIMULATOR: &str = "sim/Cargo.lock";

/// Every package that the simulator locks at a version that ours does not.
pub(super) fn check(root: &Path) -> Outcome<Vec<Finding>> {
    let read = |path: &str| {
        let text = std::fs::read_to_string(root.join(path)).map_err(|error| format!("cannot read {path}: {error}"))?;
        Ok::<_, String>(versions(&text))
    };
    let ours = read(OURS)?;
    let message = |name: &str, version: &str, ours: &BTreeSet<String>| {
        let ours = ours.iter().map(String::as_str).collect::<Vec<_>>().join(" and ");
        format!("`{name}` is {version} here and {ours} in {OURS}; hint: copy {OURS} here and run cargo")
    };
    let mut findings = Vec::new();
    for (name, theirs) in read(SIMULATOR)? {
        let Some(known) = ours.get(&name) else { continue };
        let differing = theirs.difference(known);
        findings.extend(differing.map(|version| Finding {
            path: SIMULATOR.to_owned(),
            line: 0,
            message: message(&name, version, known),
        }));
    }
    Ok(findings)
}

/// The versions of each package in a lock file.
fn versions(text: &str) -> BTreeMap<String, BTreeSet<String>> {
    let mut found: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let mut name = "";
    for line in text.lines() {
        let value = |key: &str| line.strip_prefix(key)?.strip_prefix(" = \"")?.strip_suffix('"');
        if let Some(value) = value("name") {
            name = value;
        } else if let Some(value) = value("version") {
            found.entry(name.to_owned()).or_default().insert(value.to_owned());
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, version: &str) -> String {
        format!("[[package]]\nname = \"{name}\"\nversion = \"{version}\"\ndependencies = [\n \"other\",\n]\n\n")
    }

    fn findings(ours: &str, simulator: &str) -> Vec<String> {
        let folder = tempfile::tempdir().unwrap();
        std::fs::create_dir(folder.path().join("sim")).unwrap();
        std::fs::write(folder.path().join(OURS), format!("version = 4\n\n{ours}")).unwrap();
        std::fs::write(folder.path().join(SIMULATOR), format!("version = 4\n\n{simulator}")).unwrap();
        check(folder.path()).unwrap().iter().map(Finding::to_string).collect()
    }

    #[test]
    fn another_version_in_the_simulator_is_found_and_named() {
        let ours = package("syn", "2.0.1") + &package("syn", "3.0.1");
        let found = findings(&ours, &package("syn", "2.0.2"));
        assert_eq!(found.len(), 1);
        assert!(
            found[0].starts_with("sim/Cargo.lock: `syn` is 2.0.2 here and 2.0.1 and 3.0.1 in Cargo.lock"),
            "{found:?}"
        );
    }

    #[test]
    fn fewer_packages_of_the_same_versions_are_in_order() {
        let ours = package("syn", "2.0.1") + &package("syn", "3.0.1") + &package("zip", "9.0.0");
        assert_eq!(findings(&ours, &(package("syn", "3.0.1") + &package("only-here", "1.0.0"))), [""; 0]);
    }

    #[test]
    fn a_lock_file_that_is_not_there_is_an_error() {
        let folder = tempfile::tempdir().unwrap();
        assert!(check(folder.path()).unwrap_err().starts_with("cannot read Cargo.lock"));
    }
}
