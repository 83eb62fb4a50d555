//! Guarantee: a broker that is killed under load and stays away loses no effect, and duplicates only where the contract allows
//! it. One file per broker.

#[cfg(feature = "amqp")]
mod amqp;
#[cfg(any(feature = "amqp", feature = "nats", feature = "redis"))]
mod load;
#[cfg(all(feature = "amqp", feature = "nats", feature = "redis"))]
mod long;
#[cfg(feature = "nats")]
mod nats;
#[cfg(feature = "redis")]
mod redis;
