//! Rust text without its comments and literals, so that a rule does not stumble over a word in a string.

/// The same text, line for line and column for column, with spaces in place of comments (doc comments too) and of what
/// stands in string and character literals.
pub(super) fn code_only(text: &str) -> String {
    let chars: Vec<char> = text.chars().collect();
    let mut out = String::with_capacity(text.len());
    let mut at = 0;
    while at < chars.len() {
        let end = match chars[at] {
            '/' if chars.get(at + 1) == Some(&'/') => find(&chars, at, '\n'),
            '/' if chars.get(at + 1) == Some(&'*') => block_comment(&chars, at),
            '"' => string(&chars, at),
            'r' | 'b' | 'c' if !follows_word(&chars, at) => raw_string(&chars, at).unwrap_or(at),
            '\'' => character(&chars, at),
            _ => at,
        };
        if end == at {
            out.push(chars[at]);
            at += 1;
        } else {
            out.extend(
                chars[at..end]
                    .iter()
                    .map(|&c| if c == '\n' { '\n' } else { ' ' }),
            );
            at = end;
        }
    }
    out
}

fn find(chars: &[char], from: usize, what: char) -> usize {
    chars[from..]
        .iter()
        .position(|&c| c == what)
        .map_or(chars.len(), |index| from + index)
}

fn follows_word(chars: &[char], at: usize) -> bool {
    at > 0 && (chars[at - 1].is_alphanumeric() || chars[at - 1] == '_')
}

/// Block comments nest in Rust.
fn block_comment(chars: &[char], from: usize) -> usize {
    let mut depth = 0;
    let mut at = from;
    while at < chars.len() {
        match (chars[at], chars.get(at + 1)) {
            ('/', Some('*')) => {
                depth += 1;
                at += 2;
            }
            ('*', Some('/')) => {
                depth -= 1;
                at += 2;
                if depth == 0 {
                    return at;
                }
            }
            _ => at += 1,
        }
    }
    chars.len()
}

fn string(chars: &[char], from: usize) -> usize {
    let mut at = from + 1;
    while at < chars.len() {
        match chars[at] {
            '\\' => at += 2,
            '"' => return at + 1,
            _ => at += 1,
        }
    }
    chars.len()
}

/// The end of `r"…"`, `r#"…"#`, `br"…"` and the like, if one begins here.
fn raw_string(chars: &[char], from: usize) -> Option<usize> {
    let mut at = from;
    while matches!(chars.get(at), Some('b' | 'c')) {
        at += 1;
    }
    if chars.get(at) != Some(&'r') {
        return None;
    }
    at += 1;
    let hashes = chars[at..].iter().take_while(|&&c| c == '#').count();
    at += hashes;
    if chars.get(at) != Some(&'"') {
        return None;
    }
    at += 1;
    while at < chars.len() {
        if chars[at] == '"'
            && chars[at + 1..]
                .iter()
                .take(hashes)
                .filter(|&&c| c == '#')
                .count()
                == hashes
        {
            return Some(at + 1 + hashes);
        }
        at += 1;
    }
    Some(chars.len())
}

/// The end of a character literal; `from` itself where the quote begins a lifetime.
fn character(chars: &[char], from: usize) -> usize {
    match chars.get(from + 1) {
        Some('\\') => find(chars, from + 3, '\'')
            .saturating_add(1)
            .min(chars.len()),
        Some(_) if chars.get(from + 2) == Some(&'\'') => from + 3,
        _ => from,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(text: &str, expected: &str) {
        assert_eq!(code_only(text), expected, "{text}");
    }

    #[test]
    fn comments() {
        check("a // b\nc", "a     \nc");
        check("a /* b /* c */ d */ e", "a                   e");
        check("/// unsafe\nfn f() {}", "          \nfn f() {}");
    }

    #[test]
    fn strings() {
        check(r#"f("a \" b") g"#, "f(        ) g");
        check(r###"r#"a " b"# c"###, "           c");
        check(r#"br"a\" c"#, "       c");
        check("\"a\nb\" c", "  \n   c");
        check("for r in x {}", "for r in x {}");
    }

    #[test]
    fn characters_and_lifetimes() {
        check("'\"' a", "    a");
        check(r"'\'' a", "     a");
        check("&'a str, 'b'", "&'a str,    ");
        check(r"'\u{1F600}' a", "            a");
    }
}
