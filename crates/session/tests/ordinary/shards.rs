//! Parameters from files, by sessions of every kind.

use crate::common;
use crate::common::{PATIENCE, each, is_none, numbers, shape, told_by_all};
use sheave_base::ErrorKind;
use sheave_session::{Args, Session, ShardFunction, ShardInfo, ShardLoader};
use sheave_tensor::{Dtype, Shape, Tensor, file};
use std::collections::BTreeMap;
use std::path::PathBuf;

/// Not a test, but what this binary's child processes run.
#[test]
fn actor() {
    common::act();
}

/// A tensor of this shape, with the numbers from `first` on.
fn counted(first: usize, dimensions: &[u64]) -> Tensor {
    let shape = Shape::new(dimensions).unwrap();
    let all: Vec<f32> = (0..shape.elements().unwrap()).map(|number| (first as u64 + number) as f32).collect();
    Tensor::from_slice(&all, shape).unwrap()
}

/// Two files of parameters in a folder.
fn files(folder: &tempfile::TempDir) -> Vec<PathBuf> {
    let paths = ["one", "two"].map(|name| folder.path().join(format!("{name}.safetensors")));
    let (rows, columns, bias) = (counted(0, &[4, 6]), counted(100, &[2, 8]), counted(200, &[3]));
    file::save(&paths[0], &[("rows", &rows), ("columns", &columns)], &[]).unwrap();
    // Of 4 heads of queries, and 2 of keys and values each: 8 heads of 2 rows.
    file::save(&paths[1], &[("bias", &bias), ("qkv", &counted(0, &[16, 3]))], &[]).unwrap();
    paths.to_vec()
}

fn by(name: &str, dimensions: &[u64], numbers: &[i64]) -> ShardFunction {
    let (shape, numbers) = (Shape::new(dimensions).unwrap(), numbers.to_vec());
    ShardFunction { name: name.to_owned(), shape, dtype: Dtype::F32, numbers }
}

fn infos() -> BTreeMap<String, ShardInfo> {
    let qkv = vec![by("heads", &[2, 4, 2, 3], &[2, 4, 2]), by("flat heads", &[2, 8, 3], &[])];
    [("rows", ShardInfo::Dimension(0)), ("columns", ShardInfo::Dimension(1)), ("qkv", ShardInfo::Functions(qkv))]
        .map(|(name, info)| (name.to_owned(), info))
        .into()
}

fn loader(session: &Session, folder: &tempfile::TempDir) -> ShardLoader {
    session.shard_loader(&files(folder), &infos()).unwrap()
}

#[test]
fn parameters_are_cut_by_dimensions_and_functions_or_broadcast() {
    let folder = tempfile::tempdir().unwrap();
    each(2, 1, |session| {
        let loader = loader(session, &folder);
        let [rows, columns, bias, qkv] = ["rows", "columns", "bias", "qkv"].map(|name| loader.load(name).unwrap());
        for worker in 0..2 {
            assert_eq!(shape(&rows, worker), [2, 6]);
            let first = worker as f32 * 12.0;
            assert_eq!(numbers(&rows, worker), (0..12).map(|number| first + number as f32).collect::<Vec<_>>());
            let first = worker as f32 * 4.0 + 100.0;
            let expected = [0, 1, 2, 3, 8, 9, 10, 11].map(|number| first + number as f32);
            assert_eq!((numbers(&columns, worker), shape(&columns, worker)), (expected.to_vec(), vec![2, 4]));
            assert_eq!(numbers(&bias, worker), [200.0, 201.0, 202.0]);
            // Rows 0 to 7 are queries, 8 to 11 keys, 12 to 15 values; each worker has half of each.
            let own = [[0, 1, 2, 3, 8, 9, 12, 13], [4, 5, 6, 7, 10, 11, 14, 15]][worker as usize];
            let expected: Vec<f32> = own.iter().flat_map(|row| (0..3).map(move |at| (row * 3 + at) as f32)).collect();
            assert_eq!((numbers(&qkv, worker), shape(&qkv, worker)), (expected, vec![8, 3]));
        }
        let all = loader.load_all().unwrap();
        let names: Vec<String> = loader.names().unwrap().get(1, PATIENCE).unwrap();
        assert_eq!(names, ["bias", "columns", "qkv", "rows"]);
        for worker in 0..2 {
            let all: BTreeMap<String, Tensor> = all.get(worker, PATIENCE).unwrap();
            assert_eq!(all.keys().collect::<Vec<_>>(), names.iter().collect::<Vec<_>>());
            assert_eq!(all["rows"].to_vec::<f32>().unwrap(), numbers(&rows, worker));
            assert_eq!(all["qkv"].shape(), &Shape::from([8, 3]));
        }
        let first = loader.load_on_first("rows").unwrap();
        assert_eq!((shape(&first, 0), is_none(&first, 1)), (vec![4, 6], true));
    });
}

#[test]
fn presharded_parameters_are_read_by_each_worker() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("shards.safetensors");
    let names = |name: &str| [1, 2].map(|number| format!("{name}_shard-{number}-of-2"));
    let [(a, b), (c, d)] = [names("x_0").into(), names("x_1").into()];
    let shards =
        [(&*a, counted(0, &[2, 2])), (&*b, counted(4, &[2, 2])), (&*c, counted(8, &[1])), (&*d, counted(9, &[1]))];
    let shards: Vec<(&str, &Tensor)> = shards.iter().map(|(name, tensor)| (*name, tensor)).collect();
    file::save(&path, &shards, &[]).unwrap();
    each(2, 1, |session| {
        let loader = session.shard_loader(&[&path], &BTreeMap::new()).unwrap();
        let (one, all) = (loader.load_presharded("x_0").unwrap(), loader.load_all_presharded().unwrap());
        for worker in 0..2 {
            assert_eq!(numbers(&one, worker)[0], worker as f32 * 4.0);
            let all: BTreeMap<String, Tensor> = all.get(worker, PATIENCE).unwrap();
            assert_eq!(all.keys().collect::<Vec<_>>(), ["x_0", "x_1"]);
            assert_eq!(all["x_1"].to_vec::<f32>().unwrap(), [8.0 + worker as f32]);
        }
        loader.load_presharded("y").unwrap();
        for worker in 0..2 {
            let error = session.sync(worker, PATIENCE).unwrap_err();
            let missing = format!("the files hold no tensor y_shard-{}-of-2", worker + 1);
            assert!(error.kind() == ErrorKind::NotFound && error.to_string().contains(&missing), "{error}");
        }
    });
    let single = Session::threads(1, 1).unwrap();
    let loader = single.shard_loader(&[&path], &BTreeMap::new()).unwrap();
    loader.load_all_presharded().unwrap();
    let error = single.sync(0, PATIENCE).unwrap_err();
    assert!(error.to_string().contains("no tensor whose name ends in _shard-1-of-1"), "{error}");
}

#[test]
fn what_fails_on_the_first_worker_is_told_by_all_and_the_next_load_works() {
    let folder = tempfile::tempdir().unwrap();
    let paths = files(&folder);
    let cases = [
        (
            vec![by("no cut", &[2, 2, 6], &[])],
            ErrorKind::Mismatch,
            "function no cut: it has made f32[4, 6]; expected f32[2, 2, 6]",
        ),
        (vec![by("panic cut", &[2, 2, 6], &[])], ErrorKind::Remote, "function panic cut: it panicked: no luck"),
        (vec![by("unheard of", &[2], &[])], ErrorKind::NotFound, "no function \"unheard of\""),
        (vec![by("flat heads", &[3, 8], &[])], ErrorKind::Mismatch, "its shards are f32[3, 8]; expected 2 rows"),
        (vec![], ErrorKind::Mismatch, "its shards are f32[4, 6]; expected 2 rows"),
    ];
    each(2, 1, |session| {
        for (functions, kind, text) in &cases {
            let infos = BTreeMap::from([("rows".to_owned(), ShardInfo::Functions(functions.clone()))]);
            let loader = session.shard_loader(&paths, &infos).unwrap();
            loader.load("rows").unwrap();
            told_by_all(session, *kind, text);
            assert_eq!(numbers(&loader.load("bias").unwrap(), 1), [200.0, 201.0, 202.0]);
        }
        let odd = BTreeMap::from([("bias".to_owned(), ShardInfo::Dimension(0))]);
        session.shard_loader(&paths, &odd).unwrap().load("bias").unwrap();
        told_by_all(session, ErrorKind::Mismatch, "f32[3] cut along dimension 0; expected a multiple of 2 there");
        let loader = loader(session, &folder);
        loader.load("no such").unwrap();
        told_by_all(session, ErrorKind::NotFound, "the files hold no tensor no such");
        let unknown = BTreeMap::from([("other".to_owned(), ShardInfo::Dimension(0))]);
        session.shard_loader(&paths, &unknown).unwrap();
        told_by_all(session, ErrorKind::NotFound, "the shard info names a parameter other");
        let none = session.shard_loader(&[folder.path().join("none")], &BTreeMap::new()).unwrap();
        told_by_all(session, ErrorKind::NotFound, "worker 0: ");
        none.load_all().unwrap();
        told_by_all(session, ErrorKind::NotFound, "none");
        session.shard_loader(&[&paths[0], &paths[0]], &BTreeMap::new()).unwrap();
        told_by_all(session, ErrorKind::InvalidArgument, "both hold a tensor columns");
        let make = session.function("sheave.shard_loader").unwrap();
        session.call(&make, &Args::new().value(vec!["a"]).value("b")).unwrap();
        told_by_all(session, ErrorKind::InvalidArgument, "a string in the shard info; expected functions as");
        assert_eq!(shape(&loader.load("rows").unwrap(), 1), [2, 6], "the next one works");
    });
}
