//! Contracts of well-known downstreams, as data: a TOML file each, in which every value stands on a dated source, and what
//! is not known is said.
//!
//! A profile says nothing about operations: paths, methods and what to call them are the user's.

mod check;
mod facts;
#[cfg(test)]
mod tests;

pub use facts::{Confidence, Fact, Open};

use std::time::Duration;

use crate::config::{ConfigError, Log, Section, Written, parse_toml};

/// A shipped profile.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    /// Its name, as `profile = "…"` has it.
    pub name: &'static str,
    /// Its file.
    pub text: &'static str,
}

/// What a profile says.
#[derive(Clone, Debug)]
pub struct Contents {
    /// What it is, in a line.
    pub summary: String,
    /// When it was last read as a whole.
    pub date: String,
    /// What is known.
    pub facts: Vec<Fact>,
    /// What is not.
    pub open: Vec<Open>,
    contract: Written,
}

macro_rules! shipped {
    ($($name:literal),+ $(,)?) => {
        &[$(Profile { name: $name, text: include_str!(concat!($name, ".toml")) }),+]
    };
}

const SHIPPED: &[Profile] = shipped![
    "none",
    "ietf",
    "stripe-v1",
    "stripe-v2",
    "adyen",
    "checkout-com",
    "gocardless",
    "increase",
    "modern-treasury",
    "mollie",
    "paypal-orders-v2",
    "resend",
    "square-payments",
    "standard-webhooks",
    "svix",
    "telnyx",
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
    /// What it says.
    ///
    /// # Errors
    ///
    /// [`ConfigError`] when the file is not a profile; a test holds every shipped one to it.
    pub fn contents(&self) -> Result<Contents, ConfigError> {
        Contents::read(&format!("profile {}", self.name), self.text)
            .map_err(|mut problems| problems.remove(0))
    }

    /// Its contract.
    pub(crate) fn contract(&self) -> Result<Written, ConfigError> {
        self.contents().map(|contents| contents.contract)
    }
}

impl Contents {
    /// Reads the text of a profile; `place` names it in errors.
    ///
    /// # Errors
    ///
    /// Everything that is wrong with it; never empty. What it lacks is another question: [`Self::lacks`].
    pub fn read(place: &str, text: &str) -> Result<Self, Vec<ConfigError>> {
        let table = parse_toml(place, text).map_err(|problem| vec![problem])?;
        let log = Log::default();
        let contents = Self::read_root(&Section::root(&table, &log));
        match contents {
            Ok(contents) => log.into_inner().map(|_effective| contents),
            Err(problem) => {
                log.problem(problem);
                Err(log.into_inner().err().unwrap_or_default())
            }
        }
    }

    fn read_root(root: &Section<'_>) -> Result<Self, ConfigError> {
        let contract = root.child("contract")?;
        let contents = Self {
            summary: facts::text(root, "summary")?,
            date: facts::date(root)?,
            contract: Written::read(&contract)?,
            facts: root.children("fact")?.iter().map(Fact::read).collect::<Result<_, _>>()?,
            open: root.children("open")?.iter().map(Open::read).collect::<Result<_, _>>()?,
        };
        root.finished()?;
        contents.contract.contract(TIMEOUT, None).map_err(|problem| contract.error("", problem))?;
        contents.contract.answers().map_err(|problem| contract.error("", problem))?;
        Ok(contents)
    }

    /// What the contract sets: key and value as it would be written.
    pub fn set(&self) -> Vec<(&'static str, String)> {
        self.contract.shown()
    }

    /// The facts about a key of the contract.
    pub fn about<'c>(&'c self, key: &'c str) -> impl Iterator<Item = &'c Fact> {
        self.facts.iter().filter(move |fact| fact.about.iter().any(|about| about == key))
    }

    /// How sure we are of the contract as a whole: as of its least sure value.
    pub fn confidence(&self) -> Confidence {
        let best = |key: &str| self.about(key).map(|fact| fact.confidence).max();
        self.set()
            .iter()
            .map(|(key, _)| best(key).unwrap_or(Confidence::Low))
            .min()
            .unwrap_or(Confidence::Low)
    }

    /// Where it was read, each source once.
    pub fn sources(&self) -> Vec<&str> {
        let mut sources = Vec::new();
        for fact in &self.facts {
            if !sources.contains(&fact.source.as_str()) {
                sources.push(&fact.source);
            }
        }
        sources
    }
}

/// What an attempt takes where a downstream says nothing else; no window is shorter.
const TIMEOUT: Duration = Duration::from_secs(20);
