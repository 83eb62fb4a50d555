//! The conformance suite of the stores: every case on every database, against `Store`, `Inspect`, `Operate` and `Enqueue`,
//! and against the SQL that applications and operators rely on.

mod claims;
mod schema;
