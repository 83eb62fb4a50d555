//! How a request with a key begins: it is looked for, it waits, it takes its transaction.

use std::time::Duration;

use tokio::time::{Instant, sleep};

use super::{
    database::{Guardable, Trouble},
    flow::Shared,
    leash::Watch,
    transaction::{Transaction, acquire},
};
use crate::guard::{Answer, Begun, GuardError, Request};

/// How often a request that met another transaction is begun anew, before its client is asked to.
const CONFLICTS_MAX: u32 = 5;
/// Between two looks for the answer of the first, where a second waits; each pause is twice the one before.
const LOOK_FIRST: Duration = Duration::from_millis(10);
const LOOK_MAX: Duration = Duration::from_millis(200);

/// What the store says to a request.
pub(super) enum Start<DB: Guardable> {
    New(Transaction<DB>),
    Replay(Answer),
    InProgress,
    Mismatch,
    /// Nobody waits for it any more, and nothing was begun.
    Abandoned,
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

impl<DB: Guardable> Shared<DB> {
    /// Begins, as often as it takes to be told something.
    pub(super) async fn begin(&self, request: &Request, watch: &Watch) -> Result<Start<DB>, GuardError> {
        // `None`: longer than any clock runs.
        let deadline = Instant::now().checked_add(self.settings.wait);
        let mut pause = LOOK_FIRST;
        let mut conflicts = 0;
        loop {
            let said = self.begin_once(request, watch).await;
            if matches!(said, Ok(Start::New(_))) {
                return said;
            }
            let somebody_waits = watch.wait();
            let left =
                deadline.map_or(LOOK_MAX, |deadline| deadline.saturating_duration_since(Instant::now()));
            match said {
                Ok(Start::InProgress) if somebody_waits && !left.is_zero() => {
                    // Without a connection: the first one may be waiting for it.
                    sleep(pause.min(left)).await;
                    pause = LOOK_MAX.min(pause * 2);
                }
                Err(error)
                    if somebody_waits
                        && conflicts < CONFLICTS_MAX
                        && Trouble::of::<DB>(&error) == Trouble::Conflict =>
                {
                    conflicts += 1;
                }
                said => return said,
            }
        }
    }

    async fn begin_once(&self, request: &Request, watch: &Watch) -> Result<Start<DB>, GuardError> {
        let mut connection = acquire(&self.pool).await?;
        let looked = self.in_time(DB::look(&mut connection, request)).await?;
        if let Some(known) = Start::known(looked) {
            return Ok(known);
        }
        let mut transaction = match self.common.turns.now::<DB>() {
            Some(turn) => Transaction::on(connection, turn),
            None => {
                drop(connection);
                let turn = self.common.turns.wait(&self.pool).await?;
                Transaction::on(acquire(&self.pool).await?, turn)
            }
        };
        if !watch.begin() {
            return Ok(Start::Abandoned);
        }
        let begun = async {
            transaction.begin(&self.begin).await?;
            DB::begin_request(transaction.connection_mut(), self.settings.session, request).await
        };
        let said = match self.in_time(begun).await.map(Start::known) {
            Ok(None) => return Ok(Start::New(transaction)),
            Ok(Some(known)) => Ok(known),
            Err(error) => Err(error),
        };
        transaction.rollback().await;
        said
    }
}
