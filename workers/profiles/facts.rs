//! What a profile knows and from where, and what nobody outside the vendor knows.

use crate::config::{ConfigError, Node, Section, Setting, quoted};

/// How sure we are of a fact.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Confidence {
    /// A third party's word, or a conclusion of ours. Never the reason for a value of the contract.
    Low,
    /// A dated copy of the vendor's text, or code of the vendor's that only implies it.
    Medium,
    /// Read in the vendor's or the standard's own text or source.
    High,
}

impl Confidence {
    /// The word in the file.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Low => "low",
            Self::Medium => "medium",
            Self::High => "high",
        }
    }
}

impl Setting for Confidence {
    fn read(node: &Node) -> Result<Self, String> {
        let text = String::read(node)?;
        [Self::Low, Self::Medium, Self::High]
            .into_iter()
            .find(|confidence| confidence.as_str() == text)
            .ok_or_else(|| "must be \"high\", \"medium\" or \"low\"".to_owned())
    }

    fn show(&self) -> String {
        quoted(self.as_str())
    }
}

/// Something that was read somewhere.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Fact {
    /// The keys of the contract that it is about; none where it sets nothing.
    pub about: Vec<String>,
    /// What it is, as a sentence.
    pub says: String,
    /// The page, or the file with its version.
    pub source: String,
    /// Of the copy that was read: `2026-07-09`, or `2024-03` where no more is known.
    pub date: String,
    /// How sure we are.
    pub confidence: Confidence,
}

/// Something that is not known, and what the user should decide.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Open {
    /// The keys of the contract that it is about.
    pub about: Vec<String>,
    /// What is not known.
    pub says: String,
    /// What to find out or to write, and what follows where nothing is written.
    pub decide: String,
}

impl Fact {
    pub(super) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        let fact = Self {
            about: section.get("about")?.unwrap_or_default(),
            says: text(section, "says")?,
            source: text(section, "source")?,
            date: date(section)?,
            confidence: section.get("confidence")?.unwrap_or(Confidence::Low),
        };
        if !section.has("confidence") {
            section.wrong(section.error("confidence", "is missing: write \"high\", \"medium\" or \"low\""));
        }
        section.finished()?;
        Ok(fact)
    }
}

impl Open {
    pub(super) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        let open = Self {
            about: section.get("about")?.unwrap_or_default(),
            says: text(section, "says")?,
            decide: text(section, "decide")?,
        };
        section.finished()?;
        Ok(open)
    }
}

/// A text that must be there; its absence is noted, so that the rest is read too.
pub(super) fn text(section: &Section<'_>, key: &str) -> Result<String, ConfigError> {
    let text: String = section.get(key)?.unwrap_or_default();
    if text.trim().is_empty() {
        section.wrong(section.error(key, "is missing"));
    }
    Ok(text)
}

/// A day, or a month where no more is known.
pub(super) fn date(section: &Section<'_>) -> Result<String, ConfigError> {
    let date = text(section, "date")?;
    let parts: Vec<&str> = date.split('-').collect();
    let number = |part: &str, len: usize| {
        (part.len() == len && part.bytes().all(|byte| byte.is_ascii_digit()))
            .then(|| part.parse::<u16>().ok())?
    };
    let month = |part: &str| number(part, 2).is_some_and(|month| (1..=12).contains(&month));
    let fits = match parts.as_slice() {
        [year, rest @ ..] if number(year, 4).is_some() => match rest {
            [of_year] => month(of_year),
            [of_year, day] => month(of_year) && number(day, 2).is_some_and(|day| (1..=31).contains(&day)),
            _ => false,
        },
        _ => false,
    };
    if !fits && !date.is_empty() {
        section.wrong(section.error("date", "must be a date such as \"2026-07-09\" or \"2024-03\""));
    }
    Ok(date)
}
