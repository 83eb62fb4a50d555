//! The JSON that commands print: the API's (`aftercommit_dashboard::api::json`), one object per line for lists.

use serde::Serialize;

pub(crate) use aftercommit_dashboard::api::json::{
    AttemptJson, AuditJson, DownstreamJson, EffectJson, EndpointJson, EnqueueJson, RequestJson, SentJson,
    WorkerJson, shown_target,
};

/// One line of JSON on stdout.
///
/// # Errors
///
/// When stdout cannot be written.
pub(crate) fn print(value: &impl Serialize) -> anyhow::Result<()> {
    let text = serde_json::to_string(value)?;
    super::data(text)?;
    Ok(())
}

/// Lines of JSON on stdout, written at once.
///
/// # Errors
///
/// When stdout cannot be written.
pub(crate) fn print_all<T: Serialize>(values: impl Iterator<Item = T>) -> anyhow::Result<()> {
    let lines: Vec<String> = values.map(|value| serde_json::to_string(&value)).collect::<Result<_, _>>()?;
    if !lines.is_empty() {
        super::data(lines.join("\n"))?;
    }
    Ok(())
}
