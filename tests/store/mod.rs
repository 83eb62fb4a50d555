//! The conformance suite of the stores: every case on every database, against `Store`, `Inspect`, `Operate` and `Enqueue`,
//! and against the SQL that applications and operators rely on.

mod stage;

mod answers;
mod budgets;
mod bulks;
mod claims;
mod clocks;
mod contention;
mod doctor;
mod durability;
mod encoding;
mod enqueue;
mod functions;
mod guard;
mod hijack;
mod hold;
mod inbox;
mod late;
mod leases;
mod matrix;
mod orphans;
mod outlook;
mod pauses;
mod probes;
mod purging;
mod recipients;
mod registry;
mod reissue;
mod resend;
mod retention;
mod roles;
mod rollouts;
mod schema;
pub(crate) mod search;
mod settings;
mod settles;
mod sweeps;
mod traffic;
mod validation;
mod verbs;
mod views;
mod visibility;
mod wake;
