//! What is wrong with the configuration: where, which key, and what to do.

/// Why the configuration cannot be used. It prints no value of a key that may hold a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{place}: {key}: {problem}")]
pub struct ConfigError {
    /// Where the value was given: a file with line and column, a variable, a flag.
    pub place: String,
    /// The dotted key; empty when the file as a whole is meant.
    pub key: String,
    /// What is wrong, the limit, and what to do.
    pub problem: String,
}

impl ConfigError {
    pub(crate) fn new(place: impl ToString, key: impl Into<String>, problem: impl Into<String>) -> Self {
        Self { place: place.to_string(), key: key.into(), problem: problem.into() }
    }
}

/// What the configuration allows and may still surprise.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// The dotted key.
    pub key: String,
    /// What follows from it, as a sentence.
    pub message: String,
}
