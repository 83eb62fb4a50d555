//! A downstream in this process that can be asked: what it is sent goes to a [`Scripted`] one, what it is asked to a script of
//! its own.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use aftercommit::{
    downstream::{Attempt, Downstream, Probe},
    outcome::{Contact, Outcome, Probed, Response, Sighting},
};
use tokio::sync::Barrier;

use super::{Scripted, eventually};

/// What a probe does.
#[derive(Clone, Debug)]
pub(crate) enum Look {
    /// Shows this.
    Shows(Sighting),
    /// Meets the test at the barrier, then again, then shows this: between the two meetings the probe is open.
    Meet(Arc<Barrier>, Sighting),
    /// Shows nothing of the effect, this of its origin, and asks to be left alone for so long.
    Tells(Contact, Option<Duration>),
    /// Meets the test at the barrier, then again, then reads another page if it may, and shows that it was applied.
    Pages(Arc<Barrier>),
    /// Never answers.
    Hang,
}

/// A downstream that can be asked.
pub(crate) struct Asked {
    /// What it is sent goes here.
    pub(crate) sent: Arc<Scripted>,
    looks: Mutex<VecDeque<Look>>,
    keys: Mutex<Vec<String>>,
}

impl Asked {
    /// Shows these in turn; after the last it shows nothing that can be relied on.
    pub(crate) fn showing(sent: &Arc<Scripted>, looks: impl IntoIterator<Item = Look>) -> Arc<Self> {
        let looks = Mutex::new(looks.into_iter().collect());
        Arc::new(Self { sent: Arc::clone(sent), looks, keys: Mutex::default() })
    }

    /// The keys that were asked about, in order.
    pub(crate) fn keys(&self) -> Vec<String> {
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Waits until `n` probes were begun.
    pub(crate) async fn asked(&self, n: usize) {
        let what = format!("{n} probes at the scripted downstream");
        eventually(Duration::from_secs(20), &what, async || (self.keys().len() >= n).then_some(())).await;
    }
}

#[async_trait::async_trait]
impl Downstream for Asked {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        self.sent.deliver(attempt).await
    }

    async fn probe(&self, probe: &Probe) -> Probed {
        if let Err(closed) = probe.may_begin() {
            return Probed::new(Sighting::Unknown, closed.to_string());
        }
        self.keys.lock().unwrap_or_else(PoisonError::into_inner).push(probe.key.clone());
        let look = self.looks.lock().unwrap_or_else(PoisonError::into_inner).pop_front();
        let sighting = match look {
            None => Sighting::Unknown,
            Some(Look::Shows(sighting)) => sighting,
            Some(Look::Meet(barrier, sighting)) => {
                barrier.wait().await;
                barrier.wait().await;
                sighting
            }
            Some(Look::Tells(contact, retry_after)) => {
                return Probed {
                    contact,
                    retry_after,
                    ..Probed::new(Sighting::Unknown, format!("{contact:?}"))
                };
            }
            Some(Look::Pages(barrier)) => {
                barrier.wait().await;
                barrier.wait().await;
                if let Err(closed) = probe.may_begin() {
                    return Probed::new(Sighting::Unknown, closed.to_string());
                }
                Sighting::Applied
            }
            Some(Look::Hang) => std::future::pending().await,
        };
        let response = (sighting == Sighting::Applied).then(|| Response {
            status: Some(200),
            body: br#"{"id":"seen"}"#.to_vec(),
            truncated: false,
        });
        Probed { response, ..Probed::new(sighting, format!("{sighting:?}")) }
    }
}
