//! Kinds of downstreams against the servers that they are for.

#[cfg(any(feature = "nats", feature = "redis"))]
mod brokers;
#[cfg(feature = "nats")]
mod nats;
mod outage;
#[cfg(feature = "redis")]
mod redis;
