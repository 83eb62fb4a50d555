//! One verb for many effects.

use std::collections::BTreeMap;

use aftercommit::{
    store::BulkInfo,
    verb::{Outlook, Refused, Verb},
};
use serde::{Deserialize, Serialize};
use utoipa::{ToSchema, openapi::schema::ObjectBuilder};

use super::{Time, maybe_time, time, word};
use crate::{actions::Preview, causes::not_done};

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
    /// What was not done, by reason: of the first thousand that were not, in a list of bulks of none.
    #[serde(default)]
    pub not_done: Vec<NotDoneJson>,
}

/// Effects of a bulk that were not acted on for one reason.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct NotDoneJson {
    /// How they were counted.
    #[schema(schema_with = outcome)]
    pub outcome: String,
    /// Why, without what differs between them.
    pub reason: String,
    /// How many.
    pub effects: u64,
    /// The first hundred of them.
    pub ids: Vec<i64>,
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
            not_done: not_done(info)
                .into_iter()
                .map(|one| NotDoneJson {
                    outcome: one.outcome.as_str().to_owned(),
                    reason: one.reason,
                    effects: one.effects,
                    ids: one.ids.iter().map(|id| id.get()).collect(),
                })
                .collect(),
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
    /// How many effects it would list: all that match, but for `refused` and `left_out`.
    pub effects: u64,
    /// Of each downstream.
    pub by_downstream: BTreeMap<String, u64>,
    /// Of each state.
    #[serde(default)]
    pub by_state: BTreeMap<String, u64>,
    /// How many match besides: only the oldest are listed.
    pub left_out: u64,
    /// What matches and is not listed, since the verb would be refused for it, by reason.
    #[serde(default)]
    pub refused: Vec<RefusedJson>,
    /// So many of those that are listed a person resolved as not applied: they fail, and nothing is sent until somebody retries.
    #[serde(default)]
    pub resolved_not_applied: u64,
    /// So many of those that are listed may have been sent before: the outcome of an attempt of theirs was unknown.
    #[serde(default)]
    pub sent_before: u64,
    /// Stands for the list, with the state and the token of each effect: sent back with the wish, it is this list that is acted on, or
    /// none.
    pub digest: String,
    /// What it would do to the outside world, in words.
    pub consequence: String,
    /// What has to be sent as `confirmation`; null: nothing.
    pub confirmation: Option<String>,
}

/// Effects that a verb would be refused for, for one reason.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct RefusedJson {
    /// The reason, as a word that does not change: superseded, refusal_stored, still_travelling, payload_dropped, log_dropped, expired,
    /// request_changed.
    pub reason: String,
    /// The same in words.
    pub words: String,
    /// How many effects.
    pub effects: u64,
}

impl PreviewJson {
    /// What is told of a preview.
    pub(crate) fn of(verb: &Verb, preview: Preview) -> Self {
        let outlook = preview.outlook;
        let refused = outlook.refused.into_iter().map(|Refused { reason, words, effects }| RefusedJson {
            reason,
            words,
            effects,
        });
        Self {
            dry_run: true,
            verb: verb.as_str().to_owned(),
            effects: outlook.effects,
            by_downstream: outlook.by_downstream,
            by_state: outlook.by_state.iter().map(|(state, n)| (state.as_str().to_owned(), *n)).collect(),
            left_out: outlook.left_out,
            refused: refused.collect(),
            resolved_not_applied: outlook.resolved_not_applied,
            sent_before: outlook.sent_before,
            digest: preview.digest,
            consequence: preview.consequence.sentence,
            confirmation: preview.consequence.type_this,
        }
    }

    /// The same as the library has it.
    pub fn outlook(&self) -> Outlook {
        let refused = |one: &RefusedJson| Refused {
            reason: one.reason.clone(),
            words: one.words.clone(),
            effects: one.effects,
        };
        let states = self.by_state.iter().filter_map(|(word, n)| Some((word.parse().ok()?, *n)));
        Outlook {
            effects: self.effects,
            by_state: states.collect(),
            by_downstream: self.by_downstream.clone(),
            resolved_not_applied: self.resolved_not_applied,
            sent_before: self.sent_before,
            left_out: self.left_out,
            refused: self.refused.iter().map(refused).collect(),
        }
    }
}

fn outcome() -> ObjectBuilder {
    word(["refused", "stale", "gone"])
}

fn state() -> ObjectBuilder {
    word(["running", "paused", "cancelled", "finished"])
}
