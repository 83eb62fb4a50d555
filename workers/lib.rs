//! The worker process's parts: downstream kinds, the profiles of well-known downstreams, and the configuration.
//!
//! One folder per kind. A kind translates and classifies; it never retries, sleeps, decides, or touches the store.

#[cfg(feature = "amqp")]
mod amqp;
pub mod config;
pub mod http;
mod json;
mod message;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "nats", feature = "redis"))]
mod pinned;
pub mod profiles;
#[cfg(feature = "smtp")]
mod smtp;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "nats", feature = "redis"))]
mod shared;
#[cfg(all(test, any(feature = "nats", feature = "redis")))]
mod trial;
mod veil;

/// Every kind that a downstream can be of, with the function that reads its part of the configuration.
pub(crate) const KINDS: &[(&str, config::ReadKind)] = &[
    ("http", http::read),
    #[cfg(feature = "smtp")]
    ("smtp", smtp::read),
    #[cfg(feature = "amqp")]
    ("amqp", amqp::read),
    #[cfg(feature = "nats")]
    ("nats", nats::read),
    #[cfg(feature = "redis")]
    ("redis", redis::read),
];
