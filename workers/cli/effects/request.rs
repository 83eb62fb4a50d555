//! What one effect sends: its target, and whether and how much it carries; the content itself only where it is asked for.

use std::fmt::Write as _;

use aftercommit::{
    clock::{Timestamp, words::utc_and_words},
    effect::EffectId,
    store::{Content, Intent, Look},
    visible::{clean, clean_lines},
};

use crate::cli::{
    Exit, data,
    exit::fail,
    json::{SentJson, shown_target},
    output::plural,
    people::{People, Sight},
};

/// Reads it. `None` where this login may only view and nobody asked for the content.
///
/// # Errors
///
/// When the content was asked for and may not be read, or the database fails.
pub(super) async fn read(people: &dyn People, id: EffectId, look: Look) -> anyhow::Result<Option<Intent>> {
    match (people.intent(id, look).await?, look) {
        (Sight::Seen(intent), _) => Ok(intent.map(|intent| *intent)),
        (Sight::Hidden, Look::Whole) => Err(fail(
            Exit::Failure,
            "this login may not read what effects carry: ask somebody whose login has the role aftercommit_operator, or at a dashboard \
             the role operator",
        )),
        (Sight::Hidden, Look::Size | Look::UpTo(_)) => Ok(None),
    }
}

/// A target as far as it may be shown unasked.
fn shown(target: &str, look: Look) -> String {
    let shown = shown_target(target, look);
    if look == Look::Size && (shown.ends_with(" character") || shown.ends_with(" characters")) {
        return format!("{shown} (--payload shows them)");
    }
    shown
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

/// For `--json`.
pub(super) fn json(intent: &Option<Intent>, look: Look) -> Option<Box<SentJson>> {
    intent.as_ref().map(|intent| Box::new(SentJson::of(intent, look)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_target_that_is_not_shown_says_how_it_is() {
        assert_eq!(shown("ann@shop.test", Look::Size), "ann@shop.test");
        assert_eq!(shown("https://hooks.test/sesame", Look::Size), "https://hooks.test/…");
        for strange in ["https://hooks.test1:99999/sesame", "me:sesame@hooks", "a sesame"] {
            let hidden = shown(strange, Look::Size);
            assert!(!hidden.contains("sesame") && hidden.contains("--payload"), "{strange}: {hidden}");
            assert_eq!(shown(strange, Look::Whole), strange);
        }
    }
}
