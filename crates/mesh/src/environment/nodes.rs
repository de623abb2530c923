//! Slurm's short forms: lists of hosts such as `node[001-003,007],gpu5`, and counts per host such as `2(x3),1`.

use sheave_base::config::Endpoint;
use sheave_base::limits;

/// The hosts of a list, in its order. `None` if it is not such a list, or one of more hosts than a node can have links.
///
/// What is written in brackets is a list of numbers and ranges; a number keeps the zeros that the first number of its
/// range begins with. A name may have several brackets; the last one counts fastest.
pub(super) fn expand(list: &str) -> Option<Vec<String>> {
    let mut hosts = Vec::new();
    for item in split(list)? {
        let (mut names, mut rest) = (vec![String::new()], item);
        while let Some((before, after)) = rest.split_once('[') {
            let (inside, after) = after.split_once(']')?;
            let numbers = numbers(inside)?;
            if names.len().saturating_mul(numbers.len()) > limits::LINKS_MAX {
                return None;
            }
            names = names
                .iter()
                .flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}")))
                .collect();
            rest = after;
        }
        hosts.extend(names.into_iter().map(|name| name + rest));
        if hosts.len() > limits::LINKS_MAX || !hosts.iter().all(|host| Endpoint::is_host(host)) {
            return None;
        }
    }
    Some(hosts)
}

/// The items of a list; the commas within brackets do not part them.
fn split(list: &str) -> Option<Vec<&str>> {
    let (mut items, mut start, mut is_inside) = (Vec::new(), 0, false);
    for (position, sign) in list.char_indices() {
        match sign {
            '[' | ']' if is_inside == (sign == '[') => return None,
            '[' | ']' => is_inside = !is_inside,
            ',' if !is_inside => {
                items.push(&list[start..position]);
                start = position + 1;
            }
            _ => {}
        }
    }
    items.push(&list[start..]);
    (!is_inside).then_some(items)
}

fn numbers(inside: &str) -> Option<Vec<String>> {
    let mut all = Vec::new();
    for part in inside.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let is_number = |text: &str| text.bytes().all(|byte| byte.is_ascii_digit());
        if !is_number(first) || !is_number(last) {
            return None;
        }
        let (from, to) = (first.parse::<u64>().ok()?, last.parse::<u64>().ok()?);
        if to < from || to - from >= limits::LINKS_MAX as u64 || first.len() > limits::HANDSHAKE_TEXT_BYTES_MAX {
            return None;
        }
        let width = first.len();
        all.extend((from..=to).map(|number| format!("{number:0width$}")));
        if all.len() > limits::LINKS_MAX {
            return None;
        }
    }
    Some(all)
}

/// The count of the host with this index. `None` if `list` is not a list of counts, `Some(None)` if it has no such
/// host.
pub(super) fn count_at(list: &str, index: u32) -> Option<Option<u32>> {
    let (mut hosts, mut found) = (0_u64, None);
    for part in list.split(',') {
        let (count, repeat) = match part.split_once("(x") {
            Some((count, repeat)) => (count, repeat.strip_suffix(')')?.parse::<u32>().ok()?),
            None => (part, 1),
        };
        let count = count.parse::<u32>().ok().filter(|count| *count > 0)?;
        hosts += u64::from(repeat);
        if u64::from(index) < hosts && found.is_none() {
            found = Some(count);
        }
    }
    Some(found)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn expanded(list: &str) -> String {
        expand(list).map_or_else(|| "none".to_owned(), |hosts| hosts.join(" "))
    }

    #[test]
    fn lists_of_hosts() {
        let cases = [
            ("node[001-003,007],gpu5", "node001 node002 node003 node007 gpu5"),
            ("node1", "node1"),
            ("node[9-11]", "node9 node10 node11"),
            ("n[08-10].rack2", "n08.rack2 n09.rack2 n10.rack2"),
            ("r[1-2]n[1,3]", "r1n1 r1n3 r2n1 r2n3"),
            ("a,b[2],c", "a b2 c"),
            ("[10-11]", "10 11"),
        ];
        for (list, hosts) in cases {
            assert_eq!(expanded(list), hosts, "{list}");
        }
    }

    #[test]
    fn what_is_no_list_of_hosts() {
        for list in
            ["", ",", "a,", "n[", "n]", "n[1", "n[]", "n[1-]", "n[-1]", "n[3-1]", "n[a]", "n[[1]]", "n[+1]", "a b"]
        {
            assert_eq!(expanded(list), "none", "{list}");
        }
    }

    #[test]
    fn no_list_takes_more_memory_than_a_mesh_of_hosts() {
        assert_eq!(expand("n[1-16384]").unwrap().len(), limits::LINKS_MAX);
        for list in
            ["n[0-16384]", "n[0-18446744073709551615]", "a[1-9999]b[1-9999]", "n[1-16384],m", "n[1-9999,1-9999]"]
        {
            assert_eq!(expanded(list), "none", "{list}");
        }
    }

    #[test]
    fn counts_per_host() {
        let counts = |list| [0, 1, 3, 4].map(|index| count_at(list, index));
        assert_eq!(counts("2(x3),1"), [Some(Some(2)), Some(Some(2)), Some(Some(1)), Some(None)]);
        assert_eq!(count_at("4294967295(x4294967295),7", u32::MAX), Some(Some(7)));
        for list in ["", "x", "2(x3", "2(3)", "2(x)", "1,,2", "0", "-1", "4294967296"] {
            assert_eq!(count_at(list, 0), None, "{list}");
        }
    }
}
