//! What somebody sees first: `demo`, a story with a kill in it, and `dev`, a playground with an order service ([`shop`]). Both
//! bring their own downstreams ([`sink`], [`catcher`]) and need neither configuration nor installation. Not for production: the sinks
//! remember in memory only.

mod act;
mod catcher;
mod dev;
mod fault;
mod figures;
mod letter;
mod orders;
mod shop;
mod sink;
mod stage;
mod story;

pub(crate) use dev::{DevArgs, run as dev};
pub(crate) use story::{DemoArgs, run as demo};
