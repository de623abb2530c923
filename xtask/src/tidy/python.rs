//! Rules on Python source, read without a Python: by indentation, strings and brackets.

use super::{FUNCTION_LINES_MAX, Note};

pub(super) fn check(text: &str) -> Vec<Note> {
    let lines = statements(text);
    let mut notes: Vec<Note> = (0..lines.len()).filter_map(|index| long_function(&lines, index)).collect();
    notes.extend(lines.iter().filter_map(skipped_without_reason));
    notes
}

/// The first line of a statement, where it begins and where it ends.
#[derive(Debug)]
struct Statement<'a> {
    text: &'a str,
    indent: usize,
    first: usize,
    last: usize,
}

/// What a line leaves open for the next.
#[derive(Default)]
struct Scanner {
    /// Brackets that are open.
    depth: usize,
    /// The quotes of the string that is open: one for a string that ends with its line, three for one that need not.
    quotes: Option<&'static str>,
    /// The last line ended with a backslash.
    continued: bool,
}

impl Scanner {
    fn is_between_statements(&self) -> bool {
        self.depth == 0 && self.quotes.is_none() && !self.continued
    }

    fn read(&mut self, line: &str) {
        self.continued = false;
        let mut rest = line;
        while let Some(letter) = rest.chars().next() {
            let mut length = letter.len_utf8();
            match (self.quotes, letter) {
                (_, '\\') => {
                    length += rest[length..].chars().next().map_or(0, char::len_utf8);
                    self.continued = rest.len() == 1;
                }
                (Some(quotes), _) if rest.starts_with(quotes) => {
                    length = quotes.len();
                    self.quotes = None;
                }
                (Some(_), _) => {}
                (None, '#') => break,
                (None, '"' | '\'') => {
                    let quotes = ["\"\"\"", "'''", "\"", "'"].into_iter().find(|quotes| rest.starts_with(quotes));
                    length = quotes.map_or(length, str::len);
                    self.quotes = quotes;
                }
                (None, '(' | '[' | '{') => self.depth += 1,
                (None, ')' | ']' | '}') => self.depth = self.depth.saturating_sub(1),
                (None, _) => {}
            }
            rest = &rest[length..];
        }
        if self.quotes.is_some_and(|quotes| quotes.len() == 1) && !self.continued {
            self.quotes = None;
        }
    }
}

/// The statements of a file in order, without empty lines and comments.
fn statements(text: &str) -> Vec<Statement<'_>> {
    let mut statements: Vec<Statement> = Vec::new();
    let mut scanner = Scanner::default();
    for (number, line) in (1..).zip(text.lines()) {
        let code = line.trim_start();
        if scanner.is_between_statements() {
            if code.is_empty() || code.starts_with('#') {
                continue;
            }
            statements.push(Statement { text: code, indent: line.len() - code.len(), first: number, last: number });
        } else if let Some(open) = statements.last_mut() {
            open.last = number;
        }
        scanner.read(line);
    }
    statements
}

/// From `def` to the last statement that is indented deeper.
fn long_function(statements: &[Statement], index: usize) -> Option<Note> {
    let head = &statements[index];
    let signature = head.text.strip_prefix("async ").unwrap_or(head.text).strip_prefix("def ")?;
    let body = statements[index + 1..].iter().take_while(|statement| statement.indent > head.indent);
    let count = body.last().unwrap_or(head).last + 1 - head.first;
    let name = signature.split('(').next().unwrap_or(signature);
    let message = || format!("`{name}` has {count} lines; a function has at most {FUNCTION_LINES_MAX}");
    (count > FUNCTION_LINES_MAX).then(|| (head.first, message()))
}

/// A mark that keeps a test from running or from failing and does not say why.
fn skipped_without_reason(statement: &Statement) -> Option<Note> {
    let mark = statement.text.strip_prefix("@pytest.mark.")?;
    let is_bare = ["skip", "skip()", "xfail", "xfail()"].contains(&mark.split('#').next()?.trim_end());
    is_bare.then(|| (statement.first, "a skipped test without a reason: write `reason=\"why\"`".to_owned()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wrong(text: &str) -> usize {
        check(text).len()
    }

    #[test]
    fn long_functions_are_found() {
        for head in ["def f():", "async def f():", "class A:\n    def f(self):"] {
            let body = "        step()\n".repeat(FUNCTION_LINES_MAX - 1);
            assert_eq!(wrong(&format!("{head}\n{body}")), 0, "{head}");
            assert_eq!(wrong(&format!("{head}\n{body}        step()\n")), 1, "{head}");
        }
    }

    #[test]
    fn strings_and_brackets_do_not_end_a_function() {
        let words = "at the margin, def of nothing(\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(wrong(&format!("def f():\n    return '''\n{words}'''\n")), 1);
        let items = "1,\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(wrong(&format!("def f():\n    return [\n{items}]\n")), 1);
    }

    #[test]
    fn what_follows_a_function_is_not_its_body() {
        let more = "step()\n\n# a comment with a ' and a (\n".repeat(FUNCTION_LINES_MAX);
        assert_eq!(wrong(&format!("def f(a='(', b=\"'\"):\n    return \"it's\\\"\"\n\n{more}")), 0);
    }

    #[test]
    fn a_backslash_continues_a_statement_only_at_the_end_of_its_line() {
        let joined = format!("def f():\n    return 1 {}\n", "+ \\\n1".repeat(FUNCTION_LINES_MAX));
        assert_eq!(wrong(&joined), 1);
        let escaped = format!("def f():\n    return '\\n'\n{}", "step('\\n')\n".repeat(FUNCTION_LINES_MAX));
        assert_eq!(wrong(&escaped), 0);
    }

    #[test]
    fn skipped_tests_need_a_reason() {
        assert_eq!(wrong("@pytest.mark.skip\ndef test(): pass\n"), 1);
        assert_eq!(wrong("@pytest.mark.xfail()  # why?\ndef test(): pass\n"), 1);
        assert_eq!(wrong("@pytest.mark.skip(reason=\"no torch\")\ndef test(): pass\n"), 0);
        assert_eq!(wrong("text = '''\n@pytest.mark.skip\n'''\n"), 0);
    }
}
