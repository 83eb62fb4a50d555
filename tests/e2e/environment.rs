//! What `tests/run` provides, by environment variable. Nothing is skipped: what is missing fails with the remedy.

use std::path::PathBuf;

fn required(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests through ./tests/run"))
}

/// A PostgreSQL server in which databases may be made.
pub(super) fn postgres_url() -> String {
    required("AFTERCOMMIT_TEST_POSTGRES")
}

/// The same through pgbouncer: transaction mode, two server connections per database.
pub(super) fn pgbouncer_url() -> String {
    required("AFTERCOMMIT_TEST_PGBOUNCER")
}

/// A program of the PostgreSQL installation.
pub(super) fn postgres_program(name: &str) -> PathBuf {
    PathBuf::from(required("AFTERCOMMIT_TEST_PG_BIN")).join(name)
}

/// A RabbitMQ in which queues may be made.
pub(super) fn amqp_url() -> String {
    required("AFTERCOMMIT_TEST_AMQP")
}

/// A Python with the packages of `tests/requirements.txt`.
pub(crate) fn python() -> String {
    required("AFTERCOMMIT_TEST_PYTHON")
}

/// `autostart.js` of stripe-stateful-mock.
pub(super) fn stripe_mock() -> String {
    required("AFTERCOMMIT_TEST_STRIPE_MOCK")
}

/// nginx, for tests that start one of their own.
pub(crate) fn nginx() -> String {
    required("AFTERCOMMIT_TEST_NGINX")
}

/// The localstripe program.
pub(super) fn localstripe() -> String {
    required("AFTERCOMMIT_TEST_LOCALSTRIPE")
}

/// A file of the repository.
pub(crate) fn file(path: &str) -> PathBuf {
    let root = PathBuf::from(env!("CARGO_MANIFEST_DIR"));
    root.parent().expect("the workspace is above").join(path)
}

/// A file of `examples/`.
pub(crate) fn example(name: &str) -> PathBuf {
    file("examples").join(name)
}

/// A script beside these tests.
pub(super) fn script(name: &str) -> PathBuf {
    file("tests/e2e").join(name)
}
