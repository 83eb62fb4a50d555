//! Values of the command line: durations, times, JSON given inline, from a file, or from stdin.

use std::{io::Read, time::Duration};

use aftercommit::{
    clock::Timestamp,
    effect::{EffectId, PAYLOAD_LEN_MAX},
    state::State,
    store::BULK_RATE_MAX,
};
use anyhow::Context as _;

use super::{Exit, fail};

/// `250ms`, `30s`, `5m`, `2h`, `7d`.
pub(crate) fn duration(text: &str) -> Result<Duration, String> {
    let wrong = || format!("{text:?} is no duration; write a number and ms, s, m, h or d, such as 30s");
    let digits = text.find(|c: char| !c.is_ascii_digit()).ok_or_else(wrong)?;
    let (number, unit) = text.split_at(digits);
    let number = number.parse::<u64>().map_err(|_not_a_number| wrong())?;
    let seconds = match unit {
        "ms" => return Ok(Duration::from_millis(number)),
        "s" => 1,
        "m" | "min" => 60,
        "h" => 3_600,
        "d" => 86_400,
        _ => return Err(wrong()),
    };
    number.checked_mul(seconds).map(Duration::from_secs).ok_or_else(wrong)
}

/// A time in RFC 3339, any offset.
pub(crate) fn timestamp(text: &str) -> Result<Timestamp, String> {
    let at = time::OffsetDateTime::parse(text, &time::format_description::well_known::Rfc3339)
        .map_err(|problem| format!("{problem}; write RFC 3339, such as 2030-01-31T09:00:00Z"))?;
    i64::try_from(at.unix_timestamp_nanos() / 1000)
        .map(Timestamp::from_micros)
        .map_err(|_too_far| format!("{text:?} is too far away"))
}

/// An effect's number.
pub(crate) fn effect_id(text: &str) -> Result<EffectId, String> {
    let number = text.parse::<i64>().ok().filter(|number| *number > 0);
    number.map(EffectId::new).ok_or_else(|| {
        "write an effect's number, such as 17; `aftercommit effects show KEY` tells it where you have a key".to_owned()
    })
}

/// More rows than anybody reads; what is asked for is held in memory.
const LIMIT_MAX: u32 = 1_000_000;

/// How many rows.
pub(crate) fn limit(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| (1..=LIMIT_MAX).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {LIMIT_MAX}"))
}

/// How many effects a second a bulk does at most: as the API takes it.
pub(crate) fn rate(text: &str) -> Result<u32, String> {
    let number = text.parse::<u32>().ok().filter(|number| (1..=BULK_RATE_MAX).contains(number));
    number.ok_or_else(|| format!("write a number from 1 to {BULK_RATE_MAX}"))
}

/// A state's word; `in-doubt` is taken for `in_doubt`.
pub(crate) fn state(text: &str) -> Result<State, String> {
    text.replace('-', "_").parse().map_err(|problem: aftercommit::state::UnknownState| problem.to_string())
}

/// `name=value`, or a JSON object: what metadata contains.
pub(crate) fn metadata(text: &str) -> Result<String, String> {
    if text.trim_start().starts_with('{') {
        return match serde_json::from_str::<&serde_json::value::RawValue>(text) {
            Ok(object) => Ok(object.get().to_owned()),
            Err(problem) => Err(format!("this is no JSON object: {problem}")),
        };
    }
    match text.split_once('=') {
        Some((name, value)) if !name.is_empty() => Ok(serde_json::json!({ name: value }).to_string()),
        _ => Err(format!("{text:?} names no member; write order=A-17, or a JSON object")),
    }
}

/// `Name: value`.
pub(crate) fn header(text: &str) -> Result<(String, String), String> {
    match text.split_once(':') {
        Some((name, value)) if !name.trim().is_empty() => {
            Ok((name.trim().to_owned(), value.trim().to_owned()))
        }
        _ => Err(format!("{text:?} is no header; write 'Name: value'")),
    }
}

/// A text given as itself, as `@FILE`, or as `-` for stdin. Trailing newlines of a file are kept: what is written is sent.
pub(crate) fn text(flag: &str, given: &str) -> anyhow::Result<String> {
    let limit = u64::try_from(PAYLOAD_LEN_MAX).unwrap_or(u64::MAX).saturating_mul(64);
    let mut text = String::new();
    if given == "-" {
        let read = std::io::stdin().lock().take(limit).read_to_string(&mut text);
        read.with_context(|| format!("{flag} could not be read from stdin"))?;
    } else if let Some(path) = given.strip_prefix('@') {
        let unreadable = |problem: std::io::Error| {
            fail(Exit::Usage, format!("{flag}: the file {path} cannot be read: {problem}"))
        };
        let file = std::fs::File::open(path).map_err(unreadable)?;
        file.take(limit).read_to_string(&mut text).map_err(unreadable)?;
    } else {
        return Ok(given.to_owned());
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn durations_are_a_number_and_a_unit() {
        assert_eq!(duration("250ms"), Ok(Duration::from_millis(250)));
        assert_eq!(duration("30s"), Ok(Duration::from_secs(30)));
        assert_eq!(duration("2h"), Ok(Duration::from_secs(7_200)));
        assert_eq!(duration("7d"), Ok(Duration::from_secs(604_800)));
        for wrong in ["", "30", "s", "1w", "-1s", "1.5s", "99999999999999999999s", "999999999999999999d"] {
            assert!(duration(wrong).is_err(), "{wrong:?}");
        }
    }

    #[test]
    fn numbers_say_what_they_must_be() {
        assert_eq!(effect_id("17"), Ok(EffectId::new(17)));
        for wrong in ["abc", "0", "-1", ""] {
            assert!(effect_id(wrong).unwrap_err().contains("such as 17"), "{wrong}");
        }
        assert_eq!(limit("50"), Ok(50));
        assert!(limit("0").unwrap_err().contains("from 1 to 1000000") && limit("4294967295").is_err());
    }

    #[test]
    fn times_are_rfc_3339_with_any_offset() {
        assert_eq!(timestamp("1970-01-01T01:00:01+01:00"), Ok(Timestamp::from_micros(1_000_000)));
        assert!(timestamp("tomorrow").is_err());
    }

    #[test]
    fn states_take_either_dash() {
        assert_eq!(state("in-doubt"), Ok(State::InDoubt));
        assert!(state("lost").unwrap_err().contains("in_doubt"));
    }

    #[test]
    fn metadata_is_a_name_and_a_value_or_an_object() {
        assert_eq!(metadata("order=A=17").as_deref(), Ok(r#"{"order":"A=17"}"#));
        assert_eq!(
            metadata(r#" {"n": 12345678901234567890123}"#).as_deref(),
            Ok(r#"{"n": 12345678901234567890123}"#)
        );
        assert!(metadata("order").is_err() && metadata("=x").is_err() && metadata("{x").is_err());
    }

    #[test]
    fn headers_are_a_name_and_a_value() {
        assert_eq!(header("X-Order: A:17"), Ok(("X-Order".to_owned(), "A:17".to_owned())));
        assert!(header("nothing").is_err() && header(": x").is_err());
    }
}
