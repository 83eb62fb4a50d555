//! The worker process's parts: downstream kinds, the profiles of well-known downstreams, and the configuration.
//!
//! One folder per kind. A kind translates and classifies; it never retries, sleeps, decides, or touches the store.

#[cfg(feature = "amqp")]
mod amqp;
mod cloudevents;
pub mod config;
pub mod http;
mod json;
mod message;
#[cfg(feature = "nats")]
pub mod nats;
#[cfg(any(feature = "nats", feature = "redis"))]
mod pinned;
pub mod profiles;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "nats", feature = "redis"))]
mod shared;
#[cfg(feature = "smtp")]
mod smtp;
mod socket;
#[cfg(all(test, any(feature = "nats", feature = "redis")))]
mod trial;
mod veil;
mod webhook;

/// Every kind that a downstream can be of, with the function that reads its part of the configuration.
pub(crate) const KINDS: &[(&str, config::ReadKind)] = &[
    ("http", http::read),
    ("webhook", webhook::read),
    #[cfg(feature = "smtp")]
    ("smtp", smtp::read),
    #[cfg(feature = "amqp")]
    ("amqp", amqp::read),
    #[cfg(feature = "nats")]
    ("nats", nats::read),
    #[cfg(feature = "redis")]
    ("redis", redis::read),
];
