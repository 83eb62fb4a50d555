//! Which kind a downstream is of.

use super::{
    ConfigError,
    downstream::ReadKind,
    section::{Section, nearest},
};
use crate::KINDS;

/// Kinds that are planned.
const LATER_KINDS: &[&str] = &["sql", "kafka"];
/// Kinds that a program may be built without.
const OPTIONAL_KINDS: &[&str] = &["smtp", "amqp", "nats", "redis"];

/// The kind that a downstream's table names, and how the rest of the table is read.
pub(super) fn kind(section: &Section<'_>) -> Result<(&'static str, ReadKind), ConfigError> {
    let known = KINDS.iter().map(|(name, _)| *name);
    let Some(name) = section.get::<String>("kind")? else {
        return Err(section.missing("kind", "is missing: write kind = \"http\""));
    };
    if let Some((name, read)) = KINDS.iter().find(|(known, _)| *known == name) {
        return Ok((name, *read));
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
