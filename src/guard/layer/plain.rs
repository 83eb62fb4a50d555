//! The way of a request without a key: its transaction, if its handler asked for one, ends before its answer leaves.

use std::{future::Future, pin::pin};

use http::Response;
use tokio::time::timeout;

use super::{
    database::{Guardable, Trouble},
    flow::{Shared, cause, not_done},
    problem::Problem,
    transaction::{Left, Slot, Transaction},
};

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
            (_, Left::Kept) => {
                tracing::error!("a handler kept its transaction: it was rolled back");
                Err(Problem::kept())
            }
            (None, Left::Here(transaction)) => {
                transaction.discard().await;
                Err(Problem::too_long())
            }
            (Some(answer), Left::Here(transaction)) => {
                if answer.status().is_success() || answer.status().is_redirection() {
                    self.commit_plain(transaction).await?;
                } else {
                    transaction.rollback().await;
                }
                Ok(answer)
            }
        }
    }

    async fn commit_plain(&self, mut transaction: Transaction<DB>) -> Result<(), Problem> {
        let sound = async { Ok(transaction.is_sound().await?) };
        if let Err(error) = self.in_time(sound).await {
            tracing::error!(
                error = cause(&error),
                "a transaction was aborted, and its handler did not notice"
            );
            transaction.rollback().await;
            return Err(not_done(Trouble::of::<DB>(&error)));
        }
        if !transaction.is_outermost() {
            tracing::error!("a handler left a nested transaction open: all of it is rolled back");
            transaction.discard().await;
            return Err(Problem::refused());
        }
        self.commit(transaction).await.map_err(|error| {
            tracing::error!(error = cause(&error), "a transaction could not be committed");
            match Trouble::of::<DB>(&error) {
                Trouble::Away => Problem::unknown_without_key(),
                trouble @ (Trouble::Busy | Trouble::Conflict | Trouble::Refused) => not_done(trouble),
            }
        })
    }
}
