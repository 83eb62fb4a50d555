//! `config show`: every effective value with its source; secrets only as their references.

use std::fmt::Write as _;

use super::{Settings, section::Effective, tree::Origin};

/// An effective value.
#[derive(Clone, Debug, PartialEq)]
pub struct Shown {
    /// The dotted key.
    pub key: String,
    /// Its value; a secret only as its reference.
    pub value: serde_json::Value,
    /// Where it comes from.
    pub source: String,
}

impl Settings {
    /// The effective configuration as commented TOML.
    pub fn show(&self) -> String {
        let mut shown = String::new();
        for (table, values) in self.tables() {
            if !table.is_empty() {
                let _infallible = write!(shown, "\n[{table}]\n");
            }
            for value in values {
                let line = format!("{} = {}", value.key, self.masked(value));
                let _infallible = writeln!(shown, "{line:<48} # {}", value.source);
            }
        }
        shown
    }

    /// The effective configuration as data, in the order of [`Self::show`].
    pub fn shown(&self) -> Vec<Shown> {
        let dotted = |table: &str, key: &str| {
            if table.is_empty() { key.to_owned() } else { format!("{table}.{key}") }
        };
        self.tables()
            .into_iter()
            .flat_map(|(table, values)| values.into_iter().map(move |value| (table, value)))
            .map(|(table, value)| Shown {
                key: dotted(table, &value.key),
                value: data(&self.masked(value)),
                source: value.source.clone(),
            })
            .collect()
    }

    /// Whether somebody wrote how long what can be purged is kept, as opposed to our defaults.
    pub fn writes_retention(&self) -> bool {
        let default = Origin::Default.to_string();
        self.effective.iter().any(|value| {
            value.table == "retention"
                && matches!(value.key.as_str(), "payloads" | "history" | "keys")
                && value.source != default
        })
    }

    /// The values by table, in the order in which they were read.
    fn tables(&self) -> Vec<(&str, Vec<&Effective>)> {
        let mut tables: Vec<(&str, Vec<&Effective>)> = Vec::new();
        for value in &self.effective {
            match tables.iter_mut().find(|(table, _)| *table == value.table) {
                Some((_, values)) => values.push(value),
                None => tables.push((value.table.as_str(), vec![value])),
            }
        }
        // Values of the root stand before the first table, or TOML would read them as that table's.
        tables.sort_by_key(|(table, _)| !table.is_empty());
        tables
    }

    fn masked(&self, value: &Effective) -> String {
        if value.table.is_empty() && value.key == "database" {
            return super::quoted(&masked_url(&self.database));
        }
        if value.table.is_empty() && value.key == "direct" {
            return super::quoted(&masked_url(self.direct()));
        }
        value.value.clone()
    }
}

/// A TOML value as JSON; what is none, as its text.
fn data(toml: &str) -> serde_json::Value {
    let table = toml::from_str::<toml::Table>(&format!("value = {toml}")).ok();
    let value = table.and_then(|mut table| table.remove("value"));
    value
        .and_then(|value| serde_json::to_value(value).ok())
        .unwrap_or_else(|| serde_json::Value::String(toml.to_owned()))
}

/// A database URL without its password. What is no URL may hold anything, and is not shown.
pub fn masked_url(database: &str) -> String {
    let scheme = |text: &str| text.split_once(':').map(|(scheme, _)| format!("{scheme}:***"));
    let Ok(mut url) = url::Url::parse(database) else {
        return scheme(database).unwrap_or_else(|| "***".to_owned());
    };
    let is_secret = |name: &str| name.to_ascii_lowercase().contains("password");
    let in_query = url.query_pairs().any(|(name, _)| is_secret(&name));
    if url.password().is_none() && !in_query {
        return database.to_owned();
    }
    if url.password().is_some() && url.set_password(Some("***")).is_err() {
        return format!("{}:***", url.scheme());
    }
    if in_query {
        let shown: Vec<(String, String)> = url
            .query_pairs()
            .map(|(name, value)| {
                let value = if is_secret(&name) { "***".to_owned() } else { value.into_owned() };
                (name.into_owned(), value)
            })
            .collect();
        url.query_pairs_mut().clear().extend_pairs(shown);
    }
    url.to_string()
}
