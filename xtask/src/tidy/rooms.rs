//! The rooms of the house as their manifests describe them, read through `cargo metadata`.

use serde_json::Value;

use crate::shell::{Outcome, Workspace, output};

/// A crate under `crates/`, as its manifest describes it.
#[derive(Debug)]
pub(super) struct Room {
    /// The name of its folder.
    pub(super) name: String,
    pub(super) package: String,
    /// Of every sort: a test that needs a higher floor belongs on that floor.
    pub(super) dependencies: Vec<Dependency>,
}

#[derive(Debug)]
pub(super) struct Dependency {
    pub(super) package: String,
    features: Vec<String>,
}

/// Reads the workspace's manifests.
pub(super) fn read(workspace: &Workspace) -> Outcome<Vec<Room>> {
    let text = output(workspace.cargo(&["metadata", "--no-deps", "--format-version", "1"]))?;
    let metadata: Value = serde_json::from_str(&text).map_err(|error| format!("cargo's metadata: {error}"))?;
    let packages = metadata["packages"].as_array().ok_or("cargo's metadata name no packages")?;
    Ok(packages.iter().filter_map(Room::read).collect())
}

impl Room {
    /// `None` for a package that is not a room: this tool, an example.
    fn read(package: &Value) -> Option<Room> {
        let folder = package["manifest_path"].as_str()?.strip_suffix("/Cargo.toml")?;
        let (above, name) = folder.rsplit_once('/')?;
        if !above.ends_with("/crates") {
            return None;
        }
        let dependencies = package["dependencies"].as_array()?.iter().filter_map(Dependency::read).collect();
        Some(Room { name: name.to_owned(), package: package["name"].as_str()?.to_owned(), dependencies })
    }
}

impl Dependency {
    fn read(dependency: &Value) -> Option<Dependency> {
        let features = dependency["features"].as_array()?.iter();
        let features = features.filter_map(|feature| feature.as_str().map(str::to_owned)).collect();
        Some(Dependency { package: dependency["name"].as_str()?.to_owned(), features })
    }

    /// The room's name, when the dependency is one of ours.
    pub(super) fn room(&self) -> Option<&str> {
        if self.package == "sheave" { Some("sheave") } else { self.package.strip_prefix("sheave-") }
    }

    pub(super) fn knows_pyo3(&self) -> bool {
        self.package.starts_with("pyo3") || self.features.iter().any(|feature| feature == "pyo3")
    }
}
