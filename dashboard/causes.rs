//! What errors have in common: numbers, identifiers and keys taken out of them. Pure.
//!
//! The pages and the API group failures by it.

/// Stands where something was taken out.
pub(crate) const GAP: &str = "…";
/// A cause is no longer than this.
const LEN_MAX: usize = 240;

/// The cause that `error` is one of many of. Status codes stay: they tell causes apart.
pub(crate) fn cause(error: &str) -> String {
    let mut out = String::with_capacity(error.len());
    let mut rest = error;
    while let Some(c) = rest.chars().next() {
        if !is_inside(c) {
            // White space of any kind and length is one space.
            if !(c.is_whitespace() && out.ends_with(' ')) {
                out.push(if c.is_whitespace() { ' ' } else { c });
            }
            rest = &rest[c.len_utf8()..];
            continue;
        }
        let end = rest.find(|c| !is_inside(c)).unwrap_or(rest.len());
        // What ends a sentence or a clause is no part of a word.
        let end = rest[..end].trim_end_matches(['.', ':', '/']).len().max(1);
        let (word, after) = rest.split_at(end);
        out.push_str(if is_one_of_many(word) { GAP } else { word });
        rest = after;
    }
    match out.char_indices().nth(LEN_MAX) {
        Some((end, _)) => format!("{}{GAP}", &out[..end]),
        None => out.trim().to_owned(),
    }
}

/// The longest part of a cause that every error of it holds: what a search can look for.
pub(crate) fn fragment(cause: &str) -> Option<&str> {
    cause.split(GAP).map(str::trim).filter(|part| part.chars().count() >= 3).max_by_key(|part| part.len())
}

fn is_inside(c: char) -> bool {
    c.is_alphanumeric() || matches!(c, '_' | '-' | '.' | ':' | '/')
}

/// It has a digit and is no status: a number, a UUID, a key, an address, an identifier.
fn is_one_of_many(word: &str) -> bool {
    let digits = word.chars().any(|c| c.is_ascii_digit());
    let status = word.len() == 3 && word.parse::<u16>().is_ok_and(|number| (100..600).contains(&number));
    digits && !status
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_that_differ_in_numbers_and_names_have_one_cause() {
        for (error, wanted) in [
            ("503 with Retry-After 60", "503 with Retry-After …"),
            ("402: card card_1A2b3C declined for order-A-17", "402: card … declined for …"),
            ("no row 018f3c2e-7b1a-7c33-9a51-0242ac120002 in eu", "no row … in eu"),
            ("connect to 10.0.0.12:8443 failed", "connect to … failed"),
            ("timed  out\nafter 5s", "timed out after …"),
        ] {
            assert_eq!(cause(error), wanted, "{error}");
        }
        assert_eq!(cause("card a-1 declined"), cause("card b-22 declined"));
        assert_ne!(cause("502 from the bank"), cause("503 from the bank"));
    }

    #[test]
    fn a_cause_can_be_searched_for() {
        assert_eq!(fragment(&cause("402: card card_1A declined for order-17")), Some("declined for"));
        assert_eq!(fragment("…"), None);
        assert!(cause(&"ü".repeat(500)).chars().count() <= LEN_MAX + 1);
    }
}
