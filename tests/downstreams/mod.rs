//! Kinds of downstreams against the servers that they are for.

#[cfg(feature = "amqp")]
mod amqp;
mod outage;
