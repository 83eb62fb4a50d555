//! The way of one request: begin, handle, store the answer, commit.
//!
//! Everything here runs in a task of its own, which a client that hangs up does not end once the transaction has begun. Branches
//! are in [`Shared::guarded`] and [`Shared::begin`]; what they call does one thing.

use std::{future::Future, panic::AssertUnwindSafe, pin::pin, sync::Arc};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use sqlx::Pool;
use tokio::{sync::Semaphore, time::timeout};
use tokio_util::task::TaskTracker;

use super::{
    answer::{Verdict, replayed, stored},
    begin::Start,
    counts::Tally,
    database::{Begin, Guardable, Session, Trouble, out_of_patience},
    guard::Settings,
    leash::Watch,
    problem::Problem,
    transaction::{Left, Slot, Transaction, Undone},
    turns::Turns,
};
use crate::guard::{Answer, GuardError, Request};

/// Why a body could not be read.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What the requests of a guard share.
pub(super) struct Shared<DB: Guardable> {
    pub(super) pool: Pool<DB>,
    pub(super) settings: Settings,
    /// How the transaction of a request with a key begins.
    pub(super) begin: Begin,
    pub(super) common: Arc<Common>,
}

/// What all layers of a guard share.
pub(super) struct Common {
    pub(super) counts: Tally,
    pub(super) turns: Arc<Turns>,
    /// As many requests with a key as may be in flight.
    pub(super) in_flight: Arc<Semaphore>,
    /// Requests that run, also those whose clients have gone. A runtime that ends drops them: they roll back.
    pub(super) tasks: TaskTracker,
}

type Answered = (response::Parts, Bytes);

/// Why there is no answer.
enum Fault {
    Panicked,
    TooLong,
    TooLarge,
    Broken(BoxError),
}

impl<DB: Guardable> Shared<DB> {
    /// A request with a key.
    pub(super) async fn guarded<F, B>(
        &self,
        request: &Request,
        watch: &Watch,
        handle: impl FnOnce(Slot<DB>) -> F,
    ) -> Response<Bytes>
    where
        F: Future<Output = Response<B>>,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let name = (request.scope.clone(), request.key.clone());
        let begun = self.begin(request, watch).await;
        self.count(request, &begun);
        let transaction = match begun {
            Ok(Start::New(transaction)) => transaction,
            Ok(Start::Replay(answer)) => return self.replay(request, answer),
            Ok(Start::InProgress) => return Problem::in_progress().response(),
            Ok(Start::Mismatch) => return Problem::mismatch().response(),
            Ok(Start::Abandoned) => return Problem::unavailable().response(),
            Err(error) => {
                let trouble = Trouble::of::<DB>(&error);
                let (scope, key, error) = (request.scope.as_str(), request.key.as_str(), cause(&error));
                if trouble == Trouble::Away && self.settings.fail_open {
                    tracing::warn!(
                        scope,
                        key,
                        error,
                        "the store is away: this request runs without a transaction"
                    );
                    let handled = self.handled(handle(Slot::named(name, None))).await;
                    return handled.map_or_else(
                        |fault| self.stopped(request, fault).response(),
                        |(head, body)| Response::from_parts(head, body),
                    );
                }
                tracing::error!(scope, key, error, "a request could not begin");
                return not_begun(trouble).response();
            }
        };
        let slot = Slot::named(name, Some(transaction));
        let handled = self.handled(handle(slot.clone())).await;
        match self.end(request, handled, slot.close()).await {
            Ok((head, body)) => Response::from_parts(head, body),
            Err(problem) => {
                if problem.is_lost() {
                    self.remember(request, problem.response()).await;
                }
                problem.response()
            }
        }
    }

    /// A repeat of a request whose transaction was lost would act again: it is told what the first one was, as far as that can
    /// still be written. Whatever fails is logged where it does.
    async fn remember(&self, request: &Request, told: Response<Bytes>) {
        let (head, body) = told.into_parts();
        match self.begin(request, &Watch::default()).await {
            Ok(Start::New(transaction)) => {
                drop(self.keep(request, transaction, Verdict::Keep, &stored(&head, &body)).await);
            }
            Ok(Start::Replay(_) | Start::InProgress | Start::Mismatch | Start::Abandoned) => {}
            Err(error) => tracing::error!(error = cause(&error), "a lost request could not be remembered"),
        }
    }

    /// The handler's answer as a whole.
    async fn handled<F, B>(&self, handling: F) -> Result<Answered, Fault>
    where
        F: Future<Output = Response<B>>,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let answering = async {
            let (head, body) = handling.await.into_parts();
            match Limited::new(pin!(body), self.settings.answer_limit).collect().await {
                Ok(body) => Ok((head, body.to_bytes())),
                Err(error) if error.is::<LengthLimitError>() => Err(Fault::TooLarge),
                Err(error) => Err(Fault::Broken(error)),
            }
        };
        // Whatever the handler shares with others is as consistent as after a panic in any other task.
        match timeout(self.settings.handler_limit, AssertUnwindSafe(answering).catch_unwind()).await {
            Ok(Ok(answered)) => answered,
            Ok(Err(_panic)) => Err(Fault::Panicked),
            Err(_elapsed) => Err(Fault::TooLong),
        }
    }

    /// Ends the transaction as the answer wants it.
    async fn end(
        &self,
        request: &Request,
        handled: Result<Answered, Fault>,
        left: Left<DB>,
    ) -> Result<Answered, Problem> {
        let transaction = match left {
            Left::Here(transaction) => transaction,
            Left::Lost => return Err(lost(request)),
            Left::Kept | Left::Nothing => {
                let (scope, key) = (request.scope.as_str(), request.key.as_str());
                tracing::error!(scope, key, "a handler kept its transaction: it is rolled back");
                return Err(handled.err().map_or_else(Problem::kept, |fault| self.stopped(request, fault)));
            }
        };
        let (head, body) = match handled {
            Ok(answered) => answered,
            Err(fault) => {
                let undone = transaction.discard().await;
                let stopped = self.stopped(request, fault);
                return Err(if undone == Undone::Lost { lost(request) } else { stopped });
            }
        };
        let verdict = Verdict::of(&head);
        if verdict == Verdict::Undo {
            if transaction.undo().await == Undone::Lost {
                return Err(lost(request));
            }
        } else {
            self.keep(request, transaction, verdict, &stored(&head, &body)).await?;
        }
        Ok((head, body))
    }

    /// Stores the answer and commits.
    async fn keep(
        &self,
        request: &Request,
        mut transaction: Transaction<DB>,
        verdict: Verdict,
        answer: &Answer,
    ) -> Result<(), Problem> {
        let (scope, key) = (request.scope.as_str(), request.key.as_str());
        let writing = finish_on(&mut transaction, self.settings.session, request, verdict, answer);
        if let Err(error) = self.in_time(writing).await {
            tracing::error!(scope, key, error = cause(&error), "an answer could not be stored");
            let trouble = Trouble::of::<DB>(&error);
            if trouble == Trouble::Lost {
                transaction.discard().await;
                return Err(lost(request));
            }
            transaction.rollback().await;
            return Err(not_done(trouble));
        }
        if !transaction.is_outermost() {
            tracing::error!(scope, key, "a handler left a nested transaction open: all of it is rolled back");
            let undone = transaction.discard().await;
            return Err(if undone == Undone::Lost { lost(request) } else { Problem::refused() });
        }
        self.commit(transaction).await.map_err(|error| {
            tracing::error!(scope, key, error = cause(&error), "a request could not be committed");
            Trouble::of_commit::<DB>(&error).map_or_else(Problem::unknown, not_done)
        })
    }

    pub(super) async fn commit(&self, mut transaction: Transaction<DB>) -> Result<(), GuardError> {
        let committing = async { Ok(transaction.commit().await?) };
        let committed = self.in_time(committing).await;
        if committed.is_err() {
            // On SQLite a COMMIT that failed leaves the transaction open.
            transaction.rollback().await;
        }
        committed
    }

    /// The database has as long as a handler. What is given up here closes its connection.
    pub(super) async fn in_time<T>(
        &self,
        work: impl Future<Output = Result<T, GuardError>>,
    ) -> Result<T, GuardError> {
        timeout(self.settings.handler_limit, work)
            .await
            .unwrap_or_else(|_elapsed| Err(out_of_patience("the database did not answer in time")))
    }

    fn replay(&self, request: &Request, answer: Answer) -> Response<Bytes> {
        replayed(answer).unwrap_or_else(|| {
            let (scope, key) = (request.scope.as_str(), request.key.as_str());
            tracing::error!(
                scope,
                key,
                "the stored answer of a request has a status or header lines that cannot be read"
            );
            Problem::corrupt().response()
        })
    }

    fn stopped(&self, request: &Request, fault: Fault) -> Problem {
        let (scope, key) = (request.scope.as_str(), request.key.as_str());
        match fault {
            Fault::Panicked => {
                tracing::error!(scope, key, "a handler panicked: its transaction is rolled back");
                Problem::panicked()
            }
            Fault::TooLong => {
                let limit_ms = self.settings.handler_limit.as_millis();
                tracing::error!(
                    scope,
                    key,
                    limit_ms,
                    "a handler took longer than its limit: its transaction is rolled back"
                );
                Problem::too_long()
            }
            Fault::TooLarge => {
                let limit = self.settings.answer_limit;
                tracing::error!(
                    scope,
                    key,
                    limit,
                    "an answer is longer than its limit: the transaction is rolled back"
                );
                Problem::answer_too_large(limit)
            }
            Fault::Broken(error) => {
                tracing::error!(
                    scope,
                    key,
                    error,
                    "an answer's body broke off: the transaction is rolled back"
                );
                Problem::answer_broken()
            }
        }
    }

    fn count(&self, request: &Request, start: &Result<Start<DB>, GuardError>) {
        let (scope, key) = (request.scope.as_str(), request.key.as_str());
        let outcome = match start {
            Ok(Start::New(_)) => self.common.counts.first(),
            Ok(Start::Replay(_)) => self.common.counts.replayed(),
            Ok(Start::InProgress) => self.common.counts.in_progress(),
            Ok(Start::Mismatch) => self.common.counts.mismatch(),
            Ok(Start::Abandoned) | Err(_) => return,
        };
        tracing::debug!(scope, key, outcome, "a guarded request");
    }
}

async fn finish_on<DB: Guardable>(
    transaction: &mut Transaction<DB>,
    session: Session,
    request: &Request,
    verdict: Verdict,
    answer: &Answer,
) -> Result<(), GuardError> {
    if verdict == Verdict::Remember {
        transaction.back_to_mark().await?;
    }
    DB::finish_request(transaction.connection_mut(), session, request, answer).await
}

/// Before the handler ran.
pub(super) fn not_begun(trouble: Trouble) -> Problem {
    match trouble {
        Trouble::Refused | Trouble::Lost => Problem::unusable(),
        Trouble::Busy | Trouble::Conflict | Trouble::Away => not_done(trouble),
    }
}

/// Nothing was committed, and that is certain; or it was without the guard.
pub(super) fn not_done(trouble: Trouble) -> Problem {
    match trouble {
        Trouble::Busy => Problem::busy(),
        Trouble::Conflict => Problem::conflict(),
        Trouble::Away => Problem::unavailable(),
        Trouble::Lost => Problem::lost(),
        Trouble::Refused => Problem::refused(),
    }
}

fn lost(request: &Request) -> Problem {
    let (scope, key) = (request.scope.as_str(), request.key.as_str());
    tracing::error!(
        scope,
        key,
        "a transaction ended under its handler: what it wrote afterwards may be kept, and a repeat acts again"
    );
    Problem::lost()
}

/// What the log says, and no client.
pub(super) fn cause(error: &GuardError) -> String {
    if let GuardError::Database(error) = error { error.to_string() } else { error.to_string() }
}
