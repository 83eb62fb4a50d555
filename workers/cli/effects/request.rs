//! What one effect sends: its target, and whether and how much it carries; the content itself only where it is asked for.

use std::fmt::Write as _;

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    store::{Content, Database, Intent, Look},
};
use base64::Engine as _;
use serde_json::{Value, json};

use crate::cli::{
    Exit,
    clean::{clean, clean_lines},
    data,
    exit::fail,
    output::plural,
    times::utc_and_words,
};

/// Reads it. `None` where this login may only view and nobody asked for the content.
///
/// # Errors
///
/// When the content was asked for and may not be read, or the database fails.
pub(super) async fn read(store: &dyn Database, id: EffectId, look: Look) -> anyhow::Result<Option<Intent>> {
    let content = look == Look::Whole;
    match store.intent(id, look).await {
        Ok(intent) => Ok(intent),
        Err(problem) if problem.is_forbidden() && content => Err(fail(
            Exit::Failure,
            "this login may not read what effects carry: ask somebody whose login has the role aftercommit_operator",
        )),
        Err(problem) if problem.is_forbidden() => Ok(None),
        Err(problem) => Err(problem.into()),
    }
}

/// A target as far as it may be shown unasked. A path, or a name (a recipient, an endpoint, a subject, a stream, a routing key)
/// says whose effect this is. What follows the host of a whole URL may be as secret as a password (webhook URLs are), and so may a
/// query: they belong to the content, and so does what looks like neither.
fn shown(target: &str, look: Look) -> String {
    if look == Look::Whole {
        return target.to_owned();
    }
    if let Some(url) = url::Url::parse(target).ok().filter(url::Url::has_host) {
        return format!("{}/…", url.origin().ascii_serialization());
    }
    let (path, query) = target.split_once('?').map_or((target, ""), |(path, _)| (path, "?…"));
    let is_plain = |text: &str| !text.chars().any(|c| c.is_whitespace() || "?#\\".contains(c));
    let is_name =
        || is_plain(target) && !target.contains("://") && !(target.contains('@') && target.contains(':'));
    if (path.starts_with('/') && is_plain(path)) || is_name() {
        return format!("{path}{query}");
    }
    format!(
        "{} (--payload shows them)",
        plural(u64::try_from(target.chars().count()).unwrap_or(u64::MAX), "character")
    )
}

/// Lines below the others of `effects show`.
pub(super) fn lines(intent: &Option<Intent>, look: Look, now: Timestamp) -> String {
    let mut text = String::new();
    let mut line = |name: &str, value: Option<String>| {
        if let Some(value) = value {
            write!(text, "\n  {name:<13} {}", clean(&value)).ok();
        }
    };
    let Some(intent) = intent else {
        line("payload", Some("this login may not read it (nor the target, nor answers)".to_owned()));
        return text;
    };
    line("target", intent.target.as_deref().map(|target| shown(target, look)));
    line("expires", intent.expires_at.map(|at| utc_and_words(at, now)));
    let bytes = plural(intent.bytes.unwrap_or(0), "byte");
    line(
        "payload",
        Some(match &intent.content {
            Content::None => "none".to_owned(),
            Content::Dropped => "dropped: retention or a person removed it".to_owned(),
            Content::Json(_) => format!("JSON, {bytes}"),
            Content::Bytes(_) => {
                format!("{}, {bytes}", intent.content_type.as_deref().unwrap_or("no content type"))
            }
        }),
    );
    text
}

/// The content, where it was asked for.
///
/// # Errors
///
/// When stdout cannot be written.
pub(super) fn print_content(intent: &Option<Intent>) -> std::io::Result<()> {
    match intent.as_ref().map(|intent| &intent.content) {
        Some(Content::Json(Some(text))) => data(format!("\nPayload\n{}", clean_lines(text))),
        Some(Content::Bytes(Some(bytes))) => {
            data(format!("\nPayload\n{}", clean_lines(&String::from_utf8_lossy(bytes))))
        }
        Some(Content::Json(None) | Content::Bytes(None) | Content::None | Content::Dropped) | None => Ok(()),
    }
}

/// For `--json`: the payload as it was written, bytes in base64.
pub(super) fn json(intent: &Option<Intent>, look: Look) -> Value {
    let Some(intent) = intent else { return Value::Null };
    let mut view = json!({
        "target": intent.target.as_deref().map(|target| shown(target, look)),
        "content_type": intent.content_type,
        "expires_at": intent.expires_at.map(Timestamp::rfc3339),
        "bytes": intent.bytes,
        "dropped": intent.content == Content::Dropped,
    });
    match &intent.content {
        // As text: a number with many digits must come out as it went in.
        Content::Json(Some(text)) => view["payload"] = json!(text),
        Content::Bytes(Some(bytes)) => {
            view["body_base64"] = json!(base64::engine::general_purpose::STANDARD.encode(bytes));
        }
        Content::Json(None) | Content::Bytes(None) | Content::None | Content::Dropped => {}
    }
    view
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_shows_whose_effect_it_is_and_nothing_that_may_be_secret() {
        for (target, wanted) in [
            ("/orders/17", "/orders/17"),
            ("/hooks/17?token=sesame", "/hooks/17?…"),
            ("ann@shop.test", "ann@shop.test"),
            ("orders.eu.placed", "orders.eu.placed"),
            ("acme", "acme"),
            ("https://hooks.test:8443/T0/sesame?t=sesame", "https://hooks.test:8443/…"),
            ("http://me:sesame@hooks.test/", "http://hooks.test/…"),
        ] {
            assert_eq!(shown(target, Look::Size), wanted);
            assert_eq!(shown(target, Look::Whole), target);
        }
        for strange in
            ["https://hooks.test1:99999/sesame", "me:sesame@hooks", "a sesame", "x?sesame", "a\\sesame"]
        {
            let shown = shown(strange, Look::Size);
            assert!(!shown.contains("sesame") && shown.contains("--payload"), "{strange}: {shown}");
        }
    }
}
