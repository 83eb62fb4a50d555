//! Downstreams, their endpoints, workers, and counts.

use std::time::Duration;

use aftercommit::{
    clock::Timestamp,
    downstream::endpoint::{Disabled, Endpoint},
    effect::EffectId,
    state::State,
    store::{Breaker, Count, DownstreamInfo, Latency, PausedBy, Traffic, WorkerInfo},
};
use serde::{Deserialize, Serialize};
use utoipa::{ToSchema, openapi::schema::ObjectBuilder};

use super::{Time, maybe_time, state, time, word};

/// A downstream.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DownstreamJson {
    /// Its name.
    pub name: String,
    /// Its kind; null: effects name it, and nobody ever registered it.
    pub kind: Option<String>,
    /// The contract in words.
    pub contract: Option<String>,
    /// Live workers that serve it.
    pub workers: u32,
    /// Due or pending effects.
    pub pending: u64,
    /// Effects in flight.
    pub in_flight: u64,
    /// Effects in doubt.
    pub in_doubt: u64,
    /// Failed effects.
    pub failed: u64,
    /// When its oldest due effect became due.
    #[schema(schema_with = maybe_time)]
    pub oldest_due_at: Option<Time>,
    /// Since when it is paused by hand, or because its credentials were refused.
    #[schema(schema_with = maybe_time)]
    pub paused_at: Option<Time>,
    /// By whom.
    pub paused_by: Option<String>,
    /// Why.
    pub pause_reason: Option<String>,
    /// Where its calls go.
    pub origin: Option<String>,
    /// Its origin asked to be left alone until then.
    #[schema(schema_with = maybe_time)]
    pub paused_until: Option<Time>,
    /// Whether its origin answers.
    #[schema(schema_with = breaker)]
    pub breaker: Breaker,
    /// What went wrong at its origin last, while it is held.
    pub hold_reason: Option<String>,
    /// Calls that the fleet may make.
    pub rate: Option<String>,
}

impl From<&DownstreamInfo> for DownstreamJson {
    fn from(info: &DownstreamInfo) -> Self {
        let paused = info.paused.as_ref();
        Self {
            name: info.name.clone(),
            kind: info.kind.clone(),
            contract: info.contract.clone(),
            workers: info.workers,
            pending: info.pending,
            in_flight: info.in_flight,
            in_doubt: info.in_doubt,
            failed: info.failed,
            oldest_due_at: info.oldest_due_at.map(Time),
            paused_at: paused.map(|paused| Time(paused.at)),
            paused_by: paused.map(|paused| paused.who.clone()),
            pause_reason: paused.and_then(|paused| paused.reason.clone()),
            origin: info.origin.clone(),
            paused_until: info.paused_until.map(Time),
            breaker: info.breaker,
            hold_reason: info.hold_reason.clone(),
            rate: info.rate.clone(),
        }
    }
}

impl From<DownstreamJson> for DownstreamInfo {
    fn from(json: DownstreamJson) -> Self {
        let paused = json.paused_at.map(|at| PausedBy {
            at: at.0,
            who: json.paused_by.unwrap_or_default(),
            reason: json.pause_reason,
        });
        Self {
            name: json.name,
            kind: json.kind,
            contract: json.contract,
            workers: json.workers,
            pending: json.pending,
            in_flight: json.in_flight,
            in_doubt: json.in_doubt,
            failed: json.failed,
            oldest_due_at: json.oldest_due_at.map(|time| time.0),
            paused,
            origin: json.origin,
            paused_until: json.paused_until.map(|time| time.0),
            breaker: json.breaker,
            hold_reason: json.hold_reason,
            rate: json.rate,
        }
    }
}

/// The downstreams.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct DownstreamsJson {
    /// The downstreams.
    pub downstreams: Vec<DownstreamJson>,
    /// When they were read, on the database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

/// An endpoint of a downstream that has many. Of its URL only the host is shown: the rest may be all that keeps strangers out.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndpointJson {
    /// The downstream.
    pub downstream: String,
    /// Its name.
    pub name: String,
    /// Where it is; empty where only the workers' configuration knows.
    pub host: String,
    /// Who says so.
    #[schema(schema_with = source)]
    pub source: String,
    /// Whether anything is sent there.
    #[schema(schema_with = endpoint_state)]
    pub state: String,
    /// Since when nothing is.
    #[schema(schema_with = maybe_time)]
    pub disabled_at: Option<Time>,
    /// Why.
    pub disabled_reason: Option<String>,
    /// Since when it has shown nothing but failures.
    #[schema(schema_with = maybe_time)]
    pub failing_since: Option<Time>,
}

impl EndpointJson {
    /// Of one that `source` names as being at `host`, with its row, if it has one.
    pub fn of(downstream: &str, (name, host, source): (&str, &str, &str), row: Option<&Endpoint>) -> Self {
        let disabled = row.and_then(|row| row.disabled.as_ref());
        Self {
            downstream: downstream.to_owned(),
            name: name.to_owned(),
            host: host.to_owned(),
            source: source.to_owned(),
            state: if disabled.is_some() { "disabled" } else { "active" }.to_owned(),
            disabled_at: disabled.map(|disabled| Time(disabled.since)),
            disabled_reason: disabled.map(|disabled| disabled.reason.clone()),
            failing_since: row.and_then(|row| row.failing_since).map(Time),
        }
    }

    /// Of a row of the database.
    pub fn of_row(downstream: &str, row: &Endpoint) -> Self {
        // A row without a URL is the state of one that stands in the workers' configuration.
        let source = if row.url.is_some() { "database" } else { "configuration" };
        let host = row.url.as_deref().and_then(|url| url::Url::parse(url).ok());
        let host = host.and_then(|url| url.host_str().map(str::to_owned)).unwrap_or_default();
        Self::of(downstream, (&row.name, &host, source), Some(row))
    }

    /// Since when and why nothing is sent there.
    pub fn disabled(&self) -> Option<Disabled> {
        let reason = self.disabled_reason.clone().unwrap_or_default();
        self.disabled_at.map(|since| Disabled { since: since.0, reason })
    }
}

/// The endpoints of a downstream.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct EndpointsJson {
    /// The endpoints.
    pub endpoints: Vec<EndpointJson>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

/// A worker.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkerJson {
    /// Its name.
    pub name: String,
    /// Its version.
    pub version: String,
    /// Whether it reported lately.
    pub live: bool,
    /// What it serves.
    pub downstreams: Vec<String>,
    /// Effects that it holds.
    pub in_flight: u64,
    /// Leases under which it holds them.
    #[serde(default)]
    pub leases: u64,
    /// When the first of these ends, unless it is renewed.
    #[serde(default)]
    #[schema(schema_with = maybe_time)]
    pub lease_until: Option<Time>,
    /// When it started.
    #[schema(schema_with = time)]
    pub started_at: Time,
    /// When it last reported.
    #[schema(schema_with = time)]
    pub seen_at: Time,
}

impl From<&WorkerInfo> for WorkerJson {
    fn from(info: &WorkerInfo) -> Self {
        Self {
            name: info.name.clone(),
            version: info.version.clone(),
            live: info.live,
            downstreams: info.downstreams.clone(),
            in_flight: info.in_flight,
            leases: info.leases,
            lease_until: info.lease_until.map(Time),
            started_at: Time(info.started_at),
            seen_at: Time(info.seen_at),
        }
    }
}

impl From<WorkerJson> for WorkerInfo {
    fn from(json: WorkerJson) -> Self {
        Self {
            name: json.name,
            started_at: json.started_at.0,
            seen_at: json.seen_at.0,
            live: json.live,
            downstreams: json.downstreams,
            in_flight: json.in_flight,
            leases: json.leases,
            lease_until: json.lease_until.map(|time| time.0),
            version: json.version,
        }
    }
}

/// The workers, live ones first.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct WorkersJson {
    /// The workers.
    pub workers: Vec<WorkerJson>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

/// How many effects of a downstream are in a state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountJson {
    /// The downstream.
    pub downstream: String,
    /// The state.
    #[schema(schema_with = state)]
    pub state: State,
    /// How many.
    pub effects: u64,
}

impl From<&Count> for CountJson {
    fn from(count: &Count) -> Self {
        Self { downstream: count.downstream.clone(), state: count.state, effects: count.effects }
    }
}

impl From<CountJson> for Count {
    fn from(json: CountJson) -> Self {
        Self { downstream: json.downstream, state: json.state, effects: json.effects }
    }
}

/// Effects by downstream and state.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct CountsJson {
    /// When they were counted, on the database's clock.
    #[schema(schema_with = time)]
    pub as_of: Time,
    /// The counts; what is not there is none.
    pub counts: Vec<CountJson>,
    /// The newest effect.
    #[schema(value_type = Option<i64>)]
    pub newest: Option<EffectId>,
}

/// How many effects of a downstream ended how, in a minute or an hour.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TrafficJson {
    /// When that minute or hour began.
    #[schema(schema_with = time)]
    pub at: Time,
    /// The downstream.
    pub downstream: String,
    /// How they ended.
    #[schema(schema_with = state)]
    pub state: State,
    /// How many.
    pub effects: u64,
}

impl From<&Traffic> for TrafficJson {
    fn from(traffic: &Traffic) -> Self {
        Self {
            at: Time(traffic.at),
            downstream: traffic.downstream.clone(),
            state: traffic.state,
            effects: traffic.effects,
        }
    }
}

/// What ended, over time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct TrafficsJson {
    /// Only what is not none.
    pub traffic: Vec<TrafficJson>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

impl TrafficsJson {
    /// Of these.
    pub fn of(traffic: &[Traffic], now: Timestamp) -> Self {
        Self { traffic: traffic.iter().map(TrafficJson::from).collect(), now: Time(now) }
    }
}

/// How long the attempts took that ended effects, in a minute or an hour: of a sample, spread over it evenly.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LatencyJson {
    /// When that minute or hour began.
    #[schema(schema_with = time)]
    pub at: Time,
    /// How many attempts were looked at.
    pub sampled: u32,
    /// Half of them took no more microseconds.
    pub p50_us: u64,
    /// Ninety-five of a hundred took no more microseconds.
    pub p95_us: u64,
}

impl From<&Latency> for LatencyJson {
    fn from(latency: &Latency) -> Self {
        let micros = |took: Duration| u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        Self {
            at: Time(latency.at),
            sampled: latency.sampled,
            p50_us: micros(latency.p50),
            p95_us: micros(latency.p95),
        }
    }
}

/// How long attempts took, over time.
#[derive(Clone, Debug, Serialize, Deserialize, ToSchema)]
pub struct LatenciesJson {
    /// Only of when some ended an effect.
    pub latencies: Vec<LatencyJson>,
    /// The database's clock.
    #[schema(schema_with = time)]
    pub now: Time,
}

fn breaker() -> ObjectBuilder {
    word(["closed", "half_open", "open"])
}

fn source() -> ObjectBuilder {
    word(["configuration", "database"])
}

fn endpoint_state() -> ObjectBuilder {
    word(["active", "disabled"])
}
