//! Errors: one small enum per question that the caller can answer.

use sqlx::error::DatabaseError;

use crate::effect::InvalidEffect;

/// The database could not do what it was asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The database did not answer, or refused. Whether the transaction was committed is not known.
    #[error("the database failed while {doing}")]
    Database {
        /// What we were doing.
        doing: &'static str,
        /// What it said.
        #[source]
        source: sqlx::Error,
    },
    /// A row holds what no version of this program writes.
    #[error("{table}.{column} of row {row} cannot be read: {problem}")]
    Corrupt {
        /// Which table.
        table: &'static str,
        /// Which column.
        column: &'static str,
        /// Which row.
        row: i64,
        /// What is wrong with it.
        problem: String,
    },
    /// The schema is missing or older.
    #[error(
        "this database has schema version {found} and this program needs {needs}: run `aftercommit migrate`"
    )]
    SchemaTooOld {
        /// What it has; 0 when there is none.
        found: i32,
        /// What is needed.
        needs: i32,
    },
    /// The schema is newer.
    #[error(
        "this database has schema version {found} and this program knows {knows}: use a version of aftercommit that knows it"
    )]
    SchemaTooNew {
        /// What it has.
        found: i32,
        /// What is known.
        knows: i32,
    },
    /// The database belongs to another environment.
    #[error(
        "this database belongs to the environment {found:?}, and the configuration says {configured:?}: check the database URL"
    )]
    OtherEnvironment {
        /// What the database says.
        found: String,
        /// What the configuration says.
        configured: String,
    },
    /// Somebody else held one of our tables for too long, several times over; nothing was changed.
    #[error(
        "somebody else kept one of our tables locked, {times} times over for {seconds} s: nothing was changed. See who it is (SELECT pid, state, xact_start, query FROM pg_stat_activity ORDER BY xact_start: a dump, an open transaction), let them end, and run `aftercommit migrate` again"
    )]
    Locked {
        /// How often it was tried.
        times: u32,
        /// How long each time.
        seconds: u32,
        /// What the database said.
        #[source]
        source: sqlx::Error,
    },
    /// The URL names no database that is known, or the server cannot be used.
    #[error("{0}")]
    Unsupported(String),
    /// What was asked for cannot be meant; the database was not asked.
    #[error("{field}: {problem}")]
    Invalid {
        /// Of what was given: the field's name.
        field: &'static str,
        /// What is wrong with it and what would be right.
        problem: String,
    },
    /// A person's search was stopped, so that it takes nothing from the work.
    #[error(
        "{doing} took longer than {seconds} s and was stopped; narrow it: by downstream, state, key or time"
    )]
    TooSlow {
        /// What was being done.
        doing: &'static str,
        /// How long it may take.
        seconds: u64,
    },
}

impl StoreError {
    /// For `.map_err(StoreError::while_("claiming"))`.
    pub fn during(doing: &'static str) -> impl FnOnce(sqlx::Error) -> Self {
        move |source| Self::Database { doing, source }
    }

    /// The database could not be reached or could not do it now; a repetition may work, however long it takes. As opposed to
    /// a mistake that a repetition would make again.
    pub fn is_outage(&self) -> bool {
        let Self::Database { source, .. } = self else { return false };
        let driver = matches!(
            source,
            sqlx::Error::Io(_)
                | sqlx::Error::Tls(_)
                | sqlx::Error::PoolTimedOut
                | sqlx::Error::PoolClosed
                | sqlx::Error::WorkerCrashed
                // A server that goes away in the middle of a handshake: sqlx takes the end of the stream for an answer.
                | sqlx::Error::Protocol(_)
        );
        driver
            || self.code().is_some_and(|code| match sqlite_primary(&code) {
                // Busy, locked, out of memory, read-only, unreadable, out of space, gone.
                Some(primary) => matches!(primary, 5 | 6 | 7 | 8 | 10 | 13 | 14),
                // Connections, a read-only server (a failover), rolled back, resources, locks, operator, system.
                None => {
                    code == "25006"
                        || ["08", "40", "53", "55", "57", "58"].iter().any(|class| code.starts_with(class))
                }
            })
    }

    /// This login may not do that.
    pub fn is_forbidden(&self) -> bool {
        self.code().is_some_and(|code| code == "42501")
    }

    /// The database read what it was given and refuses a value in it: a repetition is refused too, a smaller or plainer one
    /// may pass.
    pub fn is_refusal(&self) -> bool {
        matches!(self, Self::Corrupt { .. })
            || self.code().is_some_and(|code| match sqlite_primary(&code) {
                // An error of the statement (a trigger's RAISE), too big, a constraint, a type mismatch.
                Some(primary) => matches!(primary, 1 | 18 | 19 | 20),
                // Data exceptions, constraint violations, program limits.
                None => ["22", "23", "54"].iter().any(|class| code.starts_with(class)),
            })
    }

    /// [`Self::is_refusal`], or one of our own checks on what is enqueued refused it, in words for people.
    pub fn is_refused_by_a_check(&self) -> bool {
        self.is_refusal() || self.code().is_some_and(|code| code.starts_with("AC") || code == "P0001")
    }

    /// What the database calls its error.
    fn code(&self) -> Option<String> {
        let Self::Database { source, .. } = self else { return None };
        source.as_database_error()?.code().map(std::borrow::Cow::into_owned)
    }
}

/// What a database said against a value, for whoever gave it: its sentence, its detail, and its hint. Where in which of its functions that
/// was helps nobody; nor does a detail that repeats the whole row.
pub fn said_against(said: &dyn DatabaseError) -> String {
    let repeats_the_row = said.code().is_some_and(|code| matches!(code.as_ref(), "23502" | "23514"));
    let (detail, hint) = more(said);
    let parts = [Some(said.message()), detail.filter(|_| !repeats_the_row), hint];
    parts.into_iter().flatten().map(|part| part.trim_end_matches('.')).collect::<Vec<_>>().join(". ")
}

/// What it says besides.
#[cfg(feature = "postgres")]
fn more(said: &dyn DatabaseError) -> (Option<&str>, Option<&str>) {
    let said = said.try_downcast_ref::<sqlx::postgres::PgDatabaseError>();
    said.map_or((None, None), |said| (said.detail(), said.hint()))
}

/// What it says besides: SQLite says nothing.
#[cfg(not(feature = "postgres"))]
fn more(_said: &dyn DatabaseError) -> (Option<&str>, Option<&str>) {
    (None, None)
}

/// SQLite's primary result code of an (extended) one. They have at most four digits; a SQLSTATE has five characters.
fn sqlite_primary(code: &str) -> Option<u32> {
    (code.len() < 5).then(|| code.parse::<u32>().ok()).flatten().map(|code| code & 0xff)
}

/// An effect could not be enqueued.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EnqueueError {
    /// The effect cannot be written as it is. The caller's transaction is still usable, except on PostgreSQL where the
    /// database's check refused another column than the key: then it is aborted.
    #[error(transparent)]
    Invalid(#[from] InvalidEffect),
    /// The key exists with another request. The caller's transaction is still usable.
    #[error(
        "{downstream} already has an effect with key {key} and another request (effect {id}): use another key, or the same request"
    )]
    OtherRequest {
        /// The downstream.
        downstream: String,
        /// The key.
        key: String,
        /// The effect that holds it.
        id: i64,
    },
    /// This request wrote an effect already whose key is derived from the same name. The caller's transaction is still usable.
    #[error(
        "this request has two effects for {downstream} that would have the same key {key} (effect {id}): give each a name"
    )]
    NeedsName {
        /// The downstream.
        downstream: String,
        /// The key.
        key: String,
        /// The effect that holds it.
        id: i64,
    },
    /// The database refused it, or did not answer. On PostgreSQL the caller's transaction is aborted.
    #[error("the effect could not be written")]
    Database(#[from] sqlx::Error),
}
