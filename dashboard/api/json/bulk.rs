//! One verb for many effects.

use std::collections::BTreeMap;

use aftercommit::store::BulkInfo;
use serde::{Deserialize, Serialize};
use utoipa::{ToSchema, openapi::schema::ObjectBuilder};

use super::{Time, maybe_time, time, word};

/// A bulk: a verb, carried out one by one for effects that were listed when it was started.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BulkJson {
    /// Its number.
    pub id: i64,
    /// The verb.
    pub verb: String,
    /// Which effects, in words.
    pub what: String,
    /// Who started it.
    pub who: String,
    /// Why.
    pub reason: Option<String>,
    /// At most this many a second; 0: as fast as it goes.
    pub rate: u32,
    /// Where it stands.
    #[schema(schema_with = state)]
    pub state: String,
    /// Effects that were listed.
    pub total: u32,
    /// For so many it was done.
    pub done: u32,
    /// So many were refused.
    pub refused: u32,
    /// So many had changed since they were listed, and were left alone.
    pub stale: u32,
    /// So many were gone.
    pub gone: u32,
    /// When it was started.
    #[schema(schema_with = time)]
    pub created_at: Time,
    /// When it ended.
    #[schema(schema_with = maybe_time)]
    pub finished_at: Option<Time>,
    /// A few refusals, in words.
    pub samples: Vec<String>,
}

impl From<&BulkInfo> for BulkJson {
    fn from(info: &BulkInfo) -> Self {
        Self {
            id: info.id,
            verb: info.verb.clone(),
            what: info.what.clone(),
            who: info.who.clone(),
            reason: info.reason.clone(),
            rate: info.rate,
            state: info.state.as_str().to_owned(),
            total: info.total,
            done: info.done,
            refused: info.refused,
            stale: info.stale,
            gone: info.gone,
            created_at: Time(info.created_at),
            finished_at: info.finished_at.map(Time),
            samples: info.samples.clone(),
        }
    }
}

/// Bulks, newest first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct BulksJson {
    /// The bulks.
    pub bulks: Vec<BulkJson>,
}

/// What a bulk would do: nothing was done.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct PreviewJson {
    /// Always true.
    pub dry_run: bool,
    /// The verb.
    pub verb: String,
    /// How many effects it would list.
    pub effects: u64,
    /// Of each downstream.
    pub by_downstream: BTreeMap<String, u64>,
    /// How many match besides: only the oldest are listed.
    pub left_out: u64,
    /// Stands for the list, with the state and the token of each effect: sent back with the wish, it is this list that is acted on, or
    /// none.
    pub digest: String,
    /// What it would do to the outside world, in words.
    pub consequence: String,
    /// What has to be sent as `confirmation`; null: nothing.
    pub confirmation: Option<String>,
}

fn state() -> ObjectBuilder {
    word(["running", "paused", "cancelled", "finished"])
}
