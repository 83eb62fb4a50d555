//! The JSON of the API and of the command line's `--json`: one definition, written by either and read by the command line when
//! it works through a dashboard.
//!
//! Times are RFC 3339. What applications and downstreams wrote (payload, response, metadata) is handed on as the text that
//! it is: no number in it is ever read.

mod about;
mod attempt;
mod bulk;
mod effect;
mod fleet;
mod log;
mod problem;
mod wish;

use aftercommit::{clock::Timestamp, outcome::Verdict, state::State};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};
use serde_json::{Value, json};
use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};

pub use about::{AboutJson, CauseJson, CausesJson};
pub use attempt::{AttemptJson, AttemptsJson, SentJson, VerbJson, shown_target};
pub use bulk::{BulkJson, BulksJson, NotDoneJson, PreviewJson, RefusedJson};
pub use effect::{EffectJson, EffectsJson, EnqueuedJson};
pub use fleet::{
    CountJson, CountsJson, DownstreamJson, DownstreamsJson, EndpointJson, EndpointsJson, LatenciesJson,
    LatencyJson, TrafficJson, TrafficsJson, WorkerJson, WorkersJson,
};
pub use log::{AuditJson, AuditsJson, RequestJson, RequestsJson};
pub(crate) use log::{EXPIRED, KEPT, request_state};
pub use problem::ProblemJson;
pub use wish::{
    ActJson, BulkWishJson, ConfirmedJson, EnqueueJson, FilterJson, ReasonJson, ReissueJson, Resolution,
    ResolveJson, ResumeJson,
};

/// A time, written in RFC 3339.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Time(pub Timestamp);

impl Serialize for Time {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&self.0.rfc3339())
    }
}

impl<'de> Deserialize<'de> for Time {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Timestamp::parse(&text).map(Self).ok_or_else(|| {
            de::Error::custom(format!(
                "{text:?} is no time: write one as RFC 3339 has it, such as 2026-11-30T14:03:10Z"
            ))
        })
    }
}

/// How a time is described.
pub(crate) fn time() -> ObjectBuilder {
    ObjectBuilder::new()
        .schema_type(Type::String)
        .description(Some("A time of the database's clock: RFC 3339 in UTC, or `infinity`."))
        .examples([json!("2026-11-30T14:03:10.500000Z")])
}

/// How a time is described that may be absent.
pub(crate) fn maybe_time() -> ObjectBuilder {
    time().schema_type(SchemaType::from_iter([Type::String, Type::Null]))
}

/// How a state is described.
pub(crate) fn state() -> ObjectBuilder {
    word(State::ALL.map(State::as_str))
}

/// How the word for what an attempt showed is described.
pub(crate) fn verdict() -> ObjectBuilder {
    word(Verdict::ALL.map(|verdict| verdict.as_str()))
}

/// How that word is described where it may be absent.
pub(crate) fn maybe_verdict() -> ObjectBuilder {
    let words = Verdict::ALL.iter().map(|verdict| json!(verdict.as_str())).chain([Value::Null]);
    ObjectBuilder::new()
        .schema_type(SchemaType::from_iter([Type::String, Type::Null]))
        .enum_values(Some(words.collect::<Vec<_>>()))
}

/// One of these words.
pub(crate) fn word<const N: usize>(words: [&str; N]) -> ObjectBuilder {
    ObjectBuilder::new().schema_type(Type::String).enum_values(Some(words.map(Value::from)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_rfc_3339_and_for_ever_is_infinity() {
        let text = |at| serde_json::to_string(&Time(at)).unwrap();
        assert_eq!(text(Timestamp::from_micros(1_500_000)), "\"1970-01-01T00:00:01.500000Z\"");
        assert_eq!(text(Timestamp::MAX), "\"infinity\"");
        for at in [
            Timestamp::from_micros(1_500_000),
            Timestamp::MAX,
            Timestamp::MIN,
            Timestamp::from_micros(i64::MAX - 1),
        ] {
            assert_eq!(serde_json::from_str::<Time>(&text(at)).unwrap().0, at);
        }
        assert!(serde_json::from_str::<Time>("\"tomorrow\"").is_err());
    }
}
