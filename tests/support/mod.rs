//! What the tests stand on: a fresh database per test, builders, a scripted downstream, bounded waiting, printed seeds.

mod asked;
mod builders;
mod cases;
mod chance;
mod database;
mod enqueue;
mod guard;
mod report;
mod scripted;
mod sql;
mod wait;

pub(crate) use asked::{Asked, Look};
pub(crate) use builders::{
    LEASE, Settling, WINDOW, Worker, answer, key_terms, lookup_terms, none_terms, registered, registration,
    served, terms, want,
};
pub(crate) use cases::{on_every_database, on_every_way, on_postgres, on_sqlite, run, run_pooled};
pub(crate) use chance::Chance;
pub(crate) use database::{Engine, TestDatabase, Unmigrated, Way, insert_sql};
pub(crate) use guard::{answered, request};
pub(crate) use report::Report;
pub(crate) use scripted::{Script, Scripted};
pub(crate) use sql::{Row, Sql, Tx, close_session, on_session};
pub(crate) use wait::{eventually, within};
