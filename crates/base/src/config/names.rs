//! Names that begin as those of settings do and are none: misspelt settings, and what others put there.

use std::ffi::OsStr;

use super::form::Switch;
use super::{keys, read, shown};
use crate::{Error, ErrorKind, Result};

/// What the names of all variables of sheave begin with.
const PREFIX: &str = "SHEAVE_";

/// Names that sheave's own tests may use as they like.
const TEST_PREFIX: &str = "SHEAVE_TEST_";

/// The setting that makes unknown names errors.
pub(super) const STRICT: &str = "SHEAVE_STRICT";

/// Returns what is wrong with each name that begins with `SHEAVE_` and is no setting, the nearest known name as its
/// hint.
///
/// Three sorts of names are passed over: those without the prefix, those of sheave's tests, which begin with
/// `SHEAVE_TEST_`, and those that Kubernetes puts into every pod beside a service called `sheave` or `sheave-…`.
#[must_use]
pub fn unknown_names<N: AsRef<OsStr>, V: AsRef<OsStr>>(variables: impl IntoIterator<Item = (N, V)>) -> Vec<Error> {
    let known: Vec<&str> = keys().iter().map(|key| key.name).collect();
    let mut unknown = Vec::new();
    for (name, value) in variables {
        let (name, value) = (name.as_ref().to_string_lossy(), value.as_ref());
        if !name.starts_with(PREFIX) || name.starts_with(TEST_PREFIX) || known.contains(&&*name) {
            continue;
        }
        if is_of_kubernetes(&name, &value.to_string_lossy()) {
            continue;
        }
        let error = Error::new(ErrorKind::InvalidArgument, format!("{} is no setting of sheave", shown(&name)));
        let nearest = known.iter().min_by_key(|known| strsim::osa_distance(known, &name));
        unknown.push(match nearest {
            Some(nearest) => error.hint(format!("did you mean {nearest}?")),
            None => error,
        });
    }
    unknown
}

/// Returns what there is to warn about the names of an environment, as [`unknown_names`] finds it. Pure: a face tells
/// it.
///
/// # Errors
///
/// The first of them if the environment has `SHEAVE_STRICT` set to yes; `InvalidArgument` if that is neither yes nor
/// no.
pub fn check_names<N: AsRef<OsStr>, V: AsRef<OsStr>>(
    variables: impl IntoIterator<Item = (N, V)> + Clone,
) -> Result<Vec<Error>> {
    let mut is_strict = false;
    for (name, value) in variables.clone() {
        if name.as_ref() == STRICT && !value.as_ref().is_empty() {
            is_strict = read::<bool, Switch>(STRICT, value.as_ref())?;
        }
    }
    let mut unknown = unknown_names(variables);
    if is_strict && !unknown.is_empty() { Err(unknown.swap_remove(0)) } else { Ok(unknown) }
}

/// Whether a variable is one by which Kubernetes, as Docker's links did before, tells where a service is:
/// `…_SERVICE_HOST`, `…_SERVICE_PORT`, `…_SERVICE_PORT_HTTP`, `…_PORT=tcp://10.0.0.1:80`, `…_PORT_80_TCP=tcp://…`, and
/// the parts of the last one, `…_PROTO`, `…_PORT` and `…_ADDR`.
fn is_of_kubernetes(name: &str, value: &str) -> bool {
    const PROTOCOLS: [&str; 3] = ["TCP", "UDP", "SCTP"];
    const PARTS: [&str; 3] = ["_PROTO", "_PORT", "_ADDR"];
    let after = |mark: &str| name.rfind(mark).map(|at| &name[at + mark.len()..]);
    if name.ends_with("_SERVICE_HOST")
        || after("_SERVICE_PORT").is_some_and(|rest| matches!(rest.get(..1), None | Some("_")))
    {
        return true;
    }
    let is_address = PROTOCOLS
        .iter()
        .any(|protocol| value.split_once("://").is_some_and(|(scheme, _)| scheme.eq_ignore_ascii_case(protocol)));
    if is_address && (name.ends_with("_PORT") || after("_PORT_").is_some()) {
        return true;
    }
    // `SHEAVE_PORT_80_TCP_ADDR`: a number and a protocol stand between the port and the part.
    let Some(base) = PARTS.iter().find_map(|part| name.strip_suffix(part)) else { return false };
    let Some((base, protocol)) = base.rsplit_once('_') else { return false };
    let Some((base, port)) = base.rsplit_once('_') else { return false };
    PROTOCOLS.contains(&protocol) && port.parse::<u16>().is_ok() && base.ends_with("_PORT")
}

#[cfg(test)]
mod tests {
    use std::ffi::OsString;

    use proptest::prelude::*;

    use super::*;

    fn unknown(name: &str, value: &str) -> Option<Error> {
        unknown_names([(name, value)]).pop()
    }

    #[test]
    fn an_unknown_name_is_answered_with_the_nearest() {
        let nearest = |name: &str| unknown(name, "1").unwrap().advice().unwrap().to_owned();
        assert_eq!(nearest("SHEAVE_SECRETFILE"), "did you mean SHEAVE_SECRET_FILE?");
        assert_eq!(nearest("SHEAVE_LIVENESS_TIMEOUT"), "did you mean SHEAVE_LIVENESS_TIMEOUT_MS?");
        assert_eq!(nearest("SHEAVE_ARENA_SIZE"), "did you mean SHEAVE_ARENA_BYTES?");
    }

    #[test]
    fn known_names_and_those_of_others_pass() {
        assert!(unknown_names(keys().iter().map(|key| (key.name, ""))).is_empty());
        for name in ["PATH", "SHEAVE", "sheave_transport", "SHEAVE_TEST_ROLE"] {
            assert!(unknown(name, "1").is_none(), "{name}");
        }
        assert!(unknown_names(std::iter::empty::<(OsString, OsString)>()).is_empty());
    }

    #[test]
    fn f38_an_unknown_name_is_an_error_only_where_that_is_asked_for() {
        let misspelt = ("SHEAVE_TRANPORT", "tcp");
        for lax in [&[misspelt][..], &[misspelt, ("SHEAVE_STRICT", "0")], &[("SHEAVE_STRICT", ""), misspelt]] {
            let warnings = check_names(lax.iter().copied()).unwrap();
            assert_eq!(warnings.len(), 1);
            let expected = "SHEAVE_TRANPORT is no setting of sheave; hint: did you mean SHEAVE_TRANSPORT?";
            assert_eq!(warnings[0].to_string(), expected);
        }
        let error = check_names([misspelt, ("SHEAVE_STRICT", "1")]).unwrap_err();
        assert!(error.what().starts_with("SHEAVE_TRANPORT"), "{error}");
        assert!(check_names([("SHEAVE_STRICT", "1")]).unwrap().is_empty());
        let error = check_names([("SHEAVE_STRICT", "very")]).unwrap_err();
        assert!(error.what().starts_with("SHEAVE_STRICT is \"very\""), "{error}");
    }

    /// As the kubelet writes them for services called `sheave` and `sheave-root`.
    #[test]
    fn f38_what_kubernetes_puts_there_is_no_setting_and_no_mistake() {
        let injected = [
            ("SHEAVE_SERVICE_HOST", "10.96.0.17"),
            ("SHEAVE_SERVICE_PORT", "7000"),
            ("SHEAVE_SERVICE_PORT_HTTP", "80"),
            ("SHEAVE_PORT", "tcp://10.96.0.17:7000"),
            ("SHEAVE_PORT_7000_TCP", "tcp://10.96.0.17:7000"),
            ("SHEAVE_PORT_7000_TCP_PROTO", "tcp"),
            ("SHEAVE_PORT_7000_TCP_PORT", "7000"),
            ("SHEAVE_PORT_7000_TCP_ADDR", "10.96.0.17"),
            ("SHEAVE_PORT_53_UDP", "udp://10.96.0.17:53"),
            ("SHEAVE_ROOT_SERVICE_HOST", "fd00::17"),
            ("SHEAVE_ROOT_PORT", "tcp://[fd00::17]:7000"),
            ("SHEAVE_ROOT_PORT_7000_SCTP_ADDR", "fd00::17"),
        ];
        assert!(check_names(injected).unwrap().is_empty());
        assert!(check_names(injected.into_iter().chain([("SHEAVE_STRICT", "1")]).collect::<Vec<_>>()).is_ok());
        // What only resembles it is a mistake still.
        for (name, value) in [
            ("SHEAVE_PORT", "7000"),
            ("SHEAVE_ROOT_PORT", "node1:7000"),
            ("SHEAVE_SERVICE", "x"),
            ("SHEAVE_SERVICE_PORTS", "7000"),
            ("SHEAVE_TRANPORT", "tcp://10.96.0.17:7000"),
            ("SHEAVE_BIND_ADDR", "10.96.0.17"),
            ("SHEAVE_PORT_HTTP_TCP_ADDR", "10.96.0.17"),
        ] {
            assert!(unknown(name, value).is_some(), "{name}={value}");
        }
    }

    proptest! {
        #[test]
        #[cfg_attr(miri, ignore = "it takes minutes there")]
        fn no_name_panics(name in "SHEAVE_.*", value in ".*") {
            if let Some(error) = unknown(&name, &value) {
                prop_assert!(!error.to_string().contains(char::is_control));
            }
        }
    }
}
