//! One connection that all attempts share: made by one of them at a time, thrown away when it broke, made anew by the next.
//! It never retries by itself: who needs a connection tries once, and whoever waited meanwhile gets the same answer.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU64, Ordering},
};

use aftercommit::outcome::{Finding, Outcome, Phase};

/// Why there is no connection: nothing was sent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Refused {
    /// A sentence for people, without secrets.
    pub(crate) reason: String,
    /// It refuses us, whatever the effect: credentials, configuration.
    pub(crate) refuses_us: bool,
}

impl Refused {
    /// It could not be reached.
    pub(crate) fn unreachable(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), refuses_us: false }
    }

    /// The attempt's time was up before there was a connection.
    pub(crate) fn late(place: &str) -> Self {
        Self::unreachable(format!(
            "not connected to {place} within the timeout: look whether it is up, and at its load, or raise timeout"
        ))
    }

    /// It does not take us, or is not what the configuration says.
    pub(crate) fn us(reason: impl Into<String>) -> Self {
        Self { reason: reason.into(), refuses_us: true }
    }

    /// What that is for an attempt.
    pub(crate) fn outcome(self) -> Outcome {
        Outcome {
            refuses_us: self.refuses_us,
            ..Outcome::new(Finding::NotApplied, Phase::Connect, self.reason)
        }
    }
}

/// A connection that can break.
pub(crate) trait Connection: Send + Sync {
    /// Whether another attempt may use it.
    fn is_usable(&self) -> bool;
}

/// The place of the one connection.
pub(crate) struct Shared<C> {
    current: Mutex<Option<Arc<C>>>,
    /// Held by whoever connects; the last failure, for those who waited for it.
    turn: tokio::sync::Mutex<Option<Refused>>,
    failures: AtomicU64,
}

impl<C> Default for Shared<C> {
    fn default() -> Self {
        Self { current: Mutex::new(None), turn: tokio::sync::Mutex::new(None), failures: AtomicU64::new(0) }
    }
}

impl<C: Connection> Shared<C> {
    /// The connection; made by `connect` when there is none that can be used, and nobody else just failed to make one.
    pub(crate) async fn get(
        &self,
        connect: impl Future<Output = Result<C, Refused>>,
    ) -> Result<Arc<C>, Refused> {
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        let seen = self.failures.load(Ordering::SeqCst);
        let mut failure = self.turn.lock().await;
        if let Some(connection) = self.usable() {
            return Ok(connection);
        }
        if self.failures.load(Ordering::SeqCst) != seen
            && let Some(refused) = &*failure
        {
            return Err(refused.clone());
        }
        match connect.await {
            Ok(connection) => {
                let connection = Arc::new(connection);
                *self.current() = Some(Arc::clone(&connection));
                *failure = None;
                Ok(connection)
            }
            Err(refused) => {
                self.failures.fetch_add(1, Ordering::SeqCst);
                *failure = Some(refused.clone());
                Err(refused)
            }
        }
    }

    /// One that broke goes, so that nothing of it is kept until the next attempt.
    fn usable(&self) -> Option<Arc<C>> {
        let mut current = self.current();
        if current.as_ref().is_some_and(|connection| !connection.is_usable()) {
            *current = None;
        }
        current.clone()
    }

    fn current(&self) -> std::sync::MutexGuard<'_, Option<Arc<C>>> {
        self.current.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::AtomicBool;

    use tokio::{sync::Notify, task::JoinSet};

    use super::*;

    struct Fake(AtomicBool);

    impl Connection for Fake {
        fn is_usable(&self) -> bool {
            self.0.load(Ordering::SeqCst)
        }
    }

    #[tokio::test]
    async fn a_thousand_attempts_make_one_connection() {
        let (shared, made) = (Arc::new(Shared::default()), Arc::new(AtomicU64::new(0)));
        let mut attempts = JoinSet::new();
        for _ in 0..1000 {
            let (shared, made) = (Arc::clone(&shared), Arc::clone(&made));
            attempts.spawn(async move {
                let connect = async {
                    made.fetch_add(1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    Ok(Fake(AtomicBool::new(true)))
                };
                shared.get(connect).await.map(|_fake| ())
            });
        }
        assert!(attempts.join_all().await.into_iter().all(|got| got.is_ok()));
        assert_eq!(made.load(Ordering::SeqCst), 1);
        shared.get(std::future::pending()).await.unwrap().0.store(false, Ordering::SeqCst);
        let again = shared.get(async { Ok(Fake(AtomicBool::new(true))) }).await.unwrap();
        assert!(again.is_usable(), "one that broke is made anew");
    }

    #[tokio::test]
    async fn those_who_waited_share_the_failure_and_those_who_come_later_try_again() {
        let (shared, tried) = (Arc::new(Shared::<Fake>::default()), Arc::new(AtomicU64::new(0)));
        let (begun, gate) = (Arc::new(AtomicU64::new(0)), Arc::new(Notify::new()));
        let mut attempts = JoinSet::new();
        for _ in 0..50 {
            let (shared, tried) = (Arc::clone(&shared), Arc::clone(&tried));
            let (begun, gate) = (Arc::clone(&begun), Arc::clone(&gate));
            attempts.spawn(async move {
                begun.fetch_add(1, Ordering::SeqCst);
                let connect = async {
                    tried.fetch_add(1, Ordering::SeqCst);
                    gate.notified().await;
                    Err(Refused::unreachable("away"))
                };
                shared.get(connect).await.err()
            });
        }
        // On one thread, each that has begun has come as far as it can: one connects, the others wait for it.
        while begun.load(Ordering::SeqCst) < 50 {
            tokio::task::yield_now().await;
        }
        gate.notify_one();
        let answers = attempts.join_all().await;
        assert!(answers.iter().all(|answer| *answer == Some(Refused::unreachable("away"))), "{answers:?}");
        assert_eq!(tried.load(Ordering::SeqCst), 1);
        assert!(shared.get(async { Ok(Fake(AtomicBool::new(true))) }).await.is_ok());
    }
}
