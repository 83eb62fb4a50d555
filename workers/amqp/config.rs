//! What an `amqp` downstream's table says, validated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{contract::Dedupe, downstream::Downstream, effect::Effect};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::{AmqpDownstream, connect::Address, render::RENDERER_VERSION, topology::Topology};
use crate::{
    cloudevents::Envelope,
    config::{Broker, ConfigError, Configured, Operation, Secrets, Section, Size, Source},
    socket,
};

const SCHEMES: &[&str] = &["amqp", "amqps"];
/// How soon a dead connection is noticed: after two of these without a sign of life. RabbitMQ's own 60 s would leave a
/// worker waiting for confirms for two minutes (<https://www.rabbitmq.com/docs/heartbeats>).
const HEARTBEAT: Duration = Duration::from_secs(10);
/// The smallest limit that brokers have unless they are told otherwise: RabbitMQ 4 takes 16 MiB, 3.x took 128.
const MAX_MESSAGE_SIZE: usize = 16 << 20;
/// A connection that does not come about in this time will not help an attempt.
const CONNECT_TIMEOUT_MAX: Duration = Duration::from_secs(10);
/// Longest name of an exchange or queue, and longest routing key, in bytes.
const NAME_MAX: usize = 255;

/// Where an operation's messages go.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Route {
    /// Empty: the default exchange, which routes to the queue that the routing key names.
    pub(super) exchange: String,
    /// Where the effect has no target.
    pub(super) routing_key: String,
}

/// An `amqp` downstream.
#[derive(Clone, Debug)]
pub(super) struct Amqp {
    pub(super) broker: Broker,
    /// Its dotted path in the configuration: how the broker's operators see us.
    name: String,
    key_prefix: String,
    /// A file with certificates to trust besides the system's.
    ca: Option<String>,
    heartbeat: Duration,
    pub(super) connect_timeout: Duration,
    /// A nack is then the answer of the one queue there is.
    pub(super) single_queue: bool,
    pub(super) max_message_size: usize,
    pub(super) topology: Arc<Topology>,
    pub(super) envelope: Option<Envelope>,
    default: Route,
    operations: BTreeMap<String, Route>,
}

/// Reads the part of the table that is this kind's.
pub(crate) fn read(source: &Source<'_>) -> Result<Arc<dyn Configured>, ConfigError> {
    let section = source.section;
    let broker = section.noting(Broker::read(section, "url", SCHEMES));
    let ca: Option<String> = section.get("ca")?;
    let heartbeat = section.get_or("heartbeat", HEARTBEAT)?;
    if !(Duration::from_secs(1)..=Duration::from_secs(600)).contains(&heartbeat) {
        section.wrong(section.error("heartbeat", "must be from 1s to 10m"));
    }
    let Size(max_message_size) = section.get_or("max_message_size", Size(MAX_MESSAGE_SIZE))?;
    let nowhere = Route { exchange: String::new(), routing_key: String::new() };
    let default = section.noting(route(section, &nowhere));
    let contract = section.noting(check_contract(section, source.default));
    let operations = source.named(|section, operation| {
        let route = section.noting(route(section, default.as_ref().unwrap_or(&nowhere)));
        check_contract(section, operation).and(route)
    });
    let timeouts = source.operations.iter().map(|(_, _, operation)| operation.timeout);
    let fastest = timeouts.fold(source.default.timeout, Duration::min);
    let (single_queue, topology) =
        (section.get_or("single_queue", false)?, section.noting(Topology::read(section)));
    let envelope = section.noting(Envelope::read(section));
    contract?;
    Ok(Arc::new(Amqp {
        broker: broker?,
        name: section.dotted(""),
        key_prefix: source.key_prefix.to_owned(),
        ca,
        heartbeat,
        connect_timeout: (fastest / 2).min(CONNECT_TIMEOUT_MAX),
        single_queue,
        max_message_size,
        topology: Arc::new(topology?),
        envelope: envelope?,
        default: default?,
        operations: operations?,
    }))
}

fn route(section: &Section<'_>, over: &Route) -> Result<Route, ConfigError> {
    let name = |key: &str, default: &str| {
        let text = section.get_or(key, default.to_owned())?;
        if text.len() > NAME_MAX {
            return Err(section.error(key, format!("must have at most {NAME_MAX} bytes")));
        }
        Ok(text)
    };
    let exchange = section.noting(name("exchange", &over.exchange));
    let routing_key = section.noting(name("routing_key", &over.routing_key));
    Ok(Route { exchange: exchange?, routing_key: routing_key? })
}

/// No broker that speaks AMQP 0-9-1 knows a key again, and none can be asked what it was given.
fn check_contract(section: &Section<'_>, operation: &Operation) -> Result<(), ConfigError> {
    let word = match operation.contract.dedupe {
        Dedupe::None => return Ok(()),
        Dedupe::Key => "key",
        Dedupe::Lookup => "lookup",
    };
    Err(section.error(
        "contract",
        format!(
            "dedupe = \"{word}\" is not possible: a broker neither knows a message id again nor can be asked for one; write \
             {{ dedupe = \"none\", on_unknown = \"retry\" }} where consumers know message ids (the inbox), \"hold\" where not"
        ),
    ))
}

impl Amqp {
    /// Where the operation's messages go; an unknown one never comes this far.
    pub(super) fn route(&self, operation: Option<&str>) -> &Route {
        operation.and_then(|name| self.operations.get(name)).unwrap_or(&self.default)
    }

    pub(super) fn has(&self, operation: Option<&str>) -> bool {
        operation.is_none_or(|name| self.operations.contains_key(name))
    }

    /// Every exchange that messages go to, once each.
    pub(super) fn exchanges(&self) -> Vec<&str> {
        let mut exchanges: Vec<&str> = std::iter::once(&self.default)
            .chain(self.operations.values())
            .map(|route| route.exchange.as_str())
            .collect();
        exchanges.sort_unstable();
        exchanges.dedup();
        exchanges
    }

    /// The queues that are reached by the default exchange, where the configuration names them.
    pub(super) fn default_exchange_queues(&self) -> Vec<&str> {
        let mut queues: Vec<&str> = std::iter::once(&self.default)
            .chain(self.operations.values())
            .filter(|route| route.exchange.is_empty() && !route.routing_key.is_empty())
            .map(|route| route.routing_key.as_str())
            .collect();
        queues.sort_unstable();
        queues.dedup();
        queues
    }
}

impl Configured for Amqp {
    fn known_as(&self, _effect: &Effect, key: &str) -> Option<(&'static str, String)> {
        Some(("Message id", key.to_owned()))
    }

    fn account(&self) -> String {
        self.broker.account()
    }

    fn origin(&self) -> Option<String> {
        Some(self.broker.origin())
    }

    /// The key space of a message id is nobody's: no broker looks at it.
    fn credential_sha256(&self, _secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
        Ok(None)
    }

    fn request_sha256(&self, operation: Option<&str>) -> [u8; 32] {
        let route = self.route(operation);
        let mut hash = Sha256::new();
        // Each part with its length in front, so that no two configurations share their bytes.
        for part in [
            "amqp",
            &RENDERER_VERSION.to_string(),
            &self.broker.account(),
            &route.exchange,
            &route.routing_key,
            &self.key_prefix,
            &self.envelope.as_ref().map(Envelope::pinned).unwrap_or_default(),
        ] {
            hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(part.as_bytes());
        }
        hash.finalize().into()
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.topology.warnings();
        if self.ca.is_some() && !self.broker.may_use("amqps") {
            warnings.push("ca is given, and url is amqp://, which speaks no TLS: write amqps://".to_owned());
        }
        let origin = self.broker.origin();
        let local = ["amqp://127.0.0.1", "amqp://localhost", "amqp://[::1]"];
        if origin.starts_with("amqp://") && !local.iter().any(|place| origin.starts_with(place)) {
            warnings
                .push("url is amqp://: the password travels in the clear; amqps:// encrypts it".to_owned());
        }
        warnings
    }

    fn build(&self, secrets: &Secrets) -> Result<Arc<dyn Downstream>, (String, String)> {
        let url = self.broker.resolve(secrets)?;
        check_url(&url).map_err(|problem| ("url".to_owned(), problem))?;
        let ca = match &self.ca {
            None => None,
            Some(path) => {
                let wrong = |problem| ("ca".to_owned(), problem);
                socket::certificates(path).map_err(wrong)?;
                let unreadable = |error| wrong(format!("the file {path} cannot be read: {error}"));
                Some(std::fs::read_to_string(path).map_err(unreadable)?)
            }
        };
        let address = Address::new(&url, ca, self.heartbeat, &self.name)
            .map_err(|problem| ("url".to_owned(), problem))?;
        Ok(Arc::new(AmqpDownstream::new(self.clone(), address)))
    }
}

/// The error repeats nothing of the URL.
fn check_url(url: &Url) -> Result<(), String> {
    if url.query().is_some() || url.fragment().is_some() {
        return Err(
            "must not have parameters (\"?…\"): heartbeat and timeout are keys of their own".to_owned()
        );
    }
    // RFC-like reading of <https://www.rabbitmq.com/docs/uri-spec>: nothing after the slash is the name "".
    if url.path() == "/" {
        return Err(
            "ends with a slash, which names the virtual host \"\": leave it out for the default one, \"/\""
                .to_owned(),
        );
    }
    if url.path().get(1..).is_some_and(|path| path.contains('/')) {
        return Err("names a virtual host with a slash: write it as %2f".to_owned());
    }
    Ok(())
}
