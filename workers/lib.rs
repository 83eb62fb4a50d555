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

use config::{KeyPlace, Kind};

/// Every kind that a downstream can be of.
pub(crate) const KINDS: &[Kind] = &[
    Kind { name: "http", read: http::read, key: KeyPlace::Written },
    Kind { name: "webhook", read: webhook::read, key: KeyPlace::Own("webhook-id") },
    #[cfg(feature = "smtp")]
    Kind { name: "smtp", read: smtp::read, key: KeyPlace::Own("Message-ID (see key_header)") },
    #[cfg(feature = "amqp")]
    Kind { name: "amqp", read: amqp::read, key: KeyPlace::Own("message id") },
    #[cfg(feature = "nats")]
    Kind { name: "nats", read: nats::read, key: KeyPlace::Own("message id, Nats-Msg-Id") },
    #[cfg(feature = "redis")]
    Kind { name: "redis", read: redis::read, key: KeyPlace::Own("marker (see idempotency)") },
];
