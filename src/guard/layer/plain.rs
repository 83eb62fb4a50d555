//! The way of a request without a key: its transaction, if its handler asked for one, ends before its answer leaves.

use std::{future::Future, pin::pin};

use http::Response;
use tokio::time::timeout;

use super::{
    database::{Guardable, Trouble},
    flow::{Shared, cause, not_begun, not_done},
    problem::Problem,
    transaction::{Later, Left, Slot, Transaction, Undone, acquire},
};
use crate::guard::GuardError;

impl<DB: Guardable> Shared<DB> {
    /// Its answer, or what became of the transaction.
    pub(super) async fn unguarded<F, B>(&self, slot: &Slot<DB>, handling: F) -> Result<Response<B>, Problem>
    where
        F: Future<Output = Response<B>>,
    {
        let limit = self.settings.handler_limit;
        let mut answer = None;
        {
            let mut handling = pin!(handling);
            while answer.is_none() {
                match timeout(limit, &mut handling).await {
                    Ok(done) => answer = Some(done),
                    Err(_elapsed) if slot.is_in_use() => break,
                    // Nothing of ours is held up: it takes the time that it takes.
                    Err(_elapsed) => {}
                }
            }
        }
        match (answer, slot.close()) {
            (Some(answer), Left::Nothing) => Ok(answer),
            (None, Left::Nothing) => Err(Problem::too_long()),
            (_, Left::Lost) => Err(Problem::lost()),
            (_, Left::Kept) => {
                tracing::error!("a handler kept its transaction: it was rolled back");
                Err(Problem::kept())
            }
            (None, Left::Here(transaction)) => {
                let undone = transaction.discard().await;
                Err(if undone == Undone::Lost { plainly_lost() } else { Problem::too_long() })
            }
            (Some(answer), Left::Here(transaction)) => {
                if answer.status().is_success() || answer.status().is_redirection() {
                    self.commit_plain(transaction).await?;
                } else if transaction.undo().await == Undone::Lost {
                    return Err(plainly_lost());
                }
                Ok(answer)
            }
        }
    }

    async fn commit_plain(&self, mut transaction: Transaction<DB>) -> Result<(), Problem> {
        if !transaction.is_outermost() {
            tracing::error!("a handler left a nested transaction open: all of it is rolled back");
            let undone = transaction.discard().await;
            return Err(if undone == Undone::Lost { plainly_lost() } else { Problem::refused() });
        }
        if let Err(error) = self.in_time(transaction.release_mark()).await {
            tracing::error!(
                error = cause(&error),
                "a transaction was aborted or had ended, and its handler did not notice"
            );
            transaction.discard().await;
            return Err(not_done(Trouble::of::<DB>(&error)));
        }
        self.commit(transaction).await.map_err(|error| {
            tracing::error!(error = cause(&error), "a transaction could not be committed");
            Trouble::of_commit::<DB>(&error).map_or_else(Problem::unknown_without_key, not_done)
        })
    }
}

fn plainly_lost() -> Problem {
    tracing::error!("a transaction ended under its handler: what it wrote afterwards may be kept");
    Problem::lost()
}

/// Begins the transaction of a request without a key, which has asked for it. In the handler's future, which may be dropped: then
/// the connection is closed.
pub(super) async fn begin_later<DB: Guardable>(
    slot: &Slot<DB>,
    later: &Later<DB>,
) -> Result<Transaction<DB>, GuardError> {
    let turn = match &later.turns {
        Some(turns) => match turns.now::<DB>() {
            Some(turn) => turn,
            None => turns.wait(&later.pool).await?,
        },
        None => None,
    };
    let mut transaction = Transaction::on(acquire(&later.pool).await?, turn);
    if !slot.begins() {
        return Err(GuardError::Invalid("the request has ended before its transaction began"));
    }
    transaction.begin(&later.begin).await?;
    transaction.mark().await?;
    Ok(transaction)
}

pub(super) fn refusal<DB: Guardable>(error: &GuardError) -> Problem {
    tracing::error!(error = cause(error), "a handler's transaction could not begin");
    not_begun(Trouble::of::<DB>(error))
}
