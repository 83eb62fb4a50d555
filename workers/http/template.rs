//! Path templates, version 1: `/v1/things/{/id}/parts?ref={key}`. A placeholder takes one encoded, non-empty segment.

use aftercommit::effect::Effect;

use super::form::encoded;
use crate::{
    config::Setting as _,
    json::{self, Shape},
};

/// A path with placeholders, and perhaps a query with some.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Template {
    text: String,
    segments: Vec<Vec<Piece>>,
    query: Option<Vec<Piece>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Literal(String),
    Key,
    Id,
    Payload(String),
    Metadata(String),
}

impl Template {
    /// Parses a template; the error is what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if !text.starts_with('/') {
            return Err("must begin with \"/\"".to_owned());
        }
        let (path, query) = match outside(text, '?') {
            None => (text, None),
            Some(at) => (&text[..at], Some(pieces(&text[at + 1..])?)),
        };
        let mut segments = Vec::new();
        let mut rest = &path[1..];
        loop {
            let end = outside(rest, '/').unwrap_or(rest.len());
            if is_dots(&rest[..end]) {
                return Err("must not have \".\" or \"..\" as a segment".to_owned());
            }
            segments.push(pieces(&rest[..end])?);
            if end == rest.len() {
                break;
            }
            rest = &rest[end + 1..];
        }
        Ok(Self { text: text.to_owned(), segments, query })
    }

    /// As it was written.
    pub(super) fn text(&self) -> &str {
        &self.text
    }

    /// Whether the path holds `{key}`.
    pub(super) fn has_key(&self) -> bool {
        self.segments.iter().flatten().any(|piece| *piece == Piece::Key)
    }

    /// The path, and the query if there is one.
    pub(super) fn render(&self, effect: &Effect, key: &str) -> Result<(String, Option<String>), String> {
        let mut path = String::new();
        for segment in &self.segments {
            let mut text = String::new();
            for piece in segment {
                text.push_str(&piece.render(effect, key)?);
            }
            if is_dots(&text) {
                return Err(format!("the path {} would get a segment \"{text}\"", self.text));
            }
            path.push('/');
            path.push_str(&text);
        }
        let query = self
            .query
            .as_ref()
            .map(|pieces| pieces.iter().map(|piece| piece.render(effect, key)).collect::<Result<String, _>>())
            .transpose()?;
        Ok((path, query))
    }
}

/// Text with placeholders, as it is compared with what an answer holds: nothing in it is encoded.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Text(Vec<Piece>);

impl Text {
    /// Parses text; `None` when it has no placeholder.
    pub(crate) fn parse(text: &str) -> Result<Option<Self>, String> {
        let pieces = split(text, |literal| Ok(literal.to_owned()))?;
        let plain = pieces.iter().all(|piece| matches!(piece, Piece::Literal(_)));
        Ok((!plain).then_some(Self(pieces)))
    }

    /// With the effect's values.
    pub(crate) fn render(&self, effect: &Effect, key: &str) -> Result<String, String> {
        self.0.iter().map(|piece| piece.value(effect, key)).collect()
    }
}

impl Piece {
    /// As it stands in a URL.
    fn render(&self, effect: &Effect, key: &str) -> Result<String, String> {
        let value = self.value(effect, key).map_err(|problem| format!("the path {problem}"))?;
        Ok(if matches!(self, Self::Literal(_)) { value } else { encoded(&value) })
    }

    fn value(&self, effect: &Effect, key: &str) -> Result<String, String> {
        match self {
            Self::Literal(text) => Ok(text.clone()),
            Self::Key => Ok(key.to_owned()),
            Self::Id => Ok(effect.id.to_string()),
            Self::Payload(pointer) => scalar(effect.payload.as_deref(), "payload", pointer),
            Self::Metadata(pointer) => scalar(effect.metadata.as_deref(), "metadata", pointer),
        }
    }
}

fn scalar(text: Option<&str>, column: &str, pointer: &str) -> Result<String, String> {
    let nothing = || format!("takes {column} {pointer}, and there is no value");
    let text = text.ok_or_else(nothing)?;
    let wrong = |problem: String| format!("takes {column}, which {problem}");
    let raw = json::value(text).map_err(wrong)?;
    let found = json::at(raw, pointer).map_err(wrong)?.ok_or_else(nothing)?;
    match json::shape(found).map_err(wrong)? {
        Shape::Text(text) if text.is_empty() => Err(format!("takes {column} {pointer}, and it is empty")),
        Shape::Text(text) => Ok(text),
        Shape::Plain(text) => Ok(text.to_owned()),
        Shape::Null => Err(nothing()),
        Shape::Object(_) | Shape::Array(_) => {
            Err(format!("takes {column} {pointer}, and it is no string, number or boolean"))
        }
    }
}

/// Where `wanted` stands first outside of a placeholder.
fn outside(text: &str, wanted: char) -> Option<usize> {
    let mut inside = false;
    text.char_indices().find_map(|(at, here)| {
        match here {
            '{' => inside = true,
            '}' => inside = false,
            _ => {}
        }
        (here == wanted && !inside).then_some(at)
    })
}

fn pieces(text: &str) -> Result<Vec<Piece>, String> {
    split(text, |text| literal(text).map(str::to_owned))
}

/// `text` at its placeholders; `checked` says what may stand between them.
fn split(text: &str, checked: impl Fn(&str) -> Result<String, String>) -> Result<Vec<Piece>, String> {
    let mut pieces = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        if let Some(inner) = rest.strip_prefix('{') {
            let end = inner.find('}').ok_or("has a \"{\" without its \"}\"")?;
            pieces.push(placeholder(&inner[..end])?);
            rest = &inner[end + 1..];
        } else {
            let end = rest.find('{').unwrap_or(rest.len());
            pieces.push(Piece::Literal(checked(&rest[..end])?));
            rest = &rest[end..];
        }
    }
    Ok(pieces)
}

fn placeholder(name: &str) -> Result<Piece, String> {
    let pointer = |text: &str| crate::config::is_pointer(text);
    match name {
        "key" => Ok(Piece::Key),
        "id" => Ok(Piece::Id),
        _ if pointer(name) => Ok(Piece::Payload(name.to_owned())),
        _ => match name.strip_prefix("metadata:") {
            Some(name) if pointer(name) => Ok(Piece::Metadata(name.to_owned())),
            _ => Err(format!(
                "has {}; a placeholder is {{key}}, {{id}}, {{/pointer}} or {{metadata:/pointer}}",
                format!("{{{name}}}").show()
            )),
        },
    }
}

/// Text of a path or query as it may stand in a URL without being changed by whoever parses it.
pub(super) fn literal(text: &str) -> Result<&str, String> {
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        let plain = byte.is_ascii_alphanumeric() || b"-._~!$&()*+,;=:@/?".contains(&byte);
        let escape = byte == b'%'
            && bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit())
            && bytes.next().is_some_and(|digit| digit.is_ascii_hexdigit());
        if !plain && !escape {
            return Err("has a character that must be percent-encoded".to_owned());
        }
    }
    Ok(text)
}

/// Whether a parser would take `segment` for "." or "..".
pub(super) fn is_dots(segment: &str) -> bool {
    matches!(segment.replace("%2e", ".").replace("%2E", ".").as_str(), "." | "..")
}
