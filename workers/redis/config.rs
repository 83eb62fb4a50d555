//! What a `redis` downstream's table says, validated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{
    contract::{Dedupe, Window},
    downstream::Downstream,
};

use super::{
    RedisDownstream,
    connect::Access,
    entry::{check_stream, slot_tag},
};
use crate::{
    cloudevents::Envelope,
    config::{Broker, ConfigError, Configured, Operation, Secrets, Section, Source, secrets_of},
    pinned,
    shared::Shared,
    veil::Veil,
};

/// Changes when the same configuration and effect would be rendered to another entry.
const RENDERER_VERSION: &str = "1";
const SCHEMES: &[&str] = &["redis", "rediss"];
const MARKER_PREFIX: &str = "aftercommit:";
const PRODUCER: &str = "aftercommit";
/// What a stream may be told at most: <https://redis.io/docs/latest/commands/xcfgset/>.
const IDMP_MAX: Duration = Duration::from_secs(86_400);

/// Who remembers the keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Idempotency {
    /// A marker key beside the stream, written by the script that adds the entry.
    Marker,
    /// The stream: `XADD … IDMP`, Redis 8.6.
    Idmp,
}

/// How long a key is remembered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Remembered {
    /// Not at all: the contract does not count on it.
    No,
    For(Duration),
    Forever,
}

/// One operation, as it is called.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) stream: Option<String>,
    pub(super) envelope: Option<Envelope>,
    pub(super) remembered: Remembered,
}

/// A `redis` downstream.
#[derive(Clone, Debug)]
pub(super) struct Streams {
    broker: Broker,
    /// A file with certificates to trust besides the system's.
    ca: Option<String>,
    pub(super) idempotency: Idempotency,
    pub(super) marker_prefix: String,
    pub(super) producer: String,
    pub(super) maxlen: Option<u32>,
    /// Attempts at one time.
    pub(super) concurrency: u32,
    key_prefix: String,
    default: Call,
    operations: BTreeMap<String, Call>,
}

/// Reads the part of the table that is this kind's.
pub(crate) fn read(source: &Source<'_>) -> Result<Arc<dyn Configured>, ConfigError> {
    let section = source.section;
    let broker = section.noting(Broker::read(section, "url", SCHEMES));
    let ca = section.noting(section.get("ca"));
    let idempotency = section.noting(idempotency(section));
    let marker_prefix = section.get_or("marker_prefix", MARKER_PREFIX.to_owned())?;
    if marker_prefix.contains(['{', '}']) || marker_prefix.chars().any(char::is_control) {
        let problem = "must not hold braces: those of the stream's name decide the slot";
        section.wrong(section.error("marker_prefix", problem));
    }
    let producer = section.get_or("producer", PRODUCER.to_owned())?;
    if producer.is_empty() {
        section.wrong(section.error("producer", "must not be empty"));
    }
    let maxlen = section.get::<u32>("maxlen")?;
    if maxlen == Some(0) {
        section.wrong(section.error("maxlen", "must be at least 1: leave it out to keep every entry"));
    }
    let envelope = section.noting(Envelope::read(section));
    let around = envelope.as_ref().ok().and_then(Option::as_ref);
    // A marker can be kept for as long as anybody likes: of a contract nothing is refused for a word that could not be read.
    let by = *idempotency.as_ref().unwrap_or(&Idempotency::Marker);
    let default = section.noting(call(section, source.default, by, around));
    let operations = source.named(|section, operation| {
        let mut call = call(section, operation, by, around)?;
        call.stream = call.stream.or_else(|| default.as_ref().ok()?.stream.clone());
        Ok(call)
    });
    envelope?;
    Ok(Arc::new(Streams {
        broker: broker?,
        ca: ca?,
        idempotency: idempotency?,
        marker_prefix,
        producer,
        maxlen,
        concurrency: source.concurrency,
        key_prefix: source.key_prefix.to_owned(),
        default: default?,
        operations: operations?,
    }))
}

fn idempotency(section: &Section<'_>) -> Result<Idempotency, ConfigError> {
    match section.get_or("idempotency", "marker".to_owned())?.as_str() {
        "marker" => Ok(Idempotency::Marker),
        "idmp" => Ok(Idempotency::Idmp),
        _ => Err(section.error("idempotency", "must be \"marker\" or, from Redis 8.6, \"idmp\"")),
    }
}

fn call(
    section: &Section<'_>,
    operation: &Operation,
    idempotency: Idempotency,
    envelope: Option<&Envelope>,
) -> Result<Call, ConfigError> {
    let stream: Option<String> = section.get("stream")?;
    if let Some(Err(problem)) = stream.as_deref().map(check_stream) {
        section.wrong(section.error("stream", problem));
    }
    let call = |remembered| Call { stream, envelope: envelope.cloned(), remembered };
    let contract = &operation.contract;
    let problem = match (contract.dedupe, contract.window) {
        (Dedupe::None, _) => return Ok(call(Remembered::No)),
        (Dedupe::Lookup, _) => {
            "a stream cannot be asked for an entry by its key: dedupe must be \"key\" with a window, or \"none\""
        }
        (Dedupe::Key, None) => {
            "dedupe = \"key\" needs a window: it is how long the marker of a key lives, such as window = \"24h\""
        }
        (Dedupe::Key, Some(Window::For(window))) if window < Duration::from_secs(1) => {
            "window must be at least 1s"
        }
        (Dedupe::Key, Some(Window::For(window))) if idempotency == Idempotency::Idmp && window > IDMP_MAX => {
            "window must not exceed 24h: a stream remembers for no longer (IDMP-DURATION)"
        }
        (Dedupe::Key, Some(Window::Forever)) if idempotency == Idempotency::Idmp => {
            "window must be at most 24h: a stream remembers for no longer (IDMP-DURATION)"
        }
        _ if contract.can_probe => "a stream cannot be asked for an entry: leave the probe out",
        (Dedupe::Key, Some(Window::For(window))) => {
            return Ok(call(Remembered::For(window)));
        }
        (Dedupe::Key, Some(Window::Forever)) => {
            return Ok(call(Remembered::Forever));
        }
    };
    Err(section.error("contract", problem))
}

impl Streams {
    /// The operation's call; `None` when the configuration does not have it.
    pub(super) fn call(&self, operation: Option<&str>) -> Option<&Call> {
        operation.map_or(Some(&self.default), |name| self.operations.get(name))
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        std::iter::once(&self.default).chain(self.operations.values())
    }

    /// Where the marker of `key` stands: in the slot of its stream, wherever a cluster keeps that. The length of the stream's name
    /// keeps two streams apart whose names differ by what another's key begins with.
    pub(super) fn marker(&self, stream: &str, key: &str) -> String {
        format!("{}{{{}}}:{}:{stream}:{key}", self.marker_prefix, slot_tag(stream), stream.len())
    }
}

impl Configured for Streams {
    fn credential_sha256(&self, secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
        let url = self.broker.resolve(secrets).map_err(|(key, problem)| format!("{key} {problem}"))?;
        let account = self.account();
        Ok(url.password().map(|password| pinned::sha256_of(&[&account, url.username(), password])))
    }

    fn account(&self) -> String {
        // Effects may name their streams themselves: two downstreams of one server may write to the same.
        let keys = match self.idempotency {
            Idempotency::Marker => &self.marker_prefix,
            Idempotency::Idmp => &self.producer,
        };
        format!("{} {keys}", self.broker.account())
    }

    fn origin(&self) -> Option<String> {
        Some(self.broker.origin())
    }

    fn request_sha256(&self, operation: Option<&str>) -> [u8; 32] {
        let call = self.call(operation).unwrap_or(&self.default);
        let remembered = if call.remembered == Remembered::No { "no" } else { "yes" };
        pinned::sha256_of(&[
            "redis",
            RENDERER_VERSION,
            &self.account(),
            call.stream.as_deref().unwrap_or_default(),
            &format!("{:?} {remembered}", self.idempotency),
            &self.key_prefix,
            &call.envelope.as_ref().map(Envelope::pinned).unwrap_or_default(),
        ])
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.ca.is_some() && !self.broker.may_use("rediss") {
            warnings
                .push("ca is given, and url is redis://, which speaks no TLS: write rediss://".to_owned());
        }
        if self.broker.has_login() && self.broker.is_plain_beyond_loopback("redis") {
            warnings.push("url is redis://: the password travels in the clear; write rediss://".to_owned());
        }
        if self.idempotency == Idempotency::Idmp && self.calls().any(|call| call.remembered != Remembered::No)
        {
            warnings.push("idempotency is \"idmp\": a stream also forgets by number (IDMP-MAXSIZE, at most 10000 keys); set it above what is sent within the window".to_owned());
        }
        warnings
    }

    fn build(&self, secrets: &Secrets) -> Result<Arc<dyn Downstream>, (String, String)> {
        let url = self.broker.resolve(secrets)?;
        let access = Access::new(&url, self.ca.as_deref())?;
        let veil = Veil::new(secrets_of(&url));
        Ok(Arc::new(RedisDownstream { streams: self.clone(), access, veil, link: Shared::default() }))
    }
}
