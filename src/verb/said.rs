//! What is written down of an effect of which a person said that it was not applied, and how that is known again. A downstream's
//! own words never stand at the beginning of an error, so that none of them reads as a person's.

/// How it begins; then come who said it, and why.
pub const SAID_NOT_APPLIED: &str = "resolved as not applied by ";
/// As it began in earlier databases.
const EARLIER: [&str; 2] = ["resolve not-applied by ", "reissue not-applied by "];

/// What stands as the last error of an effect of which `who` said that it was not applied.
pub(crate) fn not_applied(who: &str, reason: Option<&str>) -> String {
    let reason = reason.map_or_else(String::new, |reason| format!(": {reason}"));
    format!("{SAID_NOT_APPLIED}{who}{reason}")
}

/// Whether the last error of a failed effect is what a person said of it, and not what an attempt showed.
pub fn is_said_not_applied(error: &str) -> bool {
    [SAID_NOT_APPLIED, EARLIER[0], EARLIER[1]].iter().any(|beginning| error.starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_person_said_is_known_again_and_nothing_else_is() {
        assert!(is_said_not_applied(&not_applied("ann", Some("no such charge"))));
        assert!(is_said_not_applied(&not_applied("", None)));
        assert!(is_said_not_applied("resolve not-applied by ann: not there"));
        for other in ["402: resolved as not applied by ann", "card declined", ""] {
            assert!(!is_said_not_applied(other), "{other}");
        }
    }
}
