//! Headers: what an operator adds, and what is nobody's to set.

use std::collections::BTreeMap;

use crate::config::{ConfigError, Section, is_header_name};

/// How the headers begin that carry an event's attributes.
pub(super) const ATTRIBUTE: &str = "ce-";

/// The headers that an operator adds to every request, by lower-case name.
pub(crate) fn headers(section: &Section<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
    let given: BTreeMap<String, String> = section.get("headers")?.unwrap_or_default();
    let mut headers = BTreeMap::new();
    for (name, value) in given {
        if !is_header_name(&name) || value.bytes().any(|byte| !(b' '..=b'~').contains(&byte)) {
            return Err(section.error(
                "headers",
                format!("{name:?} must have a header's name and a value of printable ASCII"),
            ));
        }
        if is_ours(&name.to_ascii_lowercase()) {
            return Err(section.error(
                "headers",
                format!("{name} is not yours to set: credentials stand in auth, the rest is the protocol's"),
            ));
        }
        if headers.insert(name.to_ascii_lowercase(), value).is_some() {
            return Err(section.error("headers", format!("{name} stands there twice")));
        }
    }
    Ok(headers)
}

/// Names that the protocol, the credentials or this kind own, in lower case.
pub(crate) fn is_ours(name: &str) -> bool {
    name.starts_with("proxy-")
        || matches!(
            name,
            "authorization"
                | "host"
                | "content-length"
                | "content-type"
                | "content-encoding"
                | "transfer-encoding"
                | "accept-encoding"
                | "connection"
                | "keep-alive"
                | "te"
                | "trailer"
                | "upgrade"
                | "expect"
                | "traceparent"
                | "tracestate"
        )
}
