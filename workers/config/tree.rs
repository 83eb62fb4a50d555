//! The configuration as one tree: the file's values with their places, environment and flags laid over them.

use std::{collections::BTreeMap, fmt, sync::Arc};

use toml::de::{DeTable, DeValue};

use super::ConfigError;

/// Where a value comes from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Origin {
    /// Nobody gave it.
    Default,
    /// A file, or a profile.
    File { file: Arc<str>, line: usize, column: usize },
    /// An environment variable.
    Env(Arc<str>),
    /// A flag of the command line.
    Flag(Arc<str>),
    /// The profile of this name.
    Profile(Arc<str>),
    /// An operation that says nothing has what its downstream has.
    Downstream(Arc<str>),
}

impl fmt::Display for Origin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Default => f.write_str("default"),
            Self::File { file, line, column } => write!(f, "{file}:{line}:{column}"),
            Self::Env(variable) => write!(f, "environment variable {variable}"),
            Self::Flag(key) => write!(f, "flag for {key}"),
            Self::Profile(name) => write!(f, "profile {name}"),
            Self::Downstream(name) => write!(f, "as in {name}"),
        }
    }
}

/// A value and where it stands.
#[derive(Clone, Debug)]
pub(crate) struct Node {
    pub(crate) value: Value,
    pub(crate) origin: Origin,
}

/// A value, as far as it can be told without knowing which key it belongs to.
#[derive(Clone, Debug)]
pub(crate) enum Value {
    /// A quoted string.
    Text(String),
    /// Text of a variable or a flag: a string, a number or a boolean, as its key wants it.
    Raw(String),
    /// Decimal digits.
    Integer(String),
    /// A number with a fraction.
    Float(String),
    /// `true` or `false`.
    Bool(bool),
    /// A list.
    Array(Vec<Node>),
    /// A table.
    Table(Table),
    /// A date or a time: no key takes one.
    Datetime,
}

pub(crate) type Table = BTreeMap<String, Node>;

impl Value {
    /// The text of a string or of a variable.
    pub(crate) fn text(&self) -> Option<&str> {
        match self {
            Self::Text(text) | Self::Raw(text) => Some(text),
            Self::Integer(_)
            | Self::Float(_)
            | Self::Bool(_)
            | Self::Array(_)
            | Self::Table(_)
            | Self::Datetime => None,
        }
    }

    /// The digits of a number, or of a variable that may be one.
    pub(crate) fn number(&self) -> Option<&str> {
        match self {
            Self::Integer(digits) | Self::Float(digits) | Self::Raw(digits) => Some(digits),
            Self::Text(_) | Self::Bool(_) | Self::Array(_) | Self::Table(_) | Self::Datetime => None,
        }
    }

    /// What it is, for an error. Never the value itself: it may be a secret in the wrong place.
    pub(crate) const fn what(&self) -> &'static str {
        match self {
            Self::Text(_) => "a string",
            Self::Raw(_) => "a plain value",
            Self::Integer(_) => "an integer",
            Self::Float(_) => "a number with a fraction",
            Self::Bool(_) => "a boolean",
            Self::Array(_) => "a list",
            Self::Table(_) => "a table",
            Self::Datetime => "a date or time",
        }
    }
}

/// Reads TOML text; `file` names it in errors.
pub(crate) fn parse(file: &str, text: &str) -> Result<Table, ConfigError> {
    let lines = Lines { file: file.into(), text };
    let table = DeTable::parse(text).map_err(|error| {
        let place = lines.place(error.span().map_or(0, |span| span.start));
        ConfigError::new(place, "the file", format!("is not TOML: {}", error.message()))
    })?;
    Ok(lines.table(table.get_ref()))
}

struct Lines<'a> {
    file: Arc<str>,
    text: &'a str,
}

impl Lines<'_> {
    fn place(&self, offset: usize) -> Origin {
        let before = self.text.get(..offset).unwrap_or(self.text);
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        Origin::File {
            file: Arc::clone(&self.file),
            line: before.matches('\n').count() + 1,
            column: before[line_start..].chars().count() + 1,
        }
    }

    fn table(&self, table: &DeTable<'_>) -> Table {
        table
            .iter()
            .map(|(key, value)| {
                let origin = self.place(key.span().start);
                (key.get_ref().to_string(), Node { value: self.value(value.get_ref()), origin })
            })
            .collect()
    }

    fn value(&self, value: &DeValue<'_>) -> Value {
        match value {
            DeValue::String(text) => Value::Text(text.to_string()),
            DeValue::Integer(number) => Value::Integer(decimal(number.as_str(), number.radix())),
            DeValue::Float(number) => Value::Float(number.as_str().replace('_', "")),
            DeValue::Boolean(yes) => Value::Bool(*yes),
            DeValue::Datetime(_) => Value::Datetime,
            DeValue::Array(items) => Value::Array(
                items
                    .iter()
                    .map(|item| Node {
                        value: self.value(item.get_ref()),
                        origin: self.place(item.span().start),
                    })
                    .collect(),
            ),
            DeValue::Table(table) => Value::Table(self.table(table)),
        }
    }
}

fn decimal(digits: &str, radix: u32) -> String {
    let digits = digits.replace('_', "");
    if radix == 10 {
        return digits;
    }
    i64::from_str_radix(&digits, radix).map_or(digits, |number| number.to_string())
}

/// Lays `text`, given for the dotted `path`, over the tree.
pub(crate) fn overlay(
    tree: &mut Table,
    path: &[String],
    text: &str,
    origin: &Origin,
) -> Result<(), ConfigError> {
    let dotted = path.join(".");
    let [parents @ .., last] = path else {
        return Err(ConfigError::new(origin, dotted, "names no key"));
    };
    let mut table = tree;
    for name in parents {
        let name = existing_name(table, name);
        let node = table
            .entry(name)
            .or_insert_with(|| Node { value: Value::Table(Table::new()), origin: origin.clone() });
        if !matches!(node.value, Value::Table(_)) {
            node.value = Value::Table(Table::new());
        }
        let Value::Table(inner) = &mut node.value else { unreachable!("made a table above") };
        table = inner;
    }
    let name = existing_name(table, last);
    let value = overlaid(text, &dotted, origin)?;
    table.insert(name, Node { value, origin: origin.clone() });
    Ok(())
}

/// A variable's name has neither case nor dashes: it finds what the file already names.
fn existing_name(table: &Table, name: &str) -> String {
    let plain = |name: &str| name.to_ascii_lowercase().replace('-', "_");
    if table.contains_key(name) {
        return name.to_owned();
    }
    table.keys().find(|key| plain(key) == plain(name)).cloned().unwrap_or_else(|| name.to_owned())
}

fn overlaid(text: &str, dotted: &str, origin: &Origin) -> Result<Value, ConfigError> {
    let trimmed = text.trim();
    if !trimmed.starts_with(['{', '[', '"', '\'']) {
        return Ok(Value::Raw(text.to_owned()));
    }
    let parsed = DeValue::parse(trimmed).map_err(|error| {
        ConfigError::new(origin, dotted, format!("is not a TOML value: {}", error.message()))
    })?;
    let lines = Lines { file: origin.to_string().into(), text: trimmed };
    Ok(placed(lines.value(parsed.get_ref()), origin))
}

/// Inner values of a variable have no lines: they stand where it does.
fn placed(value: Value, origin: &Origin) -> Value {
    let inner = |node: Node| Node { value: placed(node.value, origin), origin: origin.clone() };
    match value {
        Value::Array(items) => Value::Array(items.into_iter().map(inner).collect()),
        Value::Table(table) => {
            Value::Table(table.into_iter().map(|(key, node)| (key, inner(node))).collect())
        }
        other @ (Value::Text(_)
        | Value::Raw(_)
        | Value::Integer(_)
        | Value::Float(_)
        | Value::Bool(_)
        | Value::Datetime) => other,
    }
}
