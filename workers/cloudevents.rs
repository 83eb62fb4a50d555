//! CloudEvents 1.0 around an effect: its attributes beside the body (binary), or all of it as one JSON text (structured).
//!
//! The kind chooses the prefix under which it carries the attributes, and how it writes their values. The body is never read
//! again: `data` is the payload's own bytes.
//!
//! Facts: CloudEvents 1.0.2 (`spec.md`, `formats/json-format.md`, `bindings/http-protocol-binding.md` §3.1.3.2).

#[cfg(test)]
mod tests;

use aftercommit::effect::Effect;
use base64::Engine as _;
use percent_encoding::{AsciiSet, CONTROLS};
use url::Url;

use crate::{
    config::{ConfigError, Section, Setting as _},
    http::Text,
    json,
    message::Message,
};

/// The media type of an event that is one JSON text.
const STRUCTURED: &str = "application/cloudevents+json";

/// How effects become events.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Envelope {
    mode: Mode,
    source: String,
    of_type: Type,
    subject: Option<Subject>,
    dataschema: Option<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Mode {
    Binary,
    Structured,
}

/// Literal text around `{operation}`.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Type(Vec<String>);

#[derive(Clone, Debug, PartialEq, Eq)]
enum Subject {
    Fixed(String),
    Taken(String, Text),
}

impl Envelope {
    /// Reads the table `cloudevents` of a downstream's own; `None` where it has none.
    pub(crate) fn read(section: &Section<'_>) -> Result<Option<Self>, ConfigError> {
        if !section.has("cloudevents") {
            return Ok(None);
        }
        let table = section.child("cloudevents")?;
        let mode = match table.get_or("mode", "binary".to_owned())?.as_str() {
            "binary" => Ok(Mode::Binary),
            "structured" => Ok(Mode::Structured),
            _ => Err(table.error("mode", "must be \"binary\" or \"structured\"")),
        };
        let mode = table.noting(mode);
        let of_type = Type::parse(&table.get_or("type", "{operation}".to_owned())?)
            .map_err(|problem| table.error("type", problem));
        let of_type = table.noting(of_type);
        let subject = table
            .get::<String>("subject")?
            .map(|text| Subject::parse(text).map_err(|problem| table.error("subject", problem)))
            .transpose();
        let subject = table.noting(subject);
        let dataschema = table.get::<String>("dataschema")?;
        let absolute = |text: &String| is_reference(text) && Url::parse(text).is_ok();
        if dataschema.as_ref().is_some_and(|text| !absolute(text)) {
            let problem = "must be a URI such as \"https://schemas.example.com/charge.json\"";
            table.wrong(table.error("dataschema", problem));
        }
        let source = table.noting(source(&table));
        table.finish()?;
        Ok(Some(Self { mode: mode?, source: source?, of_type: of_type?, subject: subject?, dataschema }))
    }

    /// The event that `effect` is, with `key` as it is sent.
    pub(crate) fn message(&self, effect: &Effect, key: &str) -> Result<Message, String> {
        self.around(Message::of(effect)?, effect, key)
    }

    /// The event whose data is the body of `message`.
    pub(crate) fn around(&self, message: Message, effect: &Effect, key: &str) -> Result<Message, String> {
        let attributes = self.attributes(effect, key, message.traceparent.as_deref())?;
        Ok(match self.mode {
            Mode::Binary => Message { attributes, ..message },
            Mode::Structured => Message {
                body: structured(&attributes, &message),
                content_type: STRUCTURED.to_owned(),
                ..message
            },
        })
    }

    /// All that determines the envelope besides the effect: goes into the pin of the request.
    pub(crate) fn pinned(&self) -> String {
        format!("cloudevents 1 {self:?}")
    }

    fn attributes(
        &self,
        effect: &Effect,
        key: &str,
        traceparent: Option<&str>,
    ) -> Result<Vec<(&'static str, String)>, String> {
        let mut attributes = vec![
            ("specversion", "1.0".to_owned()),
            ("id", key.to_owned()),
            ("source", self.source.clone()),
            ("type", self.of_type.render(effect)?),
        ];
        if let Some(subject) = &self.subject {
            attributes.push(("subject", subject.render(effect, key)?));
        }
        attributes.push(("time", effect.created_at.rfc3339()));
        attributes.extend(self.dataschema.clone().map(|schema| ("dataschema", schema)));
        // The distributed tracing extension: where the event came from, whatever proxies write into the protocol's own header.
        attributes.extend(traceparent.map(|trace| ("traceparent", trace.to_owned())));
        let broken = attributes.iter().find(|(_, value)| value.is_empty() || !value.chars().all(is_text));
        match broken {
            None => Ok(attributes),
            Some((name, _)) => Err(format!(
                "cloudevents: {name} would be empty or hold a control character, which no event may"
            )),
        }
    }
}

impl Type {
    fn parse(text: &str) -> Result<Self, String> {
        let literals: Vec<String> = text.split("{operation}").map(str::to_owned).collect();
        if text.is_empty() || literals.iter().any(|literal| literal.contains(['{', '}'])) {
            return Err(
                "must be text such as \"com.example.{operation}\"; {operation} is the only placeholder"
                    .to_owned(),
            );
        }
        if !text.chars().all(is_text) {
            return Err("must not hold control characters".to_owned());
        }
        Ok(Self(literals))
    }

    fn render(&self, effect: &Effect) -> Result<String, String> {
        match (self.0.as_slice(), &effect.operation) {
            ([literal], _) => Ok(literal.clone()),
            (literals, Some(operation)) => Ok(literals.join(operation)),
            (_, None) => Err("cloudevents: type takes the operation, and the effect has none: name one, or \
                              write a type without {operation}"
                .to_owned()),
        }
    }
}

impl Subject {
    fn parse(text: String) -> Result<Self, String> {
        if text.is_empty() || !text.chars().all(is_text) {
            return Err("must not be empty or hold control characters".to_owned());
        }
        Ok(match Text::parse(&text)? {
            None => Self::Fixed(text),
            Some(template) => Self::Taken(text, template),
        })
    }

    fn render(&self, effect: &Effect, key: &str) -> Result<String, String> {
        match self {
            Self::Fixed(text) => Ok(text.clone()),
            Self::Taken(text, template) => template
                .render(effect, key)
                .map_err(|problem| format!("cloudevents: subject {} {problem}", text.show())),
        }
    }
}

/// One JSON text. What the payload is written as stays as it is: digits, order, spaces.
fn structured(attributes: &[(&'static str, String)], message: &Message) -> Vec<u8> {
    let quote = |text: &str| serde_json::Value::from(text).to_string();
    let mut text = String::from("{");
    for (name, value) in attributes {
        text.push_str(&format!("\"{name}\":{},", quote(value)));
    }
    if message.body.is_empty() {
        text.truncate(text.len() - 1);
        text.push('}');
        return text.into_bytes();
    }
    text.push_str(&format!("\"datacontenttype\":{},", quote(&message.content_type)));
    let json = std::str::from_utf8(&message.body)
        .ok()
        .filter(|text| is_json(&message.content_type) && json::value(text).is_ok());
    match json {
        Some(json) => text.push_str(&format!("\"data\":{json}}}")),
        None => {
            let encoded = base64::engine::general_purpose::STANDARD.encode(&message.body);
            text.push_str(&format!("\"data_base64\":\"{encoded}\"}}"));
        }
    }
    text.into_bytes()
}

/// Whether a media type says that its content is JSON: `*/json` or `*/*+json`.
fn is_json(content_type: &str) -> bool {
    let media = content_type.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    media.split_once('/').is_some_and(|(_, subtype)| subtype == "json" || subtype.ends_with("+json"))
}

/// A character that the type system of CloudEvents allows in a string.
fn is_text(character: char) -> bool {
    let code = u32::from(character);
    let noncharacter = (0xfdd0..=0xfdef).contains(&code) || code & 0xfffe == 0xfffe;
    !character.is_control() && !noncharacter
}

fn source(table: &Section<'_>) -> Result<String, ConfigError> {
    let Some(source) = table.get::<String>("source")? else {
        return Err(table.missing("source", "is missing: write source = \"/shop/payments\" or \"https://shop.example.com/payments\", which names whose events they are"));
    };
    if !is_reference(&source) {
        return Err(table.error(
            "source",
            "must be a URI or a path such as \"/shop/payments\", with everything else percent-encoded",
        ));
    }
    Ok(source)
}

/// A URI reference (RFC 3986) as far as its characters go.
fn is_reference(text: &str) -> bool {
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || b"-._~:/?#[]@!$&'()*+,;=%".contains(&byte);
    !text.is_empty() && text.bytes().all(allowed)
}

/// What the value of a header must not hold as it is.
const HEADER: &AsciiSet = &CONTROLS.add(b' ').add(b'"').add(b'%');

/// An attribute as the value of a header: for the protocols that write them so.
pub(crate) fn header_value(attribute: &str) -> String {
    percent_encoding::utf8_percent_encode(attribute, HEADER).to_string()
}
