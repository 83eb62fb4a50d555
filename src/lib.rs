//! Side effects, after the commit, once.
//!
//! A business transaction writes the *intent* of a side effect as a row ([`Outbox::enqueue`], or a plain INSERT from any
//! language); background workers carry it out, forwarding one idempotency key for the whole life of the effect, and park
//! what cannot be known. This library is the vocabulary, the decisions, the stores and the engine. It knows no downstream
//! and no HTTP: kinds live in `aftercommit-workers`.
//!
//! Modules in reading order: the vocabulary ([`effect`], [`key`], [`state`], [`contract`], [`outcome`], [`schedule`]), the
//! heart ([`decision`], [`verb`]), the seams ([`downstream`], with [`conformance`] for those who write one, and [`store`]), the
//! engine ([`engine`]), and the library side of
//! enqueueing ([`enqueue`]), of incoming requests ([`guard`]), and of those who send them ([`client`]).

pub mod check;
pub mod client;
pub mod clock;
pub mod conformance;
pub mod contract;
pub mod decision;
pub mod downstream;
pub mod effect;
pub mod engine;
pub mod enqueue;
pub mod error;
pub mod follow;
pub mod guard;
pub mod key;
pub mod outcome;
pub mod schedule;
pub mod state;
pub mod store;
pub mod verb;
pub mod visible;

pub use effect::{EffectId, IdempotencyKey, NewEffect};
pub use enqueue::{Enqueue, Enqueued, Outbox};
