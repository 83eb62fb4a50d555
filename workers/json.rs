//! JSON as text: members and items as the slices they were written in, so that no number is ever read and no byte moved.

use std::fmt;

use serde::de::{Deserialize, Deserializer, MapAccess, SeqAccess, Visitor};
use serde_json::value::RawValue;

/// A value of a JSON text, by its outermost shape.
pub(crate) enum Shape<'a> {
    /// Its members in order, duplicates included.
    Object(Vec<(String, &'a RawValue)>),
    /// Its items.
    Array(Vec<&'a RawValue>),
    /// Decoded.
    Text(String),
    /// A number or a boolean, as it is written.
    Plain(&'a str),
    /// Nothing.
    Null,
}

struct Members<'a>(Vec<(String, &'a RawValue)>);

impl<'de: 'a, 'a> Deserialize<'de> for Members<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Members<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an object")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Members<'de>, A::Error> {
                let mut members = Vec::new();
                while let Some(member) = map.next_entry()? {
                    members.push(member);
                }
                Ok(Members(members))
            }
        }
        deserializer.deserialize_map(Collect)
    }
}

struct Items<'a>(Vec<&'a RawValue>);

impl<'de: 'a, 'a> Deserialize<'de> for Items<'a> {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Collect;
        impl<'de> Visitor<'de> for Collect {
            type Value = Items<'de>;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Items<'de>, A::Error> {
                let mut items = Vec::new();
                while let Some(item) = seq.next_element()? {
                    items.push(item);
                }
                Ok(Items(items))
            }
        }
        deserializer.deserialize_seq(Collect)
    }
}

/// The text as one value, its surrounding white space left out. The error does not repeat the text.
pub(crate) fn value(text: &str) -> Result<&RawValue, String> {
    serde_json::from_str(text)
        .map_err(|error| format!("is not JSON (line {}, column {})", error.line(), error.column()))
}

/// What `raw` is.
pub(crate) fn shape(raw: &RawValue) -> Result<Shape<'_>, String> {
    let text = raw.get();
    let unreadable = |_error| "holds a string that is no Unicode text (half of a surrogate pair)".to_owned();
    match text.as_bytes().first() {
        Some(b'{') => Ok(Shape::Object(serde_json::from_str::<Members<'_>>(text).map_err(unreadable)?.0)),
        Some(b'[') => Ok(Shape::Array(serde_json::from_str::<Items<'_>>(text).map_err(unreadable)?.0)),
        Some(b'"') => Ok(Shape::Text(serde_json::from_str(text).map_err(unreadable)?)),
        Some(b'n') => Ok(Shape::Null),
        Some(_) | None => Ok(Shape::Plain(text)),
    }
}

/// The names on a JSON pointer's way.
pub(crate) fn steps(pointer: &str) -> impl Iterator<Item = String> {
    pointer.split('/').skip(1).map(|step| step.replace("~1", "/").replace("~0", "~"))
}

/// What stands at `pointer`, if anything. Of members with equal names the last counts, as in most readers.
pub(crate) fn at<'a>(raw: &'a RawValue, pointer: &str) -> Result<Option<&'a RawValue>, String> {
    let mut here = raw;
    for step in steps(pointer) {
        let next = match shape(here)? {
            Shape::Object(members) => {
                members.into_iter().rev().find(|(name, _)| *name == step).map(|(_, value)| value)
            }
            Shape::Array(items) => index(&step).and_then(|index| items.get(index).copied()),
            Shape::Text(_) | Shape::Plain(_) | Shape::Null => None,
        };
        let Some(next) = next else { return Ok(None) };
        here = next;
    }
    Ok(Some(here))
}

fn index(step: &str) -> Option<usize> {
    let plain = step == "0" || !step.starts_with(['0', '+']);
    if plain { step.parse().ok() } else { None }
}

/// `text` with `key` as a string at `pointer`, no other byte touched. A value that stands there already must equal it.
pub(crate) fn splice(text: &str, pointer: &str, key: &str) -> Result<String, String> {
    let mut here = value(text)?;
    let mut rest: Vec<String> = steps(pointer).collect();
    while !rest.is_empty() {
        let Shape::Object(members) = shape(here)? else {
            return Err(format!("has no object to put the key into at {pointer}"));
        };
        let mut same = members.iter().filter(|(name, _)| *name == rest[0]);
        let found = same.next().map(|(_, value)| *value);
        if same.next().is_some() {
            return Err(format!("has {:?} twice, where the key belongs ({pointer})", rest[0]));
        }
        let Some(found) = found else { break };
        here = found;
        rest.remove(0);
    }
    let Some((first, inner)) = rest.split_first() else {
        return match shape(here)? {
            Shape::Text(standing) if standing == key => Ok(text.to_owned()),
            Shape::Text(_) | Shape::Plain(_) | Shape::Null | Shape::Object(_) | Shape::Array(_) => {
                Err(format!("already has another value at {pointer}, where the key belongs"))
            }
        };
    };
    let quote = |name: &str| serde_json::Value::from(name).to_string();
    let mut member = quote(key);
    for name in inner.iter().rev() {
        member = format!("{{{}:{member}}}", quote(name));
    }
    let empty = here.get()[1..].trim_start().starts_with('}');
    // `here` is a slice of `text`: its address says where it stands.
    let after_brace = here.get().as_ptr().addr() - text.as_ptr().addr() + 1;
    let comma = if empty { "" } else { "," };
    Ok(format!("{}{}:{member}{comma}{}", &text[..after_brace], quote(first), &text[after_brace..]))
}
