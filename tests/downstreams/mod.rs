//! Every kind against servers and libraries that nobody here wrote, and what every downstream owes the engine.

#[cfg(feature = "amqp")]
pub(crate) mod amqp;
#[cfg(any(feature = "nats", feature = "redis"))]
mod brokers;
mod certificates;
#[cfg(all(feature = "amqp", feature = "nats", feature = "redis"))]
mod cloudevents;
mod conformance;
#[cfg(feature = "nats")]
mod nats;
mod outage;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "smtp")]
mod smtp;
mod webhook;
