//! JSON whose numbers are compared to the last digit. Whoever searches for `9007199254740993` must not be shown, and act on, what belongs to
//! `9007199254740992`, which is the same floating point number. Pure.

use std::collections::BTreeMap;

use serde_json::value::RawValue;

/// Deeper documents contain nothing: nobody searches in them.
const DEPTH_MAX: usize = 128;

/// A document, its numbers as they are written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Exact {
    Object(BTreeMap<String, Self>),
    Array(Vec<Self>),
    Number(Decimal),
    Text(String),
    /// `true`, `false`, `null`.
    Word(String),
}

/// A number: its digits without zeros at either end, and where they stand.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Decimal {
    negative: bool,
    digits: String,
    exponent: i64,
}

/// Whether the JSON document `whole` contains the document `part`, as PostgreSQL's `@>` has it: members by name, items in any order,
/// numbers by value. What is no JSON contains nothing.
pub fn json_contains(whole: &str, part: &str) -> bool {
    match (Exact::of(whole), Exact::of(part)) {
        (Some(whole), Some(part)) => whole.contains(&part),
        (_, _) => false,
    }
}

impl Exact {
    /// Of a text.
    pub(super) fn of(text: &str) -> Option<Self> {
        Self::within(text, DEPTH_MAX)
    }

    fn within(text: &str, depth: usize) -> Option<Self> {
        let text = text.trim();
        let inside = |raw: &RawValue| Self::within(raw.get(), depth.checked_sub(1)?);
        Some(match text.bytes().next()? {
            b'{' => {
                let members = serde_json::from_str::<BTreeMap<String, &RawValue>>(text).ok()?;
                let exact = members.into_iter().map(|(name, raw)| Some((name, inside(raw)?)));
                Self::Object(exact.collect::<Option<_>>()?)
            }
            b'[' => {
                let items = serde_json::from_str::<Vec<&RawValue>>(text).ok()?;
                Self::Array(items.into_iter().map(inside).collect::<Option<_>>()?)
            }
            b'"' => Self::Text(serde_json::from_str(text).ok()?),
            b'-' | b'0'..=b'9' => Self::Number(Decimal::of(text)?),
            _ => matches!(text, "true" | "false" | "null").then(|| Self::Word(text.to_owned()))?,
        })
    }

    /// Whether `part` stands in it.
    pub(super) fn contains(&self, part: &Self) -> bool {
        match (self, part) {
            (Self::Object(whole), Self::Object(part)) => {
                part.iter().all(|(name, part)| whole.get(name).is_some_and(|whole| whole.contains(part)))
            }
            (Self::Array(whole), Self::Array(part)) => {
                part.iter().all(|part| whole.iter().any(|whole| whole.contains(part)))
            }
            (whole, part) => whole == part,
        }
    }
}

impl Decimal {
    fn of(text: &str) -> Option<Self> {
        let (negative, text) = text.strip_prefix('-').map_or((false, text), |text| (true, text));
        let (mantissa, exponent) = match text.split_once(['e', 'E']) {
            Some((mantissa, exponent)) => (mantissa, exponent.parse::<i64>().ok()?),
            None => (text, 0),
        };
        let (whole, fraction) = mantissa.split_once('.').unwrap_or((mantissa, ""));
        let all = format!("{whole}{fraction}");
        if !all.bytes().all(|byte| byte.is_ascii_digit()) {
            return None;
        }
        let digits = all.trim_start_matches('0');
        let short = digits.trim_end_matches('0');
        if short.is_empty() {
            return Some(Self::default());
        }
        let (dropped, after_point) = (digits.len() - short.len(), fraction.len());
        let exponent = exponent
            .checked_sub(i64::try_from(after_point).ok()?)?
            .checked_add(i64::try_from(dropped).ok()?)?;
        Some(Self { negative, digits: short.to_owned(), exponent })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_document_contains_what_stands_in_it() {
        let whole = r#"{"order": "A-17", "n": 1, "tags": ["a", {"b": [1, 2]}], "who": {"id": 7, "vip": true, "x": null}}"#;
        for part in [
            "{}",
            r#"{"order":"A-17"}"#,
            r#"{"order":"\u0041-17"}"#,
            r#"{"n":1.0}"#,
            r#"{"tags":["a"]}"#,
            r#"{"tags":[{"b":[2]}, "a"]}"#,
            r#"{"who":{"vip":true}, "n":1}"#,
            r#"{"who":{"x":null}}"#,
        ] {
            assert!(json_contains(whole, part), "{part}");
        }
        for part in [
            r#"{"order":"A-1"}"#,
            r#"{"Order":"A-17"}"#,
            r#"{"n":"1"}"#,
            r#"{"tags":["b"]}"#,
            r#"{"tags":"a"}"#,
            r#"{"who":{"vip":null}}"#,
            r#"{"who":7}"#,
            "{",
            "",
        ] {
            assert!(!json_contains(whole, part), "{part}");
        }
    }

    #[test]
    fn numbers_are_equal_by_value_and_to_the_last_digit() {
        let equal = |one: &str, other: &str| json_contains(&format!("[{one}]"), &format!("[{other}]"));
        for same in [
            &["1", "1.0", "1.00", "10e-1", "0.1E1", "1e0", "100e-2"][..],
            &["0", "-0", "0.0", "0e9", "-0.0E-3"],
            &["9007199254740993", "9007199254740993.0", "9.007199254740993e15"],
            &["-12.50", "-1250e-2", "-1.25e+1"],
        ] {
            for (one, other) in same.iter().flat_map(|one| same.iter().map(move |other| (one, other))) {
                assert!(equal(one, other), "{one} and {other}");
            }
        }
        for (one, other) in [
            ("9007199254740993", "9007199254740992"),
            ("1234567890123456789012345", "1234567890123456789012346"),
            ("0.1000000000000000055511151231257827", "0.1"),
            ("1", "-1"),
            ("1", "10"),
            ("1e400", "1e401"),
        ] {
            assert!(!equal(one, other), "{one} and {other}");
        }
    }

    #[test]
    fn what_is_too_deep_contains_nothing() {
        let nested = |depth: usize| format!("{}{}", "[".repeat(depth), "]".repeat(depth));
        assert!(json_contains(&nested(DEPTH_MAX), &nested(DEPTH_MAX)));
        assert!(!json_contains(&nested(100_000), &nested(2)));
    }
}
