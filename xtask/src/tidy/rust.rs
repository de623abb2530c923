//! Rules on Rust source.
//!
//! They work on tokens, not on syntax: what stands in a macro's body or in `proptest! { … }` is code as much as the
//! rest, while strings and comments can never be mistaken for code.

use proc_macro2::{Delimiter, Group, TokenStream, TokenTree};

use super::attributes;
use super::{FUNCTION_LINES_MAX, Note};

pub(super) fn check(text: &str) -> Vec<Note> {
    let mut notes = ignored_doctests(text);
    match text.parse::<TokenStream>() {
        Ok(tokens) => walk(tokens, &mut notes),
        Err(error) => notes.push((error.span().start().line, format!("this is not Rust: {error}"))),
    }
    notes
}

fn walk(tokens: TokenStream, notes: &mut Vec<Note>) {
    let trees: Vec<TokenTree> = tokens.into_iter().collect();
    for (index, tree) in trees.iter().enumerate() {
        let rest = &trees[index + 1..];
        match tree {
            TokenTree::Ident(word) if word == "fn" => notes.extend(long_function(tree, rest)),
            TokenTree::Ident(word)
                if is_punctuation(rest.first(), '!') && (word == "todo" || word == "unimplemented") =>
            {
                notes.push((line(tree), format!("`{word}!`: finish it or leave it out")));
            }
            TokenTree::Punct(sign) if sign.as_char() == '#' => notes.extend(attributes::check(rest)),
            TokenTree::Group(group) => walk(group.stream(), notes),
            _ => {}
        }
    }
}

/// `rest` is what follows the word `fn`.
fn long_function(start: &TokenTree, rest: &[TokenTree]) -> Option<Note> {
    let name = match rest.first()? {
        TokenTree::Ident(name) => name.to_string(),
        TokenTree::Punct(sign) if sign.as_char() == '$' => format!("${}", rest.get(1)?),
        // The type of a function pointer.
        _ => return None,
    };
    let count = body(rest)?.span_close().end().line + 1 - line(start);
    let message = || format!("`{name}` has {count} lines; a function has at most {FUNCTION_LINES_MAX}");
    (count > FUNCTION_LINES_MAX).then(|| (line(start), message()))
}

/// The first block that is not a constant argument of a generic type, such as the one in `-> Ring<{ SIZE }> {`.
fn body(rest: &[TokenTree]) -> Option<&Group> {
    for (index, tree) in rest.iter().enumerate() {
        match tree {
            TokenTree::Punct(sign) if sign.as_char() == ';' => return None,
            TokenTree::Group(group) if group.delimiter() == Delimiter::Brace => {
                let next = rest.get(index + 1);
                if !(is_punctuation(next, '>') || is_punctuation(next, ',')) {
                    return Some(group);
                }
            }
            _ => {}
        }
    }
    None
}

/// Examples that are never run and say nothing about why. This alone is seen in comments, line by line.
fn ignored_doctests(text: &str) -> Vec<Note> {
    let is_ignored = |line: &str| {
        let comment = line.trim_start().strip_prefix("///").or_else(|| line.trim_start().strip_prefix("//!"));
        let flags = comment.and_then(|comment| comment.trim_start().strip_prefix("```"));
        flags.is_some_and(|flags| flags.split([',', ' ']).any(|flag| flag == "ignore"))
    };
    let message = || "an example that is never run: use `no_run`, `compile_fail` or `text`".to_owned();
    (1..).zip(text.lines()).filter(|(_, line)| is_ignored(line)).map(|(number, _)| (number, message())).collect()
}

pub(super) fn is_punctuation(tree: Option<&TokenTree>, sign: char) -> bool {
    matches!(tree, Some(TokenTree::Punct(found)) if found.as_char() == sign)
}

pub(super) fn line(tree: &TokenTree) -> usize {
    tree.span().start().line
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> usize {
        check(text).len()
    }

    /// A function of `lines` lines with what stands before its first line.
    fn function(before: &str, lines: usize) -> String {
        format!("{before}fn long() {{\n{}}}\n", "    step();\n".repeat(lines - 2))
    }

    #[test]
    fn long_functions_are_found_wherever_they_stand() {
        for before in ["", "pub async unsafe ", "/// Documented.\n#[inline]\n", "impl Ring {} "] {
            assert_eq!(wrong(&function(before, FUNCTION_LINES_MAX)), 0, "{before}");
            assert_eq!(wrong(&function(before, FUNCTION_LINES_MAX + 1)), 1, "{before}");
        }
        let long = function("", FUNCTION_LINES_MAX + 1);
        assert_eq!(wrong(&format!("mod inner {{ impl Ring {{ {long} }} }}")), 1);
        assert_eq!(wrong(&format!("proptest! {{ #[test] {long} }}")), 1);
        assert_eq!(
            wrong(&format!("macro_rules! made {{ ($name:ident) => {{ {} }} }}", long.replace("long", "$name"))),
            1
        );
        assert_eq!(check(&format!("\n\n{long}"))[0], (3, "`long` has 71 lines; a function has at most 70".to_owned()));
    }

    #[test]
    fn a_long_signature_counts_and_its_constants_are_no_body() {
        let wide = format!("fn wide(\n{}) -> Ring<{{ SIZE }}> {{\n}}\n", "    _: u8,\n".repeat(FUNCTION_LINES_MAX - 2));
        assert_eq!(wrong(&wide), 1);
        let other = format!("struct S {{ f: fn(u8) }}\ntrait T {{ fn g();\n{} }}", "const X: u8;\n".repeat(100));
        assert_eq!(wrong(&other), 0);
    }

    #[test]
    fn unfinished_code() {
        assert_eq!(wrong("fn f() { todo!() }"), 1);
        assert_eq!(wrong("fn f() { std::unimplemented!(\"later\") }"), 1);
        assert_eq!(wrong("fn f() { let todo = \"todo!()\"; } // todo!()"), 0);
    }

    #[test]
    fn ignored_examples() {
        assert_eq!(wrong("/// ```rust,ignore\n/// f();\n/// ```\nfn f() {}\n"), 1);
        assert_eq!(wrong("/// ```no_run\n/// ignore();\n/// ```\nfn f() {}\n"), 0);
    }

    #[test]
    fn what_is_not_rust_is_said() {
        assert_eq!(check("fn f() {\n")[0].1.split(':').next(), Some("this is not Rust"));
    }
}
