//! Which kind a downstream is of.

use super::{
    ConfigError,
    downstream::ReadKind,
    key::KeyPlace,
    section::{Section, nearest},
};
use crate::KINDS;

/// A kind that a downstream can be of.
#[derive(Debug)]
pub(crate) struct Kind {
    /// What the configuration calls it.
    pub(crate) name: &'static str,
    /// Reads its part of the table.
    pub(crate) read: ReadKind,
    /// Who says where the key stands.
    pub(crate) key: KeyPlace,
}

/// Kinds that are planned.
const LATER_KINDS: &[&str] = &["sql", "kafka"];
/// Kinds that a program may be built without.
const OPTIONAL_KINDS: &[&str] = &["smtp", "amqp", "nats", "redis"];

/// The kind that a downstream's table names, and how the rest of the table is read.
pub(super) fn kind(section: &Section<'_>) -> Result<&'static Kind, ConfigError> {
    let known = KINDS.iter().map(|kind| kind.name);
    let Some(name) = section.get::<String>("kind")? else {
        return Err(section.missing("kind", "is missing: write kind = \"http\""));
    };
    if let Some(kind) = KINDS.iter().find(|kind| kind.name == name) {
        return Ok(kind);
    }
    if OPTIONAL_KINDS.contains(&name.as_str()) {
        let problem = format!("\"{name}\" is not in this program: build it with the feature \"{name}\"");
        return Err(section.error("kind", problem));
    }
    if LATER_KINDS.contains(&name.as_str()) {
        let known = known.collect::<Vec<_>>().join(", ");
        return Err(
            section.error("kind", format!("\"{name}\" is not supported yet: this version has {known}"))
        );
    }
    let hint = nearest(&name, known.clone()).map_or_else(
        || format!("known kinds: {}", known.collect::<Vec<_>>().join(", ")),
        |nearest| format!("did you mean \"{nearest}\"?"),
    );
    Err(section.error("kind", format!("is no kind of downstream; {hint}")))
}
