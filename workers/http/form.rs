//! Stripe's form encoding, version 1: `a[b]=…`, arrays `a[0]=…`, payload order, numbers as written, null omitted.
//!
//! Part of the pinned request: a change is a new renderer version. Held by the vectors in `tests/vectors/form.json`.

use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::value::RawValue;

use crate::json::{self, Shape};

/// All but the unreserved characters of RFC 3986.
pub(super) const RESERVED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~');

/// `text`, percent-encoded.
pub(super) fn encoded(text: &str) -> String {
    utf8_percent_encode(text, RESERVED).to_string()
}

/// The pairs of `payload`, an object: encoded name, and the value as it is.
pub(super) fn pairs(payload: &RawValue) -> Result<Vec<(String, String)>, String> {
    let Shape::Object(members) = json::shape(payload)? else {
        return Err("must be an object to be sent as a form".to_owned());
    };
    let mut pairs = Vec::new();
    for (name, value) in members {
        flatten(encoded(&name), value, &mut pairs)?;
    }
    Ok(pairs)
}

/// Recurses as deep as the payload nests, which the caller has bounded.
fn flatten(name: String, value: &RawValue, pairs: &mut Vec<(String, String)>) -> Result<(), String> {
    match json::shape(value)? {
        Shape::Null => {}
        Shape::Plain(text) => pairs.push((name, text.to_owned())),
        Shape::Text(text) => pairs.push((name, text)),
        Shape::Array(items) => {
            for (index, item) in items.into_iter().enumerate() {
                flatten(format!("{name}[{index}]"), item, pairs)?;
            }
        }
        Shape::Object(members) => {
            for (inner, value) in members {
                flatten(format!("{name}[{}]", encoded(&inner)), value, pairs)?;
            }
        }
    }
    Ok(())
}

/// The name of the pair at a JSON pointer.
pub(super) fn name_at(pointer: &str) -> String {
    let mut steps = json::steps(pointer);
    let mut name = steps.next().map(|step| encoded(&step)).unwrap_or_default();
    for step in steps {
        name = format!("{name}[{}]", encoded(&step));
    }
    name
}

/// `name=value&…`.
pub(super) fn join(pairs: &[(String, String)]) -> String {
    pairs.iter().map(|(name, value)| format!("{name}={}", encoded(value))).collect::<Vec<_>>().join("&")
}
