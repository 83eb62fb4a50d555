//! Who did what, and what came in.

use aftercommit::{
    effect::EffectId,
    store::{Audited, RequestInfo},
};
use serde::{Deserialize, Serialize};
use utoipa::{ToSchema, openapi::schema::ObjectBuilder};

use super::{Time, time, word};

/// An audit row.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditJson {
    /// Number.
    pub id: i64,
    /// When.
    #[schema(schema_with = time)]
    pub at: Time,
    /// Who.
    pub who: String,
    /// From where: an address, or the command line.
    #[serde(default)]
    pub from: Option<String>,
    /// Which verb.
    pub verb: String,
    /// Which effect.
    #[schema(value_type = Option<i64>)]
    pub effect_id: Option<EffectId>,
    /// Which downstream, where it was about no effect.
    pub downstream: Option<String>,
    /// From which state.
    pub from_state: Option<String>,
    /// To which state.
    pub to_state: Option<String>,
    /// The reason given.
    pub reason: Option<String>,
    /// The bulk that it was part of.
    #[serde(default)]
    pub bulk: Option<i64>,
}

impl From<&Audited> for AuditJson {
    fn from(row: &Audited) -> Self {
        Self {
            id: row.id,
            at: Time(row.at),
            who: row.who.clone(),
            from: row.from.clone(),
            verb: row.verb.clone(),
            effect_id: row.effect_id,
            downstream: row.downstream.clone(),
            from_state: row.from_state.clone(),
            to_state: row.to_state.clone(),
            reason: row.reason.clone(),
            bulk: row.bulk,
        }
    }
}

impl From<AuditJson> for Audited {
    fn from(json: AuditJson) -> Self {
        Self {
            id: json.id,
            at: json.at.0,
            who: json.who,
            from: json.from,
            verb: json.verb,
            effect_id: json.effect_id,
            downstream: json.downstream,
            from_state: json.from_state,
            to_state: json.to_state,
            reason: json.reason,
            bulk: json.bulk,
        }
    }
}

/// Audit rows, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct AuditsJson {
    /// The rows.
    pub audit: Vec<AuditJson>,
    /// `before` of the next page; null: this was the last one.
    pub next: Option<i64>,
}

/// Its time is not over.
pub(crate) const KEPT: &str = "kept";
/// Its time is over.
pub(crate) const EXPIRED: &str = "expired";

/// What a dashboard of an older version does not say.
fn kept() -> String {
    KEPT.to_owned()
}

pub(crate) fn request_state() -> ObjectBuilder {
    word([KEPT, EXPIRED])
}

/// A guarded request. What it was answered with is shown to nobody but whoever repeats it.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RequestJson {
    /// Its number: what its effects carry as `request_id`.
    pub id: i64,
    /// In whose space its key is unique.
    pub scope: String,
    /// The key that the client chose.
    pub key: String,
    /// The answer's status.
    pub status: u16,
    /// Whether its time is over. A repeat gets the stored answer while it is `kept`, and past that while `unfinished` is not 0.
    #[serde(default = "kept")]
    #[schema(schema_with = request_state)]
    pub state: String,
    /// Effects that it wrote.
    pub effects: u64,
    /// Those of them that have not ended.
    #[serde(default)]
    pub unfinished: u64,
    /// When it began.
    #[schema(schema_with = time)]
    pub created_at: Time,
    /// Until when its answer is kept.
    #[schema(schema_with = time)]
    pub expires_at: Time,
}

impl From<&RequestInfo> for RequestJson {
    fn from(info: &RequestInfo) -> Self {
        Self {
            id: info.id,
            scope: info.scope.clone(),
            key: info.key.clone(),
            status: info.status,
            state: if info.expired { EXPIRED } else { KEPT }.to_owned(),
            effects: info.effects,
            unfinished: info.unfinished,
            created_at: Time(info.created_at),
            expires_at: Time(info.expires_at),
        }
    }
}

impl From<RequestJson> for RequestInfo {
    fn from(json: RequestJson) -> Self {
        Self {
            id: json.id,
            scope: json.scope,
            key: json.key,
            created_at: json.created_at.0,
            expires_at: json.expires_at.0,
            expired: json.state == EXPIRED,
            status: json.status,
            effects: json.effects,
            unfinished: json.unfinished,
        }
    }
}

/// Guarded requests, those first that are kept longest.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RequestsJson {
    /// The requests.
    pub requests: Vec<RequestJson>,
    /// `before` of the next page; null: this was the last one.
    pub next: Option<String>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}
