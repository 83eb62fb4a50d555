//! Every kind against servers and libraries that nobody here wrote, and what every downstream owes the engine.

#![expect(clippy::disallowed_methods, reason = "a test harness waits for processes by the machine's clock")]

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(any(feature = "nats", feature = "redis"))]
mod brokers;
mod conformance;
#[cfg(feature = "nats")]
mod nats;
mod outage;
#[cfg(feature = "redis")]
mod redis;
#[cfg(feature = "smtp")]
mod smtp;
mod webhook;
