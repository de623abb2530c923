//! Rules on Rust's attributes: what is switched off says why.

use proc_macro2::{Delimiter, TokenStream, TokenTree};

use super::Note;
use super::rust::{is_punctuation, line};

/// `rest` is what follows a `#`.
pub(super) fn check(rest: &[TokenTree]) -> Option<Note> {
    let at = usize::from(is_punctuation(rest.first(), '!'));
    match rest.get(at)? {
        TokenTree::Group(group) if group.delimiter() == Delimiter::Bracket => setting(group.stream()),
        _ => None,
    }
}

/// Judges the inside of an attribute; that of a `cfg_attr` is judged by its parts.
fn setting(tokens: TokenStream) -> Option<Note> {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    let (TokenTree::Ident(name), rest) = trees.split_first()? else { return None };
    let arguments = rest.first().and_then(|tree| match tree {
        TokenTree::Group(group) => Some(group.stream()),
        _ => None,
    });
    match (name.to_string().as_str(), arguments) {
        ("ignore", _) if !has_reason(rest) => {
            Some((line(&trees[0]), "`#[ignore]` without a reason: write `#[ignore = \"why\"]`".to_owned()))
        }
        ("allow" | "expect", Some(list)) => {
            let words = list.to_string();
            let is_silent = words.contains("dead_code") && !words.contains("reason");
            is_silent.then(|| (line(&trees[0]), "`dead_code` allowed without a reason: delete the code".to_owned()))
        }
        ("cfg_attr", Some(list)) => parts(list).into_iter().find_map(setting),
        _ => None,
    }
}

/// Whether an `ignore` is followed by `= "a reason"`.
fn has_reason(rest: &[TokenTree]) -> bool {
    is_punctuation(rest.first(), '=')
        && rest.get(1).is_some_and(|reason| !reason.to_string().trim_matches('"').is_empty())
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
        assert_eq!(wrong("#[test] #[ignore = \"needs two machines\"] fn f() {}"), 0);
        assert_eq!(wrong("#[cfg_attr(miri, ignore = \"makes system calls\")] fn f() {}"), 0);
        assert_eq!(wrong("#[serde(ignore)] struct S;"), 0);
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
