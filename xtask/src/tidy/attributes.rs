//! Rules on Rust's attributes: what is switched off says why.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Note;
use super::rust::{is_punctuation, line};
use crate::suites::Suite;

/// `rest` is what follows a `#`.
pub(super) fn check(rest: &[TokenTree]) -> Option<Note> {
    let at = usize::from(is_punctuation(rest.first(), '!'));
    match rest.get(at)? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => setting(group.stream(), false),
        _ => None,
    }
}

/// Judges the inside of an attribute; that of a `cfg_attr` is judged by its parts, which hold under a condition only.
fn setting(tokens: TokenStream, is_conditional: bool) -> Option<Note> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let (TokenTree::Ident(name), rest) = trees.split_first()? else { return None };
    let arguments = rest.first().and_then(|tree| match tree {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    });
    match (name.to_string().as_str(), arguments) {
        ("ignore", _) => unfit(rest, is_conditional).map(|message| (line(&trees[0]), message)),
        ("allow" | "expect", Some(list)) => {
            let words = list.to_string();
            let is_silent = words.contains("dead_code") && !words.contains("reason");
            is_silent.then(|| (line(&trees[0]), "`dead_code` allowed without a reason: delete the code".to_owned()))
        }
        ("cfg_attr", Some(list)) => parts(list).into_iter().find_map(|part| setting(part, true)),
        _ => None,
    }
}

/// What is wrong with the reason that follows an `ignore`. A test that is ignored everywhere belongs to a suite, for
/// otherwise it would run nowhere; one that is ignored under a condition runs where that does not hold.
fn unfit(rest: &[TokenTree], is_conditional: bool) -> Option<String> {
    let reason =
        rest.get(1).filter(|_| is_punctuation(rest.first(), '=')).map(TokenTree::to_string).unwrap_or_default();
    let reason = reason.trim_matches('"');
    let names = Suite::ALL.map(Suite::name).join(", ");
    match reason {
        "" => Some("`#[ignore]` without a reason: write `#[ignore = \"why\"]`".to_owned()),
        _ if is_conditional || Suite::of(reason).is_some() => None,
        _ => Some(format!("an ignored test of no suite runs nowhere: write `NAME suite: why`, with one of {names}")),
    }
}

/// The arguments of a list, cut at its commas.
fn parts(list: TokenStream) -> Vec<TokenStream> {
    let trees: Vec<TokenTree> = list.into_iter().collect();
    trees.split(|tree| is_punctuation(Some(tree), ',')).map(|part| part.iter().cloned().collect()).collect()
}

#[cfg(test)]
mod tests {
    use super::super::rust;

    fn wrong(text: &str) -> usize {
        rust::check(text).len()
    }

    #[test]
    fn ignored_tests_need_a_reason() {
        assert_eq!(wrong("#[test] #[ignore] fn f() {}"), 1);
        assert_eq!(wrong("#[test] #[ignore = \"\"] fn f() {}"), 1);
        assert_eq!(wrong("#[cfg_attr(miri, ignore)] fn f() {}"), 1);
        assert_eq!(wrong("#[test] #[ignore = \"soak suite: takes minutes\"] fn f() {}"), 0);
        assert_eq!(wrong("many! { $(#[test] #[ignore = \"chaos suite: seeds\"] fn $name() {})* }"), 0);
        assert_eq!(wrong("#[cfg_attr(miri, ignore = \"makes system calls\")] fn f() {}"), 0);
        assert_eq!(wrong("#[serde(ignore)] struct S;"), 0);
    }

    #[test]
    fn ignored_tests_belong_to_a_suite() {
        assert_eq!(wrong("#[test] #[ignore = \"takes a minute\"] fn f() {}"), 1);
        assert_eq!(wrong("many! { $(#[test] #[ignore = \"takes a minute\"] fn $name() {})* }"), 1);
        assert_eq!(wrong("#[test] #[ignore = \"night suite: takes a minute\"] fn f() {}"), 1);
    }

    #[test]
    fn dead_code_needs_a_reason() {
        assert_eq!(wrong("#![allow(dead_code)]"), 1);
        assert_eq!(wrong("#[expect(unused, dead_code)] fn f() {}"), 1);
        assert_eq!(wrong("#[cfg_attr(loom, allow(dead_code))] fn f() {}"), 1);
        assert_eq!(wrong("#[cfg_attr(loom, allow(dead_code, reason = \"loom has no futex\"))] fn f() {}"), 0);
        assert_eq!(wrong("#[allow(clippy::print_stdout)] fn f() {}"), 0);
    }
}
