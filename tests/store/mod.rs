//! The conformance suite of the stores: every case on every database, against `Store`, `Inspect`, `Operate` and `Enqueue`,
//! and against the SQL that applications and operators rely on.

mod stage;

mod answers;
mod claims;
mod clocks;
mod contention;
mod durability;
mod encoding;
mod enqueue;
mod functions;
mod late;
mod leases;
mod orphans;
mod probes;
mod registry;
mod roles;
mod schema;
mod settles;
mod sweeps;
mod validation;
mod verbs;
mod views;
mod visibility;
mod wake;
