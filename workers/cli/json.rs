//! The JSON that commands print: the columns of `status` and `attempt_log`, times in RFC 3339.

use aftercommit::{
    clock::Timestamp,
    effect::EffectId,
    outcome::Verdict,
    state::State,
    store::{Audited, Breaker, DownstreamInfo, LoggedAttempt, RequestInfo, Status, WorkerInfo},
};
use serde::{Serialize, Serializer};
use serde_json::value::RawValue;

/// An effect. The response and the metadata are printed as they are stored, digit by digit.
#[derive(Serialize)]
pub(crate) struct EffectJson<'a> {
    id: EffectId,
    downstream: &'a str,
    operation: Option<&'a str>,
    idempotency_key: &'a str,
    state: State,
    held_by: Option<&'a str>,
    attempts: u32,
    due_at: Option<Time>,
    first_sent_at: Option<Time>,
    safe_until: Option<Time>,
    lease_until: Option<Time>,
    worker: Option<&'a str>,
    last_outcome: Option<Verdict>,
    last_error: Option<&'a str>,
    response_status: Option<u16>,
    response: Option<&'a RawValue>,
    metadata: Option<&'a RawValue>,
    payload_dropped: bool,
    log_dropped: bool,
    superseded_by: Option<EffectId>,
    created_at: Time,
    finished_at: Option<Time>,
    token: i64,
    /// Only where an effect was enqueued: whether it was written, or existed already.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) inserted: Option<bool>,
    /// Only where a mail to several was enqueued: whose effect this is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Only where one effect is shown.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) attempt_log: Option<Vec<AttemptJson<'a>>>,
    /// Only where one effect is shown: what is sent; null where this login may not read it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) request: Option<serde_json::Value>,
    /// Only where one effect is shown whose downstream knows it by something besides its key: by what.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) known_as: Option<serde_json::Value>,
    /// Only where one effect of a mail to several is shown: whose effect is which.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) recipients: Option<serde_json::Value>,
    /// Only where one effect is shown: what follows, in words.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) what_follows: Option<String>,
}

impl<'a> From<&'a Status> for EffectJson<'a> {
    fn from(status: &'a Status) -> Self {
        Self {
            id: status.id,
            downstream: &status.downstream,
            operation: status.operation.as_deref(),
            idempotency_key: &status.idempotency_key,
            state: status.state,
            held_by: status.held_by.as_deref(),
            attempts: status.attempts,
            due_at: status.due_at.map(Time),
            first_sent_at: status.first_sent_at.map(Time),
            safe_until: status.safe_until.map(Time),
            lease_until: status.lease_until.map(Time),
            worker: status.worker.as_deref(),
            last_outcome: status.last_outcome,
            last_error: status.last_error.as_deref(),
            response_status: status.response_status,
            response: status.response.as_deref(),
            metadata: status.metadata.as_deref(),
            payload_dropped: status.payload_dropped,
            log_dropped: status.log_dropped,
            superseded_by: status.superseded_by,
            created_at: Time(status.created_at),
            finished_at: status.finished_at.map(Time),
            token: status.token,
            inserted: None,
            target: None,
            attempt_log: None,
            request: None,
            known_as: None,
            recipients: None,
            what_follows: None,
        }
    }
}

/// An attempt.
#[derive(Serialize)]
pub(crate) struct AttemptJson<'a> {
    effect_id: EffectId,
    attempt: u32,
    token: i64,
    worker: Option<&'a str>,
    started_at: Time,
    ended_at: Option<Time>,
    phase: &'a str,
    outcome: Verdict,
    response_status: Option<u16>,
    error: Option<&'a str>,
    late: bool,
}

impl<'a> From<&'a LoggedAttempt> for AttemptJson<'a> {
    fn from(attempt: &'a LoggedAttempt) -> Self {
        Self {
            effect_id: attempt.effect_id,
            attempt: attempt.attempt,
            token: attempt.token,
            worker: attempt.worker.as_deref(),
            started_at: Time(attempt.started_at),
            ended_at: attempt.ended_at.map(Time),
            phase: &attempt.phase,
            outcome: attempt.outcome,
            response_status: attempt.response_status,
            error: attempt.error.as_deref(),
            late: attempt.late,
        }
    }
}

/// A downstream.
#[derive(Serialize)]
pub(crate) struct DownstreamJson<'a> {
    name: &'a str,
    kind: Option<&'a str>,
    contract: Option<&'a str>,
    workers: u32,
    pending: u64,
    in_flight: u64,
    in_doubt: u64,
    failed: u64,
    oldest_due_at: Option<Time>,
    paused_at: Option<Time>,
    paused_by: Option<&'a str>,
    pause_reason: Option<&'a str>,
    origin: Option<&'a str>,
    paused_until: Option<Time>,
    breaker: Breaker,
    hold_reason: Option<&'a str>,
    rate: Option<&'a str>,
}

impl<'a> From<&'a DownstreamInfo> for DownstreamJson<'a> {
    fn from(info: &'a DownstreamInfo) -> Self {
        let paused = info.paused.as_ref();
        Self {
            name: &info.name,
            kind: info.kind.as_deref(),
            contract: info.contract.as_deref(),
            workers: info.workers,
            pending: info.pending,
            in_flight: info.in_flight,
            in_doubt: info.in_doubt,
            failed: info.failed,
            oldest_due_at: info.oldest_due_at.map(Time),
            paused_at: paused.map(|paused| Time(paused.at)),
            paused_by: paused.map(|paused| paused.who.as_str()),
            pause_reason: paused.and_then(|paused| paused.reason.as_deref()),
            origin: info.origin.as_deref(),
            paused_until: info.paused_until.map(Time),
            breaker: info.breaker,
            hold_reason: info.hold_reason.as_deref(),
            rate: info.rate.as_deref(),
        }
    }
}

/// A worker.
#[derive(Serialize)]
pub(crate) struct WorkerJson<'a> {
    name: &'a str,
    version: &'a str,
    live: bool,
    downstreams: &'a [String],
    in_flight: u64,
    started_at: Time,
    seen_at: Time,
}

impl<'a> From<&'a WorkerInfo> for WorkerJson<'a> {
    fn from(info: &'a WorkerInfo) -> Self {
        Self {
            name: &info.name,
            version: &info.version,
            live: info.live,
            downstreams: &info.downstreams,
            in_flight: info.in_flight,
            started_at: Time(info.started_at),
            seen_at: Time(info.seen_at),
        }
    }
}

/// An audit row.
#[derive(Serialize)]
pub(crate) struct AuditJson<'a> {
    id: i64,
    at: Time,
    who: &'a str,
    verb: &'a str,
    effect_id: Option<EffectId>,
    downstream: Option<&'a str>,
    from_state: Option<&'a str>,
    to_state: Option<&'a str>,
    reason: Option<&'a str>,
}

impl<'a> From<&'a Audited> for AuditJson<'a> {
    fn from(row: &'a Audited) -> Self {
        Self {
            id: row.id,
            at: Time(row.at),
            who: &row.who,
            verb: &row.verb,
            effect_id: row.effect_id,
            downstream: row.downstream.as_deref(),
            from_state: row.from_state.as_deref(),
            to_state: row.to_state.as_deref(),
            reason: row.reason.as_deref(),
        }
    }
}

/// A guarded request. What it was answered with is shown to nobody but whoever repeats it.
#[derive(Serialize)]
pub(crate) struct RequestJson<'a> {
    scope: &'a str,
    key: &'a str,
    status: u16,
    effects: u64,
    created_at: Time,
    expires_at: Time,
}

impl<'a> From<&'a RequestInfo> for RequestJson<'a> {
    fn from(info: &'a RequestInfo) -> Self {
        Self {
            scope: &info.scope,
            key: &info.key,
            status: info.status,
            effects: info.effects,
            created_at: Time(info.created_at),
            expires_at: Time(info.expires_at),
        }
    }
}

/// A time, serialised as RFC 3339.
pub(crate) struct Time(pub(crate) Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339())
    }
}

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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_and_for_ever_is_infinity() {
        let text = |at| serde_json::to_string(&Time(at)).unwrap();
        assert_eq!(text(Timestamp::from_micros(1_500_000)), "\"1970-01-01T00:00:01.500000Z\"");
        assert_eq!(text(Timestamp::MAX), "\"infinity\"");
    }
}
