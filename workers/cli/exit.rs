//! How a command ends: the exit code, and the sentence that says why.

use std::{io, process::ExitCode};

use aftercommit::error::{EnqueueError, StoreError};
use aftercommit_workers::config::ConfigError;

use super::talk;

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
    talk!("aftercommit: {}", sentence(problem));
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
    if let Some(store) = cause.downcast_ref::<StoreError>() {
        if matches!(store, StoreError::Unsupported(_)) {
            return Some(Exit::Usage);
        }
        return store.is_outage().then_some(Exit::Unreachable);
    }
    if let Some(enqueue) = cause.downcast_ref::<EnqueueError>() {
        if matches!(enqueue, EnqueueError::Invalid(_)) {
            return Some(Exit::Usage);
        }
        return matches!(enqueue, EnqueueError::OtherRequest { .. }).then_some(Exit::Forbidden);
    }
    if let Some(sqlx) = cause.downcast_ref::<sqlx::Error>() {
        let outage = matches!(sqlx, sqlx::Error::Io(_) | sqlx::Error::Tls(_) | sqlx::Error::PoolTimedOut);
        return outage.then_some(Exit::Unreachable);
    }
    cause.downcast_ref::<ConfigError>().map(|_| Exit::Usage)
}

/// The chain of causes as one text; a cause that repeats what was said already is left out.
pub(crate) fn sentence(problem: &anyhow::Error) -> String {
    let mut text = String::new();
    for cause in problem.chain() {
        let part = cause.to_string();
        if text.contains(part.trim_end_matches('.')) {
            continue;
        }
        if !text.is_empty() {
            text.push_str(": ");
        }
        text.push_str(&part);
    }
    text
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
        assert_eq!(exit_of(&StoreError::SchemaTooOld { found: 0, needs: 1 }.into()), Exit::Failure);
    }
}
