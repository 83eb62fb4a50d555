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
