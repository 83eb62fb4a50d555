//! Guarantee: a broker that is killed under load and comes back loses no effect, and duplicates only where duplicates were
//! accepted by name. One file per broker; the long runs are `./tests/run --long brokers`.

#[cfg(feature = "amqp")]
mod amqp;
