//! JSON for people: only the white space between tokens is ours. No number is read, so none loses a digit; no depth is too deep.

/// Deeper levels are not indented any further.
const INDENT_MAX: usize = 24;
/// Shorter texts stay on the line that they were written on.
const LINE_MAX: usize = 96;

/// `text` with a line for each member, where it is longer than a line and was written on one.
pub(super) fn indented(text: &str) -> String {
    if text.chars().count() <= LINE_MAX || text.contains('\n') {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() * 2);
    let (mut depth, mut in_string, mut escaped) = (0_usize, false, false);
    let mut rest = text.chars().peekable();
    while let Some(c) = rest.next() {
        if in_string {
            out.push(c);
            in_string = escaped || c != '"';
            escaped = !escaped && c == '\\';
            continue;
        }
        match c {
            '"' => {
                out.push(c);
                in_string = true;
            }
            '{' | '[' => {
                while rest.next_if(|c| c.is_ascii_whitespace()).is_some() {}
                out.push(c);
                if let Some(close) = rest.next_if(|c| matches!(c, '}' | ']')) {
                    out.push(close);
                } else {
                    depth += 1;
                    line(&mut out, depth);
                }
            }
            '}' | ']' => {
                depth = depth.saturating_sub(1);
                line(&mut out, depth);
                out.push(c);
            }
            ',' => {
                out.push(c);
                line(&mut out, depth);
            }
            ':' => out.push_str(": "),
            c if c.is_ascii_whitespace() => {}
            c => out.push(c),
        }
    }
    out
}

fn line(out: &mut String, depth: usize) {
    out.push('\n');
    out.extend(std::iter::repeat_n("  ", depth.min(INDENT_MAX)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens alone.
    fn bare(text: &str) -> String {
        let (mut bare, mut in_string, mut escaped) = (String::new(), false, false);
        for c in text.chars() {
            if in_string || !c.is_ascii_whitespace() {
                bare.push(c);
            }
            if in_string {
                in_string = escaped || c != '"';
                escaped = !escaped && c == '\\';
            } else {
                in_string = c == '"';
            }
        }
        bare
    }

    #[test]
    fn nothing_but_white_space_is_changed() {
        let long = format!(
            r#"{{"id":9007199254740993,"big":1234567890123456789012345,"e":1.50e+3,"text":"a \"b\" {{[,:]}} \\","empty":{{}},"none":[],"pad":"{}"}}"#,
            "x".repeat(100)
        );
        let shown = indented(&long);
        assert_eq!(bare(&shown), bare(&long));
        assert!(
            shown.contains("\n  \"id\": 9007199254740993,\n  \"big\": 1234567890123456789012345,"),
            "{shown}"
        );
        assert!(shown.contains("\"empty\": {},\n  \"none\": []"), "{shown}");
    }

    #[test]
    fn short_texts_and_those_with_lines_of_their_own_stay() {
        for text in
            [r#"{"a":1}"#.to_owned(), format!("{{\n\"a\":{}}}", "1".repeat(200)), "no json".to_owned()]
        {
            assert_eq!(indented(&text), text);
        }
    }

    #[test]
    fn depth_costs_no_more_than_its_brackets() {
        let deep = "[".repeat(100_000) + &"]".repeat(100_000);
        assert!(indented(&deep).len() < 100 * deep.len());
    }
}
