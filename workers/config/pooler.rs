//! `pooler` and `direct`: what stands between us and PostgreSQL, and the way around it.

use aftercommit::store::Pooler;

use super::{ConfigError, Section, Sources};

/// Reads both keys.
///
/// # Errors
///
/// [`ConfigError`] where one is wrong, or missing beside the other.
pub(super) fn read(root: &Section<'_>, sources: &Sources) -> Result<Pooler, ConfigError> {
    let pooler: Option<String> = root.get("pooler")?;
    let direct: Option<String> = root.get("direct")?;
    // Who names a database on the command line means that server, and not the file's other one beside it.
    if sources.overrides.iter().any(|(key, _)| key == "database") {
        return Ok(Pooler::None);
    }
    match (pooler.as_deref(), direct) {
        (None, None) => Ok(Pooler::None),
        (Some("transaction"), Some(direct)) if is_postgres(&direct) => Ok(Pooler::Transaction { direct }),
        (Some("transaction"), Some(_)) => {
            Err(root.error("direct", "must be a postgres:// URL that goes around the pooler"))
        }
        (Some("transaction"), None) => Err(root.error(
            "pooler",
            "needs direct = \"postgres://…\" beside it, a URL that goes around the pooler: LISTEN and migrations need a \
             session of their own",
        )),
        (Some(_), _) => Err(root.error(
            "pooler",
            "must be \"transaction\", or left out: a pooler that gives away whole sessions needs no setting",
        )),
        (None, Some(_)) => Err(root.error(
            "direct",
            "goes around a pooler, and none is configured: write pooler = \"transaction\" too, or leave it out",
        )),
    }
}

fn is_postgres(url: &str) -> bool {
    url.starts_with("postgres://") || url.starts_with("postgresql://")
}
