//! The way of one request: begin, handle, store the answer, commit.
//!
//! Everything here runs in a task of its own, which a client that hangs up does not end. Branches are in
//! [`Shared::guarded`] and [`Shared::begin`]; what they call does one thing.

use std::{future::Future, panic::AssertUnwindSafe, pin::pin, sync::Arc, time::Duration};

use bytes::Bytes;
use futures_util::FutureExt as _;
use http::{Response, response};
use http_body_util::{BodyExt as _, LengthLimitError, Limited};
use sqlx::Pool;
use tokio::time::{Instant, sleep, timeout};

use super::{
    answer::{Verdict, replayed, stored},
    counts::Tally,
    database::{Guardable, Session, Trouble},
    guard::Settings,
    problem::Problem,
    transaction::{Left, Slot, Transaction},
};
use crate::guard::{Answer, Begun, GuardError, Request};

/// Why a body could not be read.
pub(super) type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// How often a request that met another transaction is begun anew, before its client is asked to.
const CONFLICTS_MAX: u32 = 5;
/// Between two looks for the answer of the first, where a second waits; each pause is twice the one before.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// What the requests of a guard share.
pub(super) struct Shared<DB: Guardable> {
    pub(super) pool: Pool<DB>,
    pub(super) settings: Settings,
    pub(super) counts: Arc<Tally>,
}

/// What the store says to a request.
enum Start<DB: Guardable> {
    New(Transaction<DB>),
    Replay(Answer),
    InProgress,
    Mismatch,
}

impl<DB: Guardable> Start<DB> {
    /// What is known already; `None`: nothing.
    fn known(begun: Begun) -> Option<Self> {
        match begun {
            Begun::New => None,
            Begun::Replay(answer) => Some(Self::Replay(answer)),
            Begun::InProgress => Some(Self::InProgress),
            Begun::Mismatch => Some(Self::Mismatch),
        }
    }
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
        handle: impl FnOnce(Slot<DB>) -> F,
    ) -> Response<Bytes>
    where
        F: Future<Output = Response<B>>,
        B: http_body::Body<Data = Bytes, Error: Into<BoxError>>,
    {
        let begun = self.begin(request).await;
        self.count(request, &begun);
        let transaction = match begun {
            Ok(Start::New(transaction)) => transaction,
            Ok(Start::Replay(answer)) => return self.replay(request, answer),
            Ok(Start::InProgress) => return Problem::in_progress().response(),
            Ok(Start::Mismatch) => return Problem::mismatch().response(),
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
                    let handled = self.handled(handle(Slot::absent())).await;
                    return handled.map_or_else(
                        |fault| self.stopped(request, fault).response(),
                        |(head, body)| Response::from_parts(head, body),
                    );
                }
                tracing::error!(scope, key, error, "a request could not begin");
                return not_begun(trouble).response();
            }
        };
        let slot = Slot::with(transaction);
        let handled = self.handled(handle(slot.clone())).await;
        match self.end(request, handled, slot.close()).await {
            Ok((head, body)) => Response::from_parts(head, body),
            Err(problem) => problem.response(),
        }
    }

    /// Begins, as often as it takes to be told something.
    async fn begin(&self, request: &Request) -> Result<Start<DB>, GuardError> {
        let deadline = Instant::now() + self.settings.wait;
        let mut pause = LOOK_FIRST;
        let mut conflicts = 0;
        loop {
            match self.begin_once(request).await {
                Ok(Start::InProgress) if Instant::now() < deadline => {
                    // Without a connection: the first one may be waiting for it.
                    sleep(pause.min(deadline - Instant::now())).await;
                    pause = LOOK_MAX.min(pause * 2);
                }
                Err(error) if conflicts < CONFLICTS_MAX && Trouble::of::<DB>(&error) == Trouble::Conflict => {
                    conflicts += 1;
                }
                said => return said,
            }
        }
    }

    async fn begin_once(&self, request: &Request) -> Result<Start<DB>, GuardError> {
        let mut transaction = Transaction::acquire(&self.pool).await?;
        match self.in_time(begin_on(&mut transaction, self.settings.session, request)).await {
            Ok(None) => Ok(Start::New(transaction)),
            Ok(Some(known)) => {
                transaction.rollback().await;
                Ok(known)
            }
            Err(error) => {
                transaction.rollback().await;
                Err(error)
            }
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
            Left::Kept | Left::Nothing => {
                let (scope, key) = (request.scope.as_str(), request.key.as_str());
                tracing::error!(scope, key, "a handler kept its transaction: it is rolled back");
                return Err(handled.err().map_or_else(Problem::kept, |fault| self.stopped(request, fault)));
            }
        };
        let (head, body) = match handled {
            Ok(answered) => answered,
            Err(fault) => {
                transaction.discard().await;
                return Err(self.stopped(request, fault));
            }
        };
        let verdict = Verdict::of(&head);
        if verdict == Verdict::Undo {
            transaction.rollback().await;
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
            transaction.rollback().await;
            return Err(not_done(Trouble::of::<DB>(&error)));
        }
        if !transaction.is_outermost() {
            tracing::error!(scope, key, "a handler left a nested transaction open: all of it is rolled back");
            transaction.discard().await;
            return Err(Problem::refused());
        }
        self.commit(transaction).await.map_err(|error| {
            tracing::error!(scope, key, error = cause(&error), "a request could not be committed");
            not_committed(Trouble::of::<DB>(&error))
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
        timeout(self.settings.handler_limit, work).await.unwrap_or_else(|_elapsed| {
            let silent =
                std::io::Error::new(std::io::ErrorKind::TimedOut, "the database did not answer in time");
            Err(GuardError::Database(sqlx::Error::Io(silent)))
        })
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
            Ok(Start::New(_)) => self.counts.first(),
            Ok(Start::Replay(_)) => self.counts.replayed(),
            Ok(Start::InProgress) => self.counts.in_progress(),
            Ok(Start::Mismatch) => self.counts.mismatch(),
            Err(_) => return,
        };
        tracing::debug!(scope, key, outcome, "a guarded request");
    }
}

/// What is known of the request; `None`: it has begun, in this transaction.
async fn begin_on<DB: Guardable>(
    transaction: &mut Transaction<DB>,
    session: Session,
    request: &Request,
) -> Result<Option<Start<DB>>, GuardError> {
    if let Some(known) = Start::known(DB::look(transaction.connection_mut(), request).await?) {
        return Ok(Some(known));
    }
    transaction.begin(DB::BEGIN_TO_WRITE).await?;
    Ok(Start::known(DB::begin_request(transaction.connection_mut(), session, request).await?))
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
        Trouble::Refused => Problem::unusable(),
        Trouble::Busy | Trouble::Conflict | Trouble::Away => not_done(trouble),
    }
}

/// Before COMMIT was sent: it is certainly rolled back.
pub(super) fn not_done(trouble: Trouble) -> Problem {
    match trouble {
        Trouble::Busy => Problem::busy(),
        Trouble::Conflict => Problem::conflict(),
        Trouble::Away => Problem::unavailable(),
        Trouble::Refused => Problem::refused(),
    }
}

/// After COMMIT was sent.
fn not_committed(trouble: Trouble) -> Problem {
    match trouble {
        Trouble::Away => Problem::unknown(),
        Trouble::Busy | Trouble::Conflict | Trouble::Refused => not_done(trouble),
    }
}

/// What the log says, and no client.
pub(super) fn cause(error: &GuardError) -> String {
    if let GuardError::Database(error) = error { error.to_string() } else { error.to_string() }
}
