//! A problem, as RFC 9457 has it.

use aftercommit::state::State;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// Why nothing was done.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ProblemJson {
    /// What kind of problem it is; it does not change: `urn:aftercommit:problem:` and a word.
    #[serde(rename = "type", default)]
    pub kind: String,
    /// What went wrong, in a few words that do not change.
    pub title: String,
    /// The status of the answer.
    pub status: u16,
    /// What happened, and what to do next, as a sentence.
    pub detail: String,
    /// Where the effect stands now; only where an action was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(schema_with = super::state)]
    pub state: Option<State>,
    /// The effect's token now; only where an action was refused.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub token: Option<i64>,
    /// What has to be sent as `confirmation`; only where that is what was missing.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(nullable = false)]
    pub confirmation: Option<String>,
}
