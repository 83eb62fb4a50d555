//! A bulk on the server: started, followed with a bar, called off when somebody says stop.

use std::time::Duration;

use aftercommit_dashboard::api::json::{BulkJson, BulkWishJson, PreviewJson};
use indicatif::ProgressBar;

use super::Remote;
use crate::cli::{Exit, Signals, exit::exit_of, talk};

/// How often one looks how far it is.
const EVERY: Duration = Duration::from_millis(250);
/// A dashboard that does not answer is asked again after this long, so many times.
const PATIENCE: Duration = Duration::from_secs(2);
const MISSED_MAX: u32 = 15;

impl Remote {
    /// What a bulk would do. Nothing is done.
    ///
    /// # Errors
    ///
    /// When it is refused, or the dashboard is away.
    pub(crate) async fn preview(&self, wish: &BulkWishJson) -> anyhow::Result<PreviewJson> {
        self.post(&["bulk"], &BulkWishJson { dry_run: true, ..wish.clone() }).await
    }

    /// Starts a bulk and follows it to its end; `true` when somebody stopped it.
    ///
    /// # Errors
    ///
    /// When it is refused, or the dashboard goes away; then it goes on there.
    pub(crate) async fn bulk(
        &self,
        wish: &BulkWishJson,
        bar: &ProgressBar,
    ) -> anyhow::Result<(BulkJson, bool)> {
        let mut signals = Signals::listen()?;
        let started: BulkJson = self.post(&["bulk"], wish).await?;
        let id = started.id.to_string();
        let (mut stopped, mut missed) = (false, 0);
        loop {
            let bulk: BulkJson = match self.get(&["bulk", &id], &[]).await {
                Ok(bulk) => bulk,
                // It goes on there: a dashboard that is started again is waited for.
                Err(problem) if exit_of(&problem) == Exit::Unreachable && missed < MISSED_MAX => {
                    missed += 1;
                    tokio::time::sleep(PATIENCE).await;
                    continue;
                }
                Err(problem) => {
                    return Err(problem
                        .context(format!("bulk {id} goes on at the dashboard, and cannot be followed")));
                }
            };
            missed = 0;
            bar.set_length(u64::from(bulk.total));
            bar.set_position(
                u64::from(bulk.done) + u64::from(bulk.refused) + u64::from(bulk.stale) + u64::from(bulk.gone),
            );
            if bulk.finished_at.is_some() {
                bar.finish_and_clear();
                return Ok((bulk, stopped));
            }
            tokio::select! {
                () = tokio::time::sleep(EVERY) => {}
                _ = signals.next(), if !stopped => {
                    stopped = true;
                    bar.suspend(|| talk!("Stopping: what was begun is finished first."));
                    // It may have ended in this moment.
                    let cancelled: anyhow::Result<BulkJson> = self.post(&["bulk", &id, "cancel"], &serde_json::json!({})).await;
                    if let Err(problem) = cancelled {
                        tracing::debug!(%problem, "the bulk could not be called off");
                    }
                }
            }
        }
    }
}
