//! The guard in front of a shop's handlers, in this process, on either database: a request that comes again, in whatever way, acts
//! once and is told the same.

mod ask;
mod shop;

mod client;
mod hangups;
mod limits;
mod lost;
mod outages;
mod queues;
mod refusals;
mod replays;
mod scopes;
mod strays;
mod transactions;
