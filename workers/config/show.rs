//! `config show`: every effective value with its source; secrets only as their references.

use std::fmt::Write as _;

use super::{Settings, section::Effective};

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

/// A database URL without its password.
pub(super) fn masked_url(database: &str) -> String {
    match url::Url::parse(database) {
        Ok(mut url) if url.password().is_some() => match url.set_password(Some("***")) {
            Ok(()) => url.to_string(),
            Err(()) => format!("{}:***", url.scheme()),
        },
        Ok(_) => database.to_owned(),
        // What is not a URL may hold anything.
        Err(_) => {
            database.split_once(':').map_or_else(|| "***".to_owned(), |(scheme, _)| format!("{scheme}:***"))
        }
    }
}
