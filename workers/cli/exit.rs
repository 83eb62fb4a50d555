//! How a command ends: the exit code, and the sentence that says why.

use std::{io, process::ExitCode};

use aftercommit::{
    error::{EnqueueError, StoreError, said_against},
    visible::clean_lines,
};
use aftercommit_workers::config::ConfigError;

use super::{context::invocation, remote::Refused, source::file_read, talk};

/// The exit codes of the public interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Exit {
    /// Done.
    Ok,
    /// It did not work.
    Failure,
    /// The command line or the configuration is wrong.
    Usage,
    /// There is no such thing.
    NotFound,
    /// The effect's state forbids it.
    Forbidden,
    /// Some of it was done.
    Partly,
    /// The database does not answer.
    Unreachable,
}

impl Exit {
    /// The number.
    pub(crate) const fn code(self) -> u8 {
        match self {
            Self::Ok => 0,
            Self::Failure => 1,
            Self::Usage => 2,
            Self::NotFound => 3,
            Self::Forbidden => 4,
            Self::Partly => 5,
            Self::Unreachable => 69,
        }
    }
}

impl From<Exit> for ExitCode {
    fn from(exit: Exit) -> Self {
        Self::from(exit.code())
    }
}

/// An error that knows its exit code; its message is for people.
#[derive(Debug, thiserror::Error)]
#[error("{message}")]
struct Failure {
    exit: Exit,
    message: String,
}

/// An error with this exit code and message.
pub(crate) fn fail(exit: Exit, message: impl Into<String>) -> anyhow::Error {
    Failure { exit, message: message.into() }.into()
}

/// Says on stderr what went wrong; returns the exit code. A reader that went away (`| head`) is no error.
pub(crate) fn report(problem: &anyhow::Error) -> Exit {
    if problem.chain().any(|cause| {
        cause.downcast_ref::<io::Error>().is_some_and(|cause| cause.kind() == io::ErrorKind::BrokenPipe)
    }) {
        return Exit::Ok;
    }
    talk!("aftercommit: {}", clean_lines(&sentence(problem)));
    exit_of(problem)
}

/// The exit code of an error: the first cause in its chain that knows one.
pub(crate) fn exit_of(problem: &anyhow::Error) -> Exit {
    problem.chain().find_map(known).unwrap_or(Exit::Failure)
}

fn known(cause: &(dyn std::error::Error + 'static)) -> Option<Exit> {
    if let Some(failure) = cause.downcast_ref::<Failure>() {
        return Some(failure.exit);
    }
    if let Some(refused) = cause.downcast_ref::<Refused>() {
        return Some(refused.exit);
    }
    if let Some(store) = cause.downcast_ref::<StoreError>() {
        return of_store(store);
    }
    if let Some(enqueue) = cause.downcast_ref::<EnqueueError>() {
        if matches!(enqueue, EnqueueError::Invalid(_)) {
            return Some(Exit::Usage);
        }
        return matches!(enqueue, EnqueueError::OtherRequest { .. }).then_some(Exit::Forbidden);
    }
    if let Some(sqlx) = cause.downcast_ref::<sqlx::Error>() {
        let outage = matches!(sqlx, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut);
        return misconfigured(sqlx).then_some(Exit::Usage).or(outage.then_some(Exit::Unreachable));
    }
    cause.downcast_ref::<ConfigError>().map(|_| Exit::Usage)
}

fn of_store(problem: &StoreError) -> Option<Exit> {
    let wrong = matches!(
        problem,
        StoreError::Unsupported(_)
            | StoreError::SchemaTooOld { .. }
            | StoreError::SchemaTooNew { .. }
            | StoreError::OtherEnvironment { .. }
    );
    let wrong = wrong || matches!(problem, StoreError::Database { source, .. } if misconfigured(source));
    wrong.then_some(Exit::Usage).or(problem.is_outage().then_some(Exit::Unreachable))
}

/// Whether the database URL, or what it names, is wrong: repeating it will not help.
fn misconfigured(problem: &sqlx::Error) -> bool {
    if matches!(problem, sqlx::Error::Configuration(_)) {
        return true;
    }
    let code = problem.as_database_error().and_then(|said| said.code()).unwrap_or_default();
    if code.len() == 5 {
        // No such database; no such role, or not with this password.
        return code == "3D000" || code.starts_with("28");
    }
    // SQLite: no permission, read-only, cannot be opened, no database.
    code.parse::<u32>().is_ok_and(|code| matches!(code & 0xff, 3 | 8 | 14 | 26))
}

/// The chain of causes as one text; a cause that repeats what was said already is left out.
pub(crate) fn sentence(problem: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in problem.chain() {
        let sqlx = cause.downcast_ref::<sqlx::Error>();
        let part = match (sqlx, cause.downcast_ref::<StoreError>()) {
            (Some(sqlx), _) => database_words(sqlx),
            // What it was connected for stands before it, and what went wrong behind it.
            (None, Some(StoreError::Database { doing: "connecting" | "reading the database URL", .. }))
                if !text.is_empty() =>
            {
                continue;
            }
            (None, Some(store)) => store_words(store),
            (None, None) => cause.to_string(),
        };
        if !text.contains(part.trim_end_matches('.')) {
            if !text.is_empty() {
                text.push_str(": ");
            }
            text.push_str(&part);
        }
        if sqlx.is_some() {
            // Its own causes are in its words.
            break;
        }
    }
    text
}

fn store_words(problem: &StoreError) -> String {
    if let StoreError::OtherEnvironment { found, configured } = problem
        && let Some(file) = file_read()
    {
        return format!(
            "this database belongs to the environment {found:?}, and the configuration {} says {configured:?}: check the database URL, \
             or name the configuration of {found:?} (--config)",
            file.display()
        );
    }
    let StoreError::SchemaTooOld { found, needs } = problem else { return problem.to_string() };
    let command = format!("{} migrate", invocation());
    if *found == 0 {
        return format!("there is no aftercommit schema in this database yet: run `{command}`");
    }
    format!("this database has schema version {found} and this program needs {needs}: run `{command}`")
}

/// What a database said, without the driver's additions, and the next step where there is one.
fn database_words(problem: &sqlx::Error) -> String {
    if let Some(said) = problem.as_database_error() {
        let message = said.message();
        let step = match said.code().unwrap_or_default().as_ref() {
            "3D000" => ": create it (createdb), or correct the database URL",
            "28000" if message.contains("does not exist") => {
                ": create it (createuser), or correct the database URL"
            }
            "53300" => {
                ": raise max_connections (or the CONNECTION LIMIT), or run fewer workers: each takes ten connections at most"
            }
            "55P03" => {
                ": somebody holds a lock on it; look for a long transaction in pg_stat_activity, and try again when it has ended"
            }
            "57014" => {
                ": it took longer than a minute; ask for less (--downstream, --state, --limit), or look at what keeps the server busy"
            }
            "25006" => {
                ": it is read-only (a standby, or demoted); connect to the primary, or let the address follow the failover"
            }
            "28P01" => ": correct the password or the user in the database URL",
            _ => "",
        };
        return format!("{}{step}", said_against(said));
    }
    if let sqlx::Error::Configuration(why) = problem {
        // One part of the driver wraps another's error of the same name.
        let why = why.to_string();
        let why = why.trim_start_matches("error with configuration: ");
        return format!("the database URL cannot be used: {why}");
    }
    if let sqlx::Error::Io(why) = problem {
        // A server that is there and cannot be used has said so in full.
        if why.kind() == io::ErrorKind::ReadOnlyFilesystem {
            return why.to_string();
        }
        let step = if matches!(why.kind(), io::ErrorKind::ConnectionRefused | io::ErrorKind::NotFound) {
            "is the server running, and are host and port of the database URL its own?"
        } else if why.to_string().contains("lookup address") {
            "correct the host in the database URL, or look at the name service"
        } else {
            "look whether the server runs and the network lets this machine reach it"
        };
        return format!("{why}: {step}");
    }
    problem.to_string()
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn causes_are_one_sentence_and_not_repeated() {
        let inner = anyhow::anyhow!("the disk is full");
        let problem = Err::<(), _>(inner).context("writing the page: the disk is full").unwrap_err();
        assert_eq!(sentence(&problem), "writing the page: the disk is full");
        let problem = anyhow::anyhow!("the disk is full").context("writing the page");
        assert_eq!(sentence(&problem), "writing the page: the disk is full");
    }

    #[test]
    fn a_failure_keeps_its_exit_code_through_context() {
        let problem = fail(Exit::NotFound, "no effect 7").context("showing it");
        assert_eq!(exit_of(&problem), Exit::NotFound);
        assert_eq!(exit_of(&anyhow::anyhow!("x")), Exit::Failure);
    }

    #[test]
    fn an_outage_is_told_from_a_mistake() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let outage = StoreError::during("connecting")(sqlx::Error::Io(refused));
        assert_eq!(exit_of(&outage.into()), Exit::Unreachable);
        assert_eq!(exit_of(&StoreError::Unsupported("no".to_owned()).into()), Exit::Usage);
        let other = StoreError::OtherEnvironment { found: "a".to_owned(), configured: "b".to_owned() };
        for mistake in [StoreError::SchemaTooOld { found: 0, needs: 1 }, other] {
            assert_eq!(exit_of(&mistake.into()), Exit::Usage);
        }
        let options =
            StoreError::during("reading the database URL")(sqlx::Error::Configuration("sslmode".into()));
        assert_eq!(exit_of(&options.into()), Exit::Usage);
    }

    #[test]
    fn what_can_be_done_is_said_once_and_with_the_command() {
        let refused = io::Error::from(io::ErrorKind::ConnectionRefused);
        let outage = anyhow::Error::from(StoreError::during("connecting")(sqlx::Error::Io(refused)));
        let words = sentence(&outage.context("the database postgres://localhost/shop"));
        assert_eq!(
            words,
            "the database postgres://localhost/shop: connection refused: is the server running, and are host and port \
             of the database URL its own?"
        );
        let words = sentence(&StoreError::SchemaTooOld { found: 0, needs: 1 }.into());
        assert!(words.ends_with(" migrate`"), "{words}");
    }
}
