//! Every case is written once and run on every database: `store::<module>::<case>::postgres` and `…::sqlite`.

use std::{
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    time::Duration,
};

use super::{Engine, TestDatabase, database::Way};

/// Longer than any case needs on a busy machine; a case that waits longer waits for ever.
const CASE_MAX: Duration = Duration::from_secs(600);

/// Runs `case` on a fresh database and removes it afterwards, also when the case panics.
pub(crate) fn run(engine: Engine, case: impl AsyncFnOnce(&TestDatabase)) {
    run_by(engine, Way::Direct, case);
}

/// The same for a store that connects through pgbouncer.
pub(crate) fn run_pooled(case: impl AsyncFnOnce(&TestDatabase)) {
    run_by(Engine::Postgres, Way::Pooled, case);
}

fn run_by(engine: Engine, way: Way, case: impl AsyncFnOnce(&TestDatabase)) {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .expect("a runtime starts");
    let database = runtime.block_on(TestDatabase::fresh(engine, way));
    let result = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            assert!(
                tokio::time::timeout(CASE_MAX, case(&database)).await.is_ok(),
                "the case did not end within {CASE_MAX:?}: look for a wait without an end"
            );
        });
    }));
    runtime.block_on(database.remove());
    if let Err(panic) = result {
        resume_unwind(panic);
    }
}

/// Declares a test per database for each case, an `async fn(&TestDatabase)` of the same module.
macro_rules! on_every_database {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[test]
            fn postgres() {
                $crate::support::run($crate::support::Engine::Postgres, async |db| super::$case(db).await);
            }
            #[test]
            fn sqlite() {
                $crate::support::run($crate::support::Engine::Sqlite, async |db| super::$case(db).await);
            }
        }
    )+};
}
pub(crate) use on_every_database;

/// [`on_every_database`], and once more on PostgreSQL through a transaction pooler: `…::<case>::pooled`.
macro_rules! on_every_way {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[test]
            fn postgres() {
                $crate::support::run($crate::support::Engine::Postgres, async |db| super::$case(db).await);
            }
            #[test]
            fn pooled() {
                $crate::support::run_pooled(async |db| super::$case(db).await);
            }
            #[test]
            fn sqlite() {
                $crate::support::run($crate::support::Engine::Sqlite, async |db| super::$case(db).await);
            }
        }
    )+};
}
pub(crate) use on_every_way;

/// Declares a test on PostgreSQL only, for what the other database does not have.
macro_rules! on_postgres {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[test]
            fn postgres() {
                $crate::support::run($crate::support::Engine::Postgres, async |db| super::$case(db).await);
            }
        }
    )+};
}
pub(crate) use on_postgres;

/// Declares a test on SQLite only, for what the other database does not have.
macro_rules! on_sqlite {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[test]
            fn sqlite() {
                $crate::support::run($crate::support::Engine::Sqlite, async |db| super::$case(db).await);
            }
        }
    )+};
}
pub(crate) use on_sqlite;
