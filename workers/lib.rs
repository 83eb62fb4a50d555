//! The worker process's parts: downstream kinds, the profiles of well-known downstreams, and the configuration.
//!
//! One folder per kind. A kind translates and classifies; it never retries, sleeps, decides, or touches the store.

mod cloudevents;
pub mod config;
pub mod http;
mod json;
mod message;
pub mod profiles;
mod veil;
mod webhook;

/// Every kind that a downstream can be of, with the function that reads its part of the configuration.
pub(crate) const KINDS: &[(&str, config::ReadKind)] = &[("http", http::read), ("webhook", webhook::read)];
