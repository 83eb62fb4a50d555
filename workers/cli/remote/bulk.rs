//! A bulk on the server: started, followed with a bar, called off when somebody says stop.

use std::time::Duration;

use aftercommit_dashboard::api::json::{BulkJson, BulkWishJson, PreviewJson};
use indicatif::ProgressBar;

use super::Remote;
use crate::cli::{
    Exit, Signals,
    exit::{exit_of, sentence},
    fail, talk,
};

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

    /// Starts a bulk and follows it to its end; `true` when somebody stopped it here.
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
        let follower = Follower {
            remote: self,
            bar,
            id: started.id.to_string(),
            state: started.state,
            stop: Stop::Unsaid,
            missed: 0,
            refused: false,
        };
        follower.follow(&mut signals).await
    }
}

/// Whether somebody said stop.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stop {
    /// Nobody.
    Unsaid,
    /// Somebody did, and the dashboard does not know it yet.
    Said,
    /// It has ended there, or ends.
    Taken,
}

/// Whoever waits for the end of a bulk.
struct Follower<'a> {
    remote: &'a Remote,
    bar: &'a ProgressBar,
    id: String,
    /// As it was told last.
    state: String,
    stop: Stop,
    /// Looks in a row that were not answered.
    missed: u32,
    /// It was told that the dashboard did not take the word to stop.
    refused: bool,
}

impl Follower<'_> {
    async fn follow(mut self, signals: &mut Signals) -> anyhow::Result<(BulkJson, bool)> {
        loop {
            let step = async {
                if self.stop == Stop::Said {
                    self.call_off().await;
                }
                let bulk = self.look().await?;
                let ended = bulk.as_ref().is_some_and(|bulk| bulk.finished_at.is_some());
                if !ended {
                    tokio::time::sleep(if bulk.is_some() { EVERY } else { PATIENCE }).await;
                }
                anyhow::Ok(bulk.filter(|_| ended))
            };
            // A look that is dropped has changed nothing; a word to stop that is dropped is said again.
            let ended = tokio::select! {
                ended = step => ended?,
                _ = signals.next() => {
                    self.told_to_stop()?;
                    None
                }
            };
            if let Some(bulk) = ended {
                self.bar.finish_and_clear();
                return Ok((bulk, self.stop != Stop::Unsaid));
            }
        }
    }

    /// Somebody said stop: it is called off, as soon as the dashboard hears it. Whoever says it again does not want to wait for that.
    fn told_to_stop(&mut self) -> anyhow::Result<()> {
        match self.stop {
            Stop::Unsaid => {
                self.stop = Stop::Said;
                self.say("Stopping: what was begun is finished first.");
                Ok(())
            }
            Stop::Said => Err(fail(
                Exit::Unreachable,
                format!(
                    "the dashboard was not reached to call bulk {} off, and the bulk may go on there: stop it on its page",
                    self.id
                ),
            )),
            Stop::Taken => Err(fail(
                Exit::Unreachable,
                format!(
                    "bulk {} is over, and the dashboard does not say what it did: look at its page",
                    self.id
                ),
            )),
        }
    }

    async fn call_off(&mut self) {
        let path = ["bulk", self.id.as_str(), "cancel"];
        let cancelled: anyhow::Result<BulkJson> = self.remote.post(&path, &serde_json::json!({})).await;
        let problem = match cancelled {
            Ok(_) => {
                self.stop = Stop::Taken;
                return;
            }
            Err(problem) => problem,
        };
        if matches!(exit_of(&problem), Exit::Forbidden | Exit::NotFound) {
            // It ended in this moment.
            self.stop = Stop::Taken;
            return;
        }
        if !self.refused {
            self.refused = true;
            let why = sentence(&problem);
            self.say(&format!(
                "Bulk {} goes on: the dashboard did not take the word to stop ({why}). It is said again until it does; a second signal \
                 leaves the bulk to itself.",
                self.id
            ));
        }
    }

    /// How far it is; `None`: the dashboard did not answer.
    async fn look(&mut self) -> anyhow::Result<Option<BulkJson>> {
        let looked: anyhow::Result<BulkJson> = self.remote.get(&["bulk", &self.id], &[]).await;
        match looked {
            Ok(bulk) => {
                self.missed = 0;
                self.tell(&bulk);
                Ok(Some(bulk))
            }
            // It goes on there: a dashboard that is started again is waited for.
            Err(problem) if exit_of(&problem) == Exit::Unreachable && self.missed < MISSED_MAX => {
                self.missed += 1;
                Ok(None)
            }
            Err(problem) => {
                let id = &self.id;
                Err(problem.context(format!("bulk {id} goes on at the dashboard, and cannot be followed")))
            }
        }
    }

    /// Moves the bar, and says what somebody else did to the bulk: a bar that stands still says nothing.
    fn tell(&mut self, bulk: &BulkJson) {
        let through =
            bulk.done.saturating_add(bulk.refused).saturating_add(bulk.stale).saturating_add(bulk.gone);
        self.bar.set_length(u64::from(bulk.total));
        self.bar.set_position(u64::from(through));
        let (id, total) = (bulk.id, bulk.total);
        match (self.state.as_str(), bulk.state.as_str()) {
            (before, now) if before == now => return,
            (_, "paused") => self.say(&format!(
                "Bulk {id} was paused at the dashboard, {through} of {total} through. It goes on when it is resumed there; Ctrl-C calls it \
                 off."
            )),
            ("paused", "running") => self.say(&format!("Bulk {id} goes on.")),
            _ => {}
        }
        self.state.clone_from(&bulk.state);
    }

    fn say(&self, words: &str) {
        self.bar.suspend(|| talk!("{words}"));
    }
}
