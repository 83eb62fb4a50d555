//! `[downstream.NAME.probe]`: how a downstream is asked about an effect in doubt. Every key is optional as it is written; an
//! operation's table is laid over its downstream's. What the texts mean is the business of the downstream's kind.

use std::{collections::BTreeMap, time::Duration};

use aftercommit::contract::Dedupe;

use super::{
    ConfigError,
    answers::{Wants, is_pointer, json},
    section::Section,
    tree::{Node, Value},
    values::{Setting, quoted},
};

/// A probe as far as it was written.
#[derive(Clone, Debug, Default)]
pub(crate) struct WrittenProbe {
    pub(crate) method: Option<String>,
    pub(crate) path: Option<String>,
    pub(crate) found: Option<Sight>,
    pub(crate) absent: Option<Sight>,
    pub(crate) any: Option<String>,
    pub(crate) matching: Option<Matching>,
    pub(crate) pages: Option<Pages>,
    absent_after: Option<Duration>,
}

/// What an answer must show: a status, and a value in its body.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sight {
    /// 200 where nothing is said.
    pub(crate) status: Option<u16>,
    /// Where, and what. Values hold placeholders.
    pub(crate) body: Option<(String, Wants)>,
}

/// Which item of a list is meant: what stands at these pointers of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Matching(pub(crate) BTreeMap<String, serde_json::Value>);

/// How a list goes on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Pages {
    /// Where an answer says whether there are more, and how the next page is asked for; `None`: one answer is the whole list.
    pub(crate) more: Option<(String, String)>,
    /// A list of more pages than this is not read.
    pub(crate) max: u32,
}

/// Pages of a list, unless something else is said.
const PAGES_MAX: u32 = 50;

impl WrittenProbe {
    /// Reads the table `probe` of `parent`, if there is one, laid over `base`.
    pub(crate) fn read(parent: &Section<'_>, base: Option<&Self>) -> Result<Option<Self>, ConfigError> {
        let section = parent.child("probe")?;
        if !parent.has("probe") {
            return Ok(base.cloned());
        }
        let base = base.cloned().unwrap_or_default();
        let probe = Self {
            method: section.get("method")?.or(base.method),
            path: section.get("path")?.or(base.path),
            found: section.get("found")?.or(base.found),
            absent: section.get("absent")?.or(base.absent),
            any: section.get("any")?.or(base.any),
            matching: section.get("where")?.or(base.matching),
            pages: section.get("pages")?.or(base.pages),
            absent_after: section.get("absent_after")?.or(base.absent_after),
        };
        match probe.absent_after {
            None => Err(section.missing(
                "absent_after",
                "is missing: the longest processing plus the time until what was done is visible, such as \"10m\"; without it an absence proves nothing",
            )),
            Some(Duration::ZERO) => Err(section.error("absent_after", "must be more than zero")),
            Some(_) => section.finished().map(|()| Some(probe)),
        }
    }

    /// What a contract that deduplicates so can make of it: from when on an absence counts.
    pub(crate) fn absent_after(&self, dedupe: Dedupe) -> Option<Duration> {
        match dedupe {
            Dedupe::Key | Dedupe::Lookup => self.absent_after,
            Dedupe::None => None,
        }
    }
}

impl Setting for Sight {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be { status = 200, pointer = \"/data/0/ref\", equals = VALUE }, or with differs = VALUE, or with exists = true";
        let Value::Table(table) = &node.value else { return Err(FORM.to_owned()) };
        let known = ["status", "pointer", "equals", "differs", "exists"];
        if let Some(stranger) = table.keys().find(|key| !known.contains(&key.as_str())) {
            return Err(format!("has an unknown key, {stranger}: it {FORM}"));
        }
        let status = match table.get("status").map(|node| node.value.number().map(str::parse::<u16>)) {
            None => None,
            Some(Some(Ok(status))) if (200..600).contains(&status) => Some(status),
            Some(_) => return Err(FORM.to_owned()),
        };
        let wants = match (table.get("equals"), table.get("differs"), table.get("exists")) {
            (Some(value), None, None) => Some(Wants::Equals(json(&value.value).ok_or(FORM)?)),
            (None, Some(value), None) => Some(Wants::Differs(json(&value.value).ok_or(FORM)?)),
            (None, None, Some(Node { value: Value::Bool(true), .. })) => Some(Wants::Exists),
            (None, None, None) => None,
            _ => return Err(FORM.to_owned()),
        };
        let body = match (table.get("pointer").map(|node| &node.value), wants) {
            (None, None) => None,
            (Some(Value::Text(pointer)), Some(wants)) if is_pointer(pointer) => {
                Some((pointer.clone(), wants))
            }
            _ => return Err(FORM.to_owned()),
        };
        Ok(Self { status, body })
    }

    fn show(&self) -> String {
        let status = self.status.map(|status| format!("status = {status}"));
        let body = self.body.as_ref().map(|(pointer, wants)| {
            let wants = match wants {
                Wants::Equals(value) => format!("equals = {value}"),
                Wants::Differs(value) => format!("differs = {value}"),
                Wants::Exists => "exists = true".to_owned(),
            };
            format!("pointer = {}, {wants}", quoted(pointer))
        });
        format!("{{ {} }}", [status, body].into_iter().flatten().collect::<Vec<_>>().join(", "))
    }
}

impl Setting for Matching {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be pointers into an item and what stands there, such as { \"/metadata/order\" = \"{metadata:/order}\" }";
        let Value::Table(table) = &node.value else { return Err(FORM.to_owned()) };
        let mut matching = BTreeMap::new();
        for (pointer, node) in table {
            let value = json(&node.value).filter(|_| is_pointer(pointer)).ok_or(FORM)?;
            matching.insert(pointer.clone(), value);
        }
        if matching.is_empty() { Err(FORM.to_owned()) } else { Ok(Self(matching)) }
    }

    fn show(&self) -> String {
        let pairs: Vec<_> =
            self.0.iter().map(|(pointer, value)| format!("{} = {value}", quoted(pointer))).collect();
        format!("{{ {} }}", pairs.join(", "))
    }
}

impl Setting for Pages {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str = "must be { more = \"/has_more\", next = \"starting_after={last:/data:/id}\", max = 50 }, or { max = 1 } where one answer is always the whole list";
        let Value::Table(table) = &node.value else { return Err(FORM.to_owned()) };
        if table.keys().any(|key| !["more", "next", "max"].contains(&key.as_str())) {
            return Err(FORM.to_owned());
        }
        let text = |key: &str| table.get(key).map(|node| node.value.text().map(str::to_owned));
        let more = match (text("more"), text("next")) {
            (None, None) => None,
            (Some(Some(more)), Some(Some(next))) if is_pointer(&more) => Some((more, next)),
            _ => return Err(FORM.to_owned()),
        };
        let max = match table.get("max").map(|node| node.value.number().map(str::parse::<u32>)) {
            None if more.is_some() => PAGES_MAX,
            Some(Some(Ok(max))) if max > 0 && (more.is_some() || max == 1) => max,
            _ => return Err(FORM.to_owned()),
        };
        Ok(Self { more, max })
    }

    fn show(&self) -> String {
        match &self.more {
            None => format!("{{ max = {} }}", self.max),
            Some((more, next)) => {
                format!("{{ more = {}, next = {}, max = {} }}", quoted(more), quoted(next), self.max)
            }
        }
    }
}
