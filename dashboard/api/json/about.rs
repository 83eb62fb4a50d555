//! What a dashboard says of itself, and what is counted for people who look for causes.

use aftercommit::{effect::EffectId, state::State};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use super::{Time, state, time};

/// A dashboard, and who asks.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AboutJson {
    /// Its version.
    pub version: String,
    /// The schema version that it knows.
    pub schema_version: i32,
    /// The environment that it belongs to; empty: nobody says.
    pub environment: String,
    /// Nothing can be changed here by anybody.
    pub read_only: bool,
    /// Who you are here.
    pub who: String,
    /// What you may do: viewer, operator or admin.
    pub role: String,
    /// Why the fleet stands still; null: it does not.
    pub hold: Option<String>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

/// Effects that have the same cause.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CauseJson {
    /// Stands for the group: as `cause` of a bulk's filter it chooses these effects, and no others.
    pub id: String,
    /// The downstream.
    pub downstream: String,
    /// The operation.
    pub operation: Option<String>,
    /// The protocol's status of their last answers.
    pub response_status: Option<u16>,
    /// What their last errors say, without what differs between them.
    pub cause: String,
    /// One of these errors, as it is.
    pub sample: Option<String>,
    /// What stands in all of their errors: as `error` of a filter it finds them, and maybe others. Null: nothing does.
    pub search: Option<String>,
    /// How many.
    pub effects: u64,
    /// How many of the last hour.
    pub last_hour: u64,
    /// How many of the last day.
    pub last_day: u64,
    /// How many of the last seven days.
    #[serde(default)]
    pub last_week: u64,
    /// The newest of them.
    #[schema(value_type = i64)]
    pub newest: EffectId,
    /// When that one ended, or was parked.
    #[schema(schema_with = time)]
    pub newest_at: Time,
}

/// Why effects failed, or are in doubt.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct CausesJson {
    /// The state that was asked for.
    #[schema(schema_with = state)]
    pub state: State,
    /// The causes, the most frequent first.
    pub causes: Vec<CauseJson>,
    /// How many of the newest effects were looked at.
    pub searched: u64,
    /// Of these, so many have no cause here: a new effect took their place, and nothing is to be done about them.
    #[serde(default)]
    pub superseded: u64,
    /// Whether these are all that there are.
    pub whole: bool,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}
