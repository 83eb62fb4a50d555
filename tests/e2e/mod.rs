//! Real processes, real servers, real kills: the promise of the README, checked from outside.
//!
//! Nothing here knows how a worker works. A test starts the binary, disturbs it, and lets [`checker`] compare three
//! witnesses that the workers cannot influence: the ledger of a proxy, the payment server's own list, and the database.

#![expect(clippy::disallowed_methods, reason = "a test harness reads the machine's clock")]

mod benches;
mod budgets;
mod checker;
mod checker_can_fail;
mod clock;
mod commands;
mod database;
#[cfg(feature = "amqp")]
mod dev_order;
pub(crate) mod environment;
mod examples;
mod field;
mod fleet_bulk;
mod fleet_doctor;
mod fleet_metrics;
mod foreign;
mod guard;
mod guide;
mod hostile;
mod inbox;
mod ledger;
mod ledger_proxy;
mod localstripe;
mod mail;
mod main_run;
mod manual;
mod network;
mod pool;
mod pooler;
mod postgres_killed;
pub(crate) mod processes;
mod profiles;
mod requests;
mod reservation;
mod retention;
mod secrets;
pub(crate) mod servers;
mod shop;
mod signals;
mod sources;
mod sqlite;
pub(crate) mod tcp_proxy;
mod told;
mod unit_file;
mod viewer;
mod webhooks;
mod windows;
mod wire;
