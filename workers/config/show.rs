//! `config show`: every effective value with its source; secrets only as their references.

use std::fmt::Write as _;

use super::Settings;

impl Settings {
    /// The effective configuration as commented TOML.
    pub fn show(&self) -> String {
        let mut tables: Vec<&str> = self.effective.iter().map(|value| value.table.as_str()).collect();
        tables.dedup();
        let mut shown = String::new();
        let mut seen: Vec<&str> = Vec::new();
        for table in tables {
            if seen.contains(&table) {
                continue;
            }
            seen.push(table);
            if !table.is_empty() {
                let _infallible = write!(shown, "\n[{table}]\n");
            }
            for value in self.effective.iter().filter(|value| value.table == table) {
                let text = if table.is_empty() && value.key == "database" {
                    super::quoted(&masked_url(&self.database))
                } else {
                    value.value.clone()
                };
                let line = format!("{} = {text}", value.key);
                let _infallible = writeln!(shown, "{line:<48} # {}", value.source);
            }
        }
        shown
    }
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
