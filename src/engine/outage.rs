//! Outages of the database: waited out without noise, however long.

use std::time::Duration;

use crate::error::StoreError;

/// A database that does not answer: waited for with growing pauses, spoken of once every ten seconds.
#[derive(Debug, Default)]
pub(super) struct Outages {
    tries: u32,
    spoken: Option<tokio::time::Instant>,
}

/// Between two log lines about the same outage.
const OUTAGE_LOG_INTERVAL: Duration = Duration::from_secs(10);
/// The longest pause between two tries: a database that is back must be noticed within two seconds.
const OUTAGE_PAUSE_MAX: Duration = Duration::from_secs(1);

impl Outages {
    pub(super) fn report(&mut self, doing: &str, error: &StoreError) {
        self.tries += 1;
        let now = tokio::time::Instant::now();
        if self.spoken.is_none_or(|spoken| now.duration_since(spoken) >= OUTAGE_LOG_INTERVAL) {
            self.spoken = Some(now);
            let cause = std::error::Error::source(error).map(ToString::to_string).unwrap_or_default();
            tracing::warn!(%error, cause, tries = self.tries, "{doing} failed; trying again until it works");
        }
    }

    pub(super) fn over(&mut self) {
        if self.spoken.take().is_some() {
            tracing::info!(tries = self.tries, "the database answers again");
        }
        self.tries = 0;
    }

    pub(super) async fn wait(&self) {
        let pause = Duration::from_millis(50).saturating_mul(1 << self.tries.min(6)).min(OUTAGE_PAUSE_MAX);
        tokio::time::sleep(pause).await;
    }
}
