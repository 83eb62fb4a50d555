//! What a look at a thing found: for `doctor`, and for `downstreams test`.

use serde::Serialize;

/// How well a thing is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Level {
    /// As it should be.
    Ok,
    /// It works, and will not always, or not as somebody may think.
    Warn,
    /// It does not work.
    Fail,
}

/// One thing that was looked at.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What was looked at: a word or two.
    pub check: &'static str,
    /// How well it is.
    pub level: Level,
    /// What was found, without secrets.
    pub found: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl Check {
    /// It is as it should be.
    pub fn ok(check: &'static str, found: impl Into<String>) -> Self {
        Self { check, level: Level::Ok, found: found.into(), remedy: None }
    }

    /// It works, and somebody should know what was found.
    pub fn warn(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level: Level::Warn, found: found.into(), remedy: Some(remedy.into()) }
    }

    /// It does not work.
    pub fn fail(check: &'static str, found: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { check, level: Level::Fail, found: found.into(), remedy: Some(remedy.into()) }
    }
}
