//! Contracts of well-known downstreams, as data: a TOML file each, with its sources, their date and our confidence.

use crate::config::{ConfigError, Log, Section, Written, parse_toml};

/// A shipped profile.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name, as `profile = "…"` has it.
    pub name: &'static str,
    /// Its file, with the sources in it.
    pub text: &'static str,
}

/// What a profile says besides the contract.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct About {
    /// What it is, in a line.
    pub summary: String,
    /// Where it was read.
    pub sources: Vec<String>,
    /// When.
    pub date: String,
    /// How sure we are: `high`, `medium` or `low`.
    pub confidence: String,
}

const SHIPPED: &[Profile] = &[
    Profile { name: "none", text: include_str!("none.toml") },
    Profile { name: "ietf", text: include_str!("ietf.toml") },
    Profile { name: "stripe-v1", text: include_str!("stripe-v1.toml") },
];

/// Every shipped profile.
pub const fn all() -> &'static [Profile] {
    SHIPPED
}

/// The profile of this name.
pub fn get(name: &str) -> Option<&'static Profile> {
    SHIPPED.iter().find(|profile| profile.name == name)
}

impl Profile {
    /// What it says about itself.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the file is not a profile; a test holds every shipped one to it.
    pub fn about(&self) -> Result<About, ConfigError> {
        self.read().map(|(about, _)| about)
    }

    /// Its contract.
    pub(crate) fn contract(&self) -> Result<Written, ConfigError> {
        self.read().map(|(_, written)| written)
    }

    fn read(&self) -> Result<(About, Written), ConfigError> {
        let log = Log::default();
        let table = parse_toml(&format!("profile {}", self.name), self.text)?;
        let root = Section::root(&table, &log);
        let required = |key: &str| {
            root.get::<String>(key)?
                .ok_or_else(|| root.error(key, "is missing: a profile says where it comes from"))
        };
        let about = About {
            summary: required("summary")?,
            sources: root.get("sources")?.unwrap_or_default(),
            date: required("date")?,
            confidence: required("confidence")?,
        };
        let written = Written::read(&root.child("contract")?)?;
        root.finish()?;
        log.into_inner().map_err(|mut problems| problems.remove(0))?;
        Ok((about, written))
    }
}
