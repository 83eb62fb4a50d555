//! `Retry-After`: delta-seconds or a date (RFC 9110 §10.2.3). Read strictly: what is neither is ignored, and the ordinary
//! backoff holds.

use std::time::{Duration, SystemTime};

use aftercommit::clock::Timestamp;
use reqwest::header::{DATE, HeaderMap, HeaderValue, RETRY_AFTER};

/// Nobody means more than this; the policy's `max_pause` cuts it further.
const LONGEST: Duration = Duration::from_secs(366 * 86_400);

/// How long the downstream asks to be left alone. A date counts from the response's own `Date`, so that its clock does not
/// matter, else from `wall`. Two headers, a sign, a fraction, junk, or a date that has passed say nothing.
pub(super) fn retry_after(headers: &HeaderMap, wall: Timestamp) -> Option<Duration> {
    let mut values = headers.get_all(RETRY_AFTER).iter();
    let (Some(value), None) = (values.next(), values.next()) else { return None };
    let text = visible(value)?;
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        let seconds = text.parse().unwrap_or(u64::MAX);
        return Some(Duration::from_secs(seconds).min(LONGEST));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    let now = date(headers).unwrap_or_else(|| {
        SystemTime::UNIX_EPOCH + Duration::from_micros(u64::try_from(wall.micros()).unwrap_or(0))
    });
    at.duration_since(now).ok().filter(|delay| !delay.is_zero()).map(|delay| delay.min(LONGEST))
}

fn date(headers: &HeaderMap) -> Option<SystemTime> {
    httpdate::parse_http_date(visible(headers.get(DATE)?)?).ok()
}

fn visible(value: &HeaderValue) -> Option<&str> {
    value.to_str().ok().map(|text| text.trim_matches([' ', '\t']))
}

#[cfg(test)]
mod tests {
    //! Cases RETRY-03 and RETRY-05.

    use super::*;

    /// 2026-11-29T12:00:00Z.
    const WALL: i64 = 1_795_953_600_000_000;

    fn asked(values: &[&str], date: Option<&str>) -> Option<Duration> {
        let mut headers = HeaderMap::new();
        for value in values {
            headers.append(RETRY_AFTER, HeaderValue::from_bytes(value.as_bytes()).unwrap());
        }
        if let Some(date) = date {
            headers.insert(DATE, HeaderValue::from_str(date).unwrap());
        }
        retry_after(&headers, Timestamp::from_micros(WALL))
    }

    #[test]
    fn only_whole_seconds_and_dates_count() {
        for (value, expected) in [
            ("0", Some(0)),
            ("10", Some(10)),
            (" 10 ", Some(10)),
            ("99999999999999999999999", Some(366 * 86_400)),
            ("-5", None),
            ("+5", None),
            ("1.5", None),
            ("", None),
            ("120junk", None),
            ("0x10", None),
            ("１２０", None),
            ("120, 60", None),
            ("Wed, 21 Oct 2015 07:28:00 GMT", None),
            ("Sun, 29 Nov 2026 12:02:00 GMT", Some(120)),
            ("Sunday, 29-Nov-26 12:02:00 GMT", Some(120)),
            ("Sun Nov 29 12:02:00 2026", Some(120)),
            ("Sun, 29 Nov 2026 12:00:00 GMT", None),
            ("Sun, 29 Nov 2026 12:02:00 JST", None),
        ] {
            assert_eq!(asked(&[value], None), expected.map(Duration::from_secs), "{value:?}");
        }
        assert_eq!(asked(&["10", "10"], None), None, "two headers");
        assert_eq!(asked(&[], None), None);
    }

    #[test]
    fn a_date_counts_from_the_answers_own_date() {
        // The downstream's clock is an hour ahead of ours.
        let date = Some("Sun, 29 Nov 2026 13:00:00 GMT");
        assert_eq!(asked(&["Sun, 29 Nov 2026 13:02:00 GMT"], date), Some(Duration::from_secs(120)));
        assert_eq!(asked(&["Sun, 29 Nov 2026 12:59:00 GMT"], date), None);
        assert_eq!(asked(&["Sun, 29 Nov 2026 12:02:00 GMT"], Some("junk")), Some(Duration::from_secs(120)));
    }
}
