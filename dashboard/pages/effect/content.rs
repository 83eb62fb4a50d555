//! What an effect carries and what it was answered: shown to those who may see it. What nobody is shown was taken away when it was read.

use std::collections::BTreeMap;

use aftercommit::{
    effect::recipients_of,
    store::{Content, DownstreamInfo, Intent, Look},
    visible::clean,
};

use serde_json::value::RawValue;

use super::Known;
use crate::{
    access::Visitor,
    api::json::shown_target,
    pages::{
        json::indented,
        parts::{Num, Text, lines, text},
    },
};

/// Longer texts are cut; the command line prints them whole.
const SHOWN_MAX: usize = 64 * 1024;

/// So many characters of what an effect carries stand in a list.
const EXCERPT_MAX: usize = 240;
/// So many of its recipients.
const RECIPIENTS: usize = 3;

/// What an effect is for and carries, at a glance.
pub(in crate::pages) struct Carried {
    /// To whom or where it goes.
    pub(in crate::pages) to: Option<Text>,
    /// The beginning of what it carries, on one line.
    pub(in crate::pages) excerpt: Option<Text>,
    /// In its place.
    pub(in crate::pages) words: String,
}

/// What `visitor` is shown of it at a glance.
pub(in crate::pages) fn carried(intent: Option<&Intent>, kind: Option<&str>, visitor: &Visitor) -> Carried {
    let nothing = |words: &str| Carried { to: None, excerpt: None, words: words.to_owned() };
    if !visitor.sees_content() {
        return nothing("Viewers do not see it. An operator does.");
    }
    let Some(intent) = intent else {
        return nothing("The dashboard's own login to the database may not read it.");
    };
    let size = Num(intent.bytes.unwrap_or_default());
    let type_of =
        || clean(intent.content_type.as_deref().unwrap_or("bytes of no declared type")).into_owned();
    let (excerpt, words) = match &intent.content {
        Content::Json(Some(json)) => (Some(excerpt(json)), String::new()),
        Content::Json(None) => (None, format!("{size} bytes of JSON: its own page shows them.")),
        Content::Bytes(bytes) => match bytes.as_deref().map(std::str::from_utf8) {
            Some(Ok(words)) => (Some(excerpt(words)), String::new()),
            Some(Err(_)) | None => (None, format!("{size} bytes, {}.", type_of())),
        },
        Content::Dropped => (None, "Dropped: retention, or a person, removed it.".to_owned()),
        Content::None => (None, "Nothing.".to_owned()),
    };
    Carried { to: recipient(intent, kind).map(|to| text(&to)), excerpt: excerpt.map(|of| text(&of)), words }
}

/// To whom or where it goes, as far as that is no matter of the configuration: its target, or whom a mail names.
fn recipient(intent: &Intent, kind: Option<&str>) -> Option<String> {
    if let Some(target) = &intent.target {
        return Some(excerpt(&shown_target(target, Look::Size)));
    }
    let Content::Json(Some(json)) = &intent.content else { return None };
    let mut all = recipients_of(json).ok().filter(|all| kind == Some("smtp") && !all.is_empty())?;
    let more = all.len().saturating_sub(RECIPIENTS);
    all.truncate(RECIPIENTS);
    let more = if more > 0 { format!(" and {more} more") } else { String::new() };
    Some(excerpt(&(all.join(", ") + &more)))
}

/// The beginning of a text, on one line.
fn excerpt(of: &str) -> String {
    let mut line = String::new();
    for (n, word) in of.split_whitespace().enumerate() {
        if n > 0 {
            line.push(' ');
        }
        line.push_str(word);
        if line.len() > 4 * EXCERPT_MAX {
            break;
        }
    }
    match line.char_indices().nth(EXCERPT_MAX) {
        Some((end, _)) => format!("{}…", &line[..end]),
        None => line,
    }
}

/// Request and response.
pub(super) struct Shown {
    /// Why there is nothing to see.
    pub(super) withheld: Option<&'static str>,
    pub(super) target: Option<Text>,
    pub(super) headers: Option<Sheet>,
    pub(super) payload: Option<Sheet>,
    /// In place of a payload.
    pub(super) payload_words: String,
    pub(super) status: Option<u16>,
    pub(super) response: Option<Sheet>,
    pub(super) curl: Option<Sheet>,
}

/// A text of others.
pub(super) struct Sheet {
    pub(super) text: Text,
    /// As it is copied.
    pub(super) raw: String,
    pub(super) note: Option<String>,
}

/// What `visitor` is shown of it.
pub(super) fn shown(known: &Known, visitor: &Visitor, info: Option<&DownstreamInfo>) -> Shown {
    let effect = &known.effect;
    let mut shown = Shown {
        withheld: None,
        target: None,
        headers: None,
        payload: None,
        payload_words: String::new(),
        status: effect.response_status,
        response: None,
        curl: None,
    };
    if !visitor.sees_content() {
        shown.withheld = Some("Viewers see neither requests nor answers. An operator does.");
        return shown;
    }
    shown.response = effect.response.as_ref().map(|json| sheet(json.get()));
    let Some(intent) = &known.intent else {
        shown.withheld = Some("The dashboard's own login to the database may not read what effects carry.");
        return shown;
    };
    // A URL may be as secret as a password: who may see what an effect carries need not see what lets anybody call on its behalf.
    shown.target = intent.target.as_deref().map(|target| text(&shown_target(target, Look::Size)));
    shown.headers = intent.headers.as_deref().map(|headers| sheet(&header_lines(headers)));
    (shown.payload, shown.payload_words) = payload(intent);
    shown.curl = curl(known, intent, info);
    shown
}

fn payload(intent: &Intent) -> (Option<Sheet>, String) {
    match &intent.content {
        Content::Json(Some(text)) => (Some(sheet(text)), String::new()),
        Content::Bytes(Some(bytes)) => {
            let kind = intent.content_type.as_deref().unwrap_or("bytes of no declared type");
            let size = intent.bytes.unwrap_or_default();
            let words = format!("{size} bytes, {}", clean(kind));
            match std::str::from_utf8(bytes) {
                Ok(text) => (Some(sheet(text)), words),
                Err(_binary) => (None, format!("{words}: no text, so it is not shown")),
            }
        }
        Content::Dropped => (None, "Dropped: retention, or a person, removed it.".to_owned()),
        Content::None => (None, "None: it carries nothing.".to_owned()),
        Content::Json(None) | Content::Bytes(None) => (None, "Not read.".to_owned()),
    }
}

/// Headers as lines.
fn header_lines(headers: &str) -> String {
    let Ok(members) = serde_json::from_str::<BTreeMap<String, Box<RawValue>>>(headers) else {
        return headers.to_owned();
    };
    let line = |(name, raw): (&String, &RawValue)| {
        let value = serde_json::from_str::<String>(raw.get()).unwrap_or_else(|_no_text| raw.get().to_owned());
        format!("{name}: {value}")
    };
    members.iter().map(|(name, raw)| line((name, raw))).collect::<Vec<_>>().join("\n")
}

fn sheet(raw: &str) -> Sheet {
    let mut end = raw.len().min(SHOWN_MAX);
    while !raw.is_char_boundary(end) {
        end -= 1;
    }
    let note = (end < raw.len()).then(|| {
        format!(
            "The first {SHOWN_MAX} of {} bytes; `aftercommit effects show --payload` prints all.",
            raw.len()
        )
    });
    let raw = raw[..end].to_owned();
    Sheet { text: lines(&indented(&raw)), raw, note }
}

/// The request as a command, without credentials: what the workers' configuration adds is named in its place.
fn curl(known: &Known, intent: &Intent, info: Option<&DownstreamInfo>) -> Option<Sheet> {
    let effect = &known.effect;
    let info = info.filter(|info| matches!(info.kind.as_deref(), Some("http" | "webhook")))?;
    let origin = info.origin.as_deref().unwrap_or("https://ORIGIN");
    let path = match (&intent.target, &effect.operation) {
        (Some(target), _) => shown_target(target, Look::Size),
        (None, Some(operation)) => format!("/PATH-OF-{operation}"),
        (None, None) => "/".to_owned(),
    };
    let url = if path.contains("://") { path } else { format!("{origin}/{}", path.trim_start_matches('/')) };
    let mut command =
        format!("curl -X POST {} \\\n  -H {}", quoted(&url), quoted("Authorization: YOUR-CREDENTIALS"));
    command
        .push_str(&format!(" \\\n  -H {}", quoted(&format!("Idempotency-Key: {}", effect.idempotency_key))));
    let (kind, body) = match &intent.content {
        Content::Json(Some(text)) => ("application/json", Some(text.clone())),
        Content::Bytes(Some(bytes)) => {
            let kind = intent.content_type.as_deref().unwrap_or("application/octet-stream");
            (kind, std::str::from_utf8(bytes).ok().map(str::to_owned))
        }
        Content::Json(None) | Content::Bytes(None) | Content::None | Content::Dropped => ("", None),
    };
    if let Some(body) = body.filter(|body| body.len() <= SHOWN_MAX) {
        command.push_str(&format!(
            " \\\n  -H {} \\\n  --data-binary {}",
            quoted(&format!("Content-Type: {kind}")),
            quoted(&body)
        ));
    }
    Some(Sheet { text: lines(&command), raw: command, note: None })
}

/// For a shell.
fn quoted(text: &str) -> String {
    format!("'{}'", text.replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_stands_in_a_list_is_one_line_and_short() {
        assert_eq!(excerpt("{\n  \"to\": \"ann@shop.test\"\n}"), "{ \"to\": \"ann@shop.test\" }");
        let long = excerpt(&"ü".repeat(10_000));
        assert_eq!(long.chars().count(), EXCERPT_MAX + 1);
        assert!(long.ends_with('…'), "{long}");
        assert!(excerpt(&"a ".repeat(10_000)).chars().count() <= EXCERPT_MAX + 1);
    }

    #[test]
    fn no_text_ends_the_quotes_of_a_shell() {
        assert_eq!(quoted("a'; rm -rf 'b"), r"'a'\''; rm -rf '\''b'");
    }

    #[test]
    fn long_texts_are_cut_between_characters_and_say_so() {
        let cut = sheet(&"ü".repeat(SHOWN_MAX));
        assert!(cut.raw.len() <= SHOWN_MAX && cut.note.is_some());
        assert!(sheet("{}").note.is_none());
    }
}
