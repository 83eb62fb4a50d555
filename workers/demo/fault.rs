//! Failures on request: what a payload may ask a sink for.

use serde_json::Value;

/// How a call fails, on request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Fault {
    None,
    /// Applied; the answer comes too late.
    Timeout,
    /// Not applied; a server error.
    ServerError,
    /// Not applied; too many requests.
    TooMany,
    /// Refused for good.
    Decline,
    /// Applied; the connection breaks.
    Reset,
}

/// What a body may ask for.
pub(super) const FAIL_WORDS: &str = "timeout, 500, 429, decline or reset";

/// The failure that a body asks for; the word, where it is none.
pub(super) fn fault_of(body: &[u8]) -> Result<Fault, String> {
    let asked = match serde_json::from_slice::<Value>(body) {
        Ok(json) => json
            .get("fail")
            .filter(|fail| !fail.is_null())
            .map(|fail| fail.as_str().map_or_else(|| fail.to_string(), str::to_owned)),
        Err(_not_json) => url::form_urlencoded::parse(body)
            .find(|(name, _)| name == "fail")
            .map(|(_, value)| value.into_owned()),
    };
    match asked.as_deref() {
        Some("timeout") => Ok(Fault::Timeout),
        Some("500") => Ok(Fault::ServerError),
        Some("429") => Ok(Fault::TooMany),
        Some("decline") => Ok(Fault::Decline),
        Some("reset") => Ok(Fault::Reset),
        Some(unknown) => Err(unknown.to_owned()),
        None => Ok(Fault::None),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_is_asked_for_in_json_or_in_a_form() {
        assert_eq!(fault_of(b"amount=1&fail=decline"), Ok(Fault::Decline));
        assert_eq!(fault_of(br#"{"fail":500}"#), Ok(Fault::ServerError));
        assert_eq!(fault_of(br#"{"fail":null}"#), Ok(Fault::None));
        assert_eq!(fault_of(br#"{"fail":"tiemout"}"#), Err("tiemout".to_owned()));
    }
}
