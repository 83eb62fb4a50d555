//! The rules by which an answer is read, as data: `"status[:code]"` lists, where the machine code stands, the markers.

use aftercommit::contract::Stores;

use super::{
    tree::{Node, Value},
    values::{Setting, quoted},
};

/// Which statuses a rule is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum StatusRule {
    /// This one.
    Exactly(u16),
    /// `4xx`: a hundred of them, by their first digit.
    Class(u16),
}

impl StatusRule {
    /// Whether it is about `status`.
    pub(crate) const fn fits(self, status: u16) -> bool {
        match self {
            Self::Exactly(exactly) => exactly == status,
            Self::Class(class) => status / 100 == class,
        }
    }
}

/// One rule: a status, and the machine code that must stand in the body, if any.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AnswerRule {
    pub(crate) status: StatusRule,
    pub(crate) code: Option<String>,
}

impl AnswerRule {
    fn parse(text: &str) -> Option<Self> {
        let (status, code) = match text.split_once(':') {
            Some((status, code)) if !code.is_empty() => (status, Some(code.to_owned())),
            Some(_) => return None,
            None => (text, None),
        };
        let status = match status.strip_suffix("xx") {
            Some(class) => StatusRule::Class(class.parse().ok().filter(|class| (2..=5).contains(class))?),
            None => StatusRule::Exactly(status.parse().ok().filter(|status| (200..600).contains(status))?),
        };
        Some(Self { status, code })
    }
}

impl std::fmt::Display for AnswerRule {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.status {
            StatusRule::Exactly(status) => write!(f, "{status}")?,
            StatusRule::Class(class) => write!(f, "{class}xx")?,
        }
        self.code.iter().try_for_each(|code| write!(f, ":{code}"))
    }
}

impl Setting for Vec<AnswerRule> {
    fn read(node: &Node) -> Result<Self, String> {
        Vec::<String>::read(node)?
            .iter()
            .map(|text| AnswerRule::parse(text).ok_or_else(|| {
                "must be a list of \"status\" or \"status:code\", such as [\"409:key_in_use\", \"422\", \"5xx\"]".to_owned()
            }))
            .collect()
    }

    fn show(&self) -> String {
        self.iter().map(ToString::to_string).collect::<Vec<_>>().show()
    }
}

/// What a 2xx body must show besides its status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Predicate {
    pub(crate) pointer: String,
    pub(crate) wants: Wants,
}

/// What must stand at a predicate's pointer, as JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Wants {
    /// Exactly this.
    Equals(serde_json::Value),
    /// Something, and not this.
    Differs(serde_json::Value),
    /// Something that is not null.
    Exists,
}

impl Setting for Predicate {
    fn read(node: &Node) -> Result<Self, String> {
        const FORM: &str =
            "must be { pointer = \"/ok\", equals = VALUE }, or with differs = VALUE, or with exists = true";
        let Value::Table(table) = &node.value else { return Err(FORM.to_owned()) };
        let pointer = match table.get("pointer").map(|node| &node.value) {
            Some(Value::Text(pointer)) if is_pointer(pointer) => pointer.clone(),
            _ => return Err(FORM.to_owned()),
        };
        let wants = match (table.len(), table.get("equals"), table.get("differs"), table.get("exists")) {
            (2, Some(value), None, None) => Wants::Equals(json(&value.value).ok_or(FORM)?),
            (2, None, Some(value), None) => Wants::Differs(json(&value.value).ok_or(FORM)?),
            (2, None, None, Some(Node { value: Value::Bool(true), .. })) => Wants::Exists,
            _ => return Err(FORM.to_owned()),
        };
        Ok(Self { pointer, wants })
    }

    fn show(&self) -> String {
        let wants = match &self.wants {
            Wants::Equals(value) => format!("equals = {value}"),
            Wants::Differs(value) => format!("differs = {value}"),
            Wants::Exists => "exists = true".to_owned(),
        };
        format!("{{ pointer = {}, {wants} }}", quoted(&self.pointer))
    }
}

pub(crate) fn json(value: &Value) -> Option<serde_json::Value> {
    match value {
        Value::Text(text) => Some(text.as_str().into()),
        Value::Bool(yes) => Some((*yes).into()),
        Value::Integer(digits) | Value::Float(digits) | Value::Raw(digits) => {
            serde_json::from_str(&digits.replace('_', "")).ok()
        }
        Value::Array(items) => {
            items.iter().map(|item| json(&item.value)).collect::<Option<Vec<_>>>().map(Into::into)
        }
        Value::Table(_) | Value::Datetime => None,
    }
}

/// Whether `text` is a JSON pointer (RFC 6901) to something below the root.
pub(crate) fn is_pointer(text: &str) -> bool {
    let escapes_hold =
        || text.split('~').skip(1).all(|escape| escape.starts_with('0') || escape.starts_with('1'));
    text.starts_with('/') && escapes_hold()
}

/// A header that marks an answer, with the value it must have; without one, any value but `false`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Marker {
    pub(crate) name: String,
    pub(crate) value: Option<String>,
}

impl Setting for Marker {
    fn read(node: &Node) -> Result<Self, String> {
        let text = String::read(node)?;
        let (name, value) = match text.split_once('=') {
            Some((name, value)) => (name.trim(), Some(value.trim().to_owned())),
            None => (text.trim(), None),
        };
        if !is_header_name(name) || value.as_ref().is_some_and(String::is_empty) {
            return Err("must be a header's name, or \"Name=value\"".to_owned());
        }
        Ok(Self { name: name.to_owned(), value })
    }

    fn show(&self) -> String {
        quoted(&match &self.value {
            Some(value) => format!("{}={value}", self.name),
            None => self.name.clone(),
        })
    }
}

/// Whether `name` can be the name of a header.
pub(crate) fn is_header_name(name: &str) -> bool {
    reqwest::header::HeaderName::from_bytes(name.as_bytes()).is_ok()
}

/// How an answer of a downstream is read.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Answers {
    pub(crate) in_progress: Vec<AnswerRule>,
    pub(crate) mismatch: Vec<AnswerRule>,
    pub(crate) already_done: Vec<AnswerRule>,
    pub(crate) not_applied: Vec<AnswerRule>,
    pub(crate) rejected: Vec<AnswerRule>,
    /// After which the downstream knows the key no longer, although it may have applied the request.
    pub(crate) frees_key: Vec<AnswerRule>,
    /// Refusals by their status that may stand for a request which was applied.
    pub(crate) unknown: Vec<AnswerRule>,
    pub(crate) stored: Vec<AnswerRule>,
    pub(crate) code_at: Vec<String>,
    pub(crate) success: Option<Predicate>,
    pub(crate) replay_header: Option<Marker>,
    /// Answers that only a request gets which was seen before.
    pub(crate) replay_status: Vec<AnswerRule>,
    /// A header that says whether to try again: with `true` or `false`, where only its name is given; else with this value
    /// that nothing was done and to try again, and without it not to.
    pub(crate) retry_directive: Option<Marker>,
    /// Which answers the downstream stores under the key; `Success` unless it deduplicates by it.
    pub(crate) stores: Stores,
}
