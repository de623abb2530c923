//! Parameters: versions, snapshots and files.

use sheave_base::{ErrorKind, Result};
use sheave_particle::Parameters;
use sheave_tensor::{Arena, ArenaConfig};

fn arena() -> Arena {
    Arena::new(ArenaConfig { capacity_bytes: 32 << 20, ..ArenaConfig::default() })
}

#[test]
fn a_snapshot_stays_as_it_is() -> Result<()> {
    for mut parameters in [Parameters::new(&[1.0, 2.0])?, Parameters::within(&arena(), &[1.0, 2.0])?] {
        let first = parameters.snapshot();
        let again = parameters.snapshot();
        assert!(first.tensor().buffer().is_same(again.tensor().buffer()), "the version is the same");
        parameters.add(&[1.0, -1.0], 0.5)?;
        let second = parameters.snapshot();
        parameters.set(&[7.0, 8.0])?;
        assert_eq!((first.version(), first.as_slice()?.to_vec()), (0, vec![1.0, 2.0]));
        assert_eq!((second.version(), second.as_slice()?.to_vec()), (1, vec![1.5, 1.5]));
        assert_eq!((parameters.version(), parameters.as_slice()?.to_vec()), (2, vec![7.0, 8.0]));
    }
    Ok(())
}

#[test]
fn an_update_copies_only_while_there_is_a_snapshot() -> Result<()> {
    let mut parameters = Parameters::within(&arena(), &[0.0; 1000])?;
    let place = parameters.snapshot().tensor().ptr();
    parameters.update(|values| values[999] = 1.0)?;
    assert_eq!(parameters.snapshot().tensor().ptr(), place);
    let held = parameters.snapshot();
    parameters.update(|values| values[999] = 2.0)?;
    assert_ne!(parameters.snapshot().tensor().ptr(), place);
    assert_eq!((held.as_slice()?[999], parameters.as_slice()?[999]), (1.0, 2.0));
    assert!(held.tensor().buffer().location().is_some(), "peers can read it");
    Ok(())
}

#[test]
fn files_are_whole_and_make_a_new_version() -> Result<()> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("new/folder/particle.safetensors");
    let mut saved = Parameters::new(&[1.0, f32::MIN_POSITIVE, -0.0])?;
    saved.update(|values| values[0] = 3.0)?;
    saved.save(&path)?;
    let mut loaded = Parameters::new(&[0.0; 3])?;
    let before = loaded.snapshot();
    loaded.load(&path)?;
    let bits = |values: &[f32]| values.iter().map(|value| value.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&loaded.as_slice()?), bits(&saved.as_slice()?));
    assert!(loaded.version() > saved.version() && loaded.version() > before.version());
    assert_eq!(before.as_slice()?.to_vec(), [0.0; 3]);
    saved.save(&path)?;
    assert_eq!(std::fs::read_dir(path.parent().unwrap())?.count(), 1, "no temporary file is left");

    let mut other = Parameters::new(&[0.0; 2])?;
    let error = other.load(&path).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Mismatch);
    assert!(error.to_string().contains("particle.safetensors: 3 values; expected 2"), "{error}");
    assert_eq!(other.version(), 0);
    assert_eq!(other.load(folder.path().join("none")).unwrap_err().kind(), ErrorKind::NotFound);
    assert_eq!(other.add(&[1.0], 1.0).unwrap_err().kind(), ErrorKind::Mismatch);
    Ok(())
}
