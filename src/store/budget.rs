//! What the whole fleet shares about the downstreams: [`Budget`] (the engine's) and [`Pause`] (people's).
//!
//! A downstream without a rate whose origin answers needs none of this but a look once a second: no row is written for it and
//! none is locked.

use std::{sync::Arc, time::Duration};

use super::breaker::{Origin, Sign};
use crate::{clock::Timestamp, downstream::Rate, error::StoreError, verb::Actor};

/// What holds calls back just now, for a worker's own copy.
#[derive(Clone, Debug)]
pub struct Holds {
    /// The database's clock.
    pub now: Timestamp,
    /// Downstreams that are paused, by a person or because their credentials were refused.
    pub paused: Vec<Arc<str>>,
    /// Origins that are, or were lately, in trouble.
    pub origins: Vec<(Arc<str>, Origin)>,
}

/// What a call showed about its origin, to be told to the fleet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Scheme, host and port.
    pub origin: Arc<str>,
    /// About its health.
    pub sign: Sign,
    /// It asked to be left alone for so long.
    pub pause: Option<Duration>,
    /// What happened, for people.
    pub reason: String,
}

/// What came of asking for calls under a rate.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Granted {
    /// So many calls may be made.
    pub calls: u32,
    /// When there may be more; `None` when nothing is due anyway.
    pub more_in: Option<Duration>,
}

/// The engine's part. None of it is ever part of a settle: an outcome is written whatever becomes of a budget.
#[async_trait::async_trait]
pub trait Budget: Send + Sync {
    /// What holds `downstreams`, and every origin in trouble.
    async fn holds(&self, downstreams: &[Arc<str>]) -> Result<Holds, StoreError>;

    /// Takes up to `wanted` calls from the rate that the fleet shares, when anything is due; a database that waits for others
    /// gives fewer, never more. What is not used should be given back. Whoever asks brings the rate: where the last one to
    /// register has none, the fleet's row is made anew.
    async fn take(&self, downstream: &str, rate: Rate, wanted: u32) -> Result<Granted, StoreError>;

    /// Gives calls back that were taken and not made.
    async fn give_back(&self, downstream: &str, rate: Rate, calls: u32) -> Result<(), StoreError>;

    /// Whether the caller may make the one call that finds out if an open origin answers again. Nobody else may for `length`,
    /// unless its report says sooner what came of it.
    async fn begin_trial(&self, origin: &str, length: Duration) -> Result<bool, StoreError>;

    /// Tells the fleet what calls showed, in order, and returns what is known of these origins now. Rows are locked in the order
    /// of their names: two workers never wait for each other in a circle.
    async fn report(&self, reports: &[Report]) -> Result<Vec<(Arc<str>, Origin)>, StoreError>;

    /// Pauses a downstream that refused our credentials, with an audit row; `false` when it was paused already.
    async fn pause_refused(&self, downstream: &str, worker: &str, reason: &str) -> Result<bool, StoreError>;
}

/// Who paused a downstream, when and why.
#[derive(Clone, Debug, PartialEq, Eq, serde::Serialize)]
pub struct PausedBy {
    /// When.
    pub at: Timestamp,
    /// Who: a person, or the worker whose credentials were refused.
    pub who: String,
    /// Why.
    pub reason: Option<String>,
}

/// What a pause or a resume did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Acted {
    /// Done, in one transaction with its audit row.
    Done,
    /// Nothing was changed: it is paused already (by this), or, for a resume, it is not, or by another pause than the one seen.
    AsItWas(Option<PausedBy>),
    /// Nobody ever registered a downstream of this name.
    NotFound,
}

/// People's part.
#[async_trait::async_trait]
pub trait Pause: Send + Sync {
    /// Nothing more is sent to the downstream until it is resumed; calls that are under way go on.
    async fn pause(&self, downstream: &str, actor: &Actor) -> Result<Acted, StoreError>;

    /// Ends the pause that was seen, by when it began; where none is named, any. What is due is due at once.
    async fn resume(
        &self,
        downstream: &str,
        actor: &Actor,
        seen: Option<Timestamp>,
    ) -> Result<Acted, StoreError>;
}

/// Reports by origin, in the order of the names; of one origin in the order they were given.
pub(super) fn by_origin(reports: &[Report]) -> Vec<(Arc<str>, Vec<&Report>)> {
    let mut grouped = std::collections::BTreeMap::<Arc<str>, Vec<&Report>>::new();
    for report in reports {
        grouped.entry(Arc::clone(&report.origin)).or_default().push(report);
    }
    grouped.into_iter().collect()
}

/// What is known of an origin after these reports.
pub(super) fn told(origin: Origin, reports: &[&Report], now: Timestamp) -> Origin {
    reports.iter().fold(origin, |origin, report| {
        let mut after = origin.after(report.sign, report.pause, now);
        if !report.reason.is_empty() {
            after.reason = Some(crate::outcome::stored_text(&report.reason, crate::outcome::REASON_MAX));
        }
        after
    })
}
