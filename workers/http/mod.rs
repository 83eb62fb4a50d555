//! The `http` kind: an effect is one request, sent once; its answer is read by the contract's rules.
//!
//! It follows no redirect, resends nothing, uses no proxy. `config` reads the table, `request` renders (with `template`,
//! `form`, `json`), `send` makes the exchange and proves how far it got, `classify` reads the answer.

mod classify;
mod config;
mod form;
mod json;
mod predicate;
mod probe;
mod request;
mod retry_after;
mod send;
mod template;
#[cfg(test)]
mod tests;

use std::sync::Arc;

use aftercommit::{
    clock::{Clock, SystemClock},
    downstream::{Attempt, Downstream, Probe},
    outcome::{About, Finding, Outcome, Phase, Probed, Response, Sighting},
};
use reqwest::header::{HeaderName, HeaderValue};

pub(crate) use config::read;

use self::{classify::classify, config::Http, retry_after::retry_after, send::Failure};

/// An `http` downstream, ready to be called.
pub(crate) struct HttpDownstream {
    http: Http,
    client: reqwest::Client,
    credential: Option<(HeaderName, HeaderValue)>,
    clock: Arc<dyn Clock>,
}

impl HttpDownstream {
    fn new(http: Http, client: reqwest::Client, credential: Option<(HeaderName, HeaderValue)>) -> Self {
        Self { http, client, credential, clock: Arc::new(SystemClock) }
    }
}

#[async_trait::async_trait]
impl Downstream for HttpDownstream {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let deadline = tokio::time::Instant::now() + attempt.timeout;
        let effect = &attempt.effect;
        let Some(call) = self.http.call(effect.operation.as_deref()) else {
            let name = effect.operation.as_deref().unwrap_or_default();
            let why = format!("the configuration of {} has no operation {name:?}", effect.downstream);
            return Outcome::new(Finding::NotApplied, Phase::Render, why);
        };
        let mut rendered = match request::render(&self.http, call, effect, &attempt.key) {
            Ok(rendered) => rendered,
            Err(problem) => {
                return Outcome::new(
                    Finding::Rejected(About::ThisAttempt),
                    Phase::Render,
                    format!("not sent: {problem}"),
                );
            }
        };
        send::authenticate(&mut rendered.headers, self.credential.as_ref());
        let place = self.http.place();
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Connect, send::not_begun(closed));
        }
        match send::exchange(&self.client, rendered, &place, deadline, self.http.max_response).await {
            Ok(answer) => classify(&call.answers, answer, &place, self.clock.wall()),
            Err(Failure::NotBegun(why)) => Outcome::new(Finding::NotApplied, Phase::Connect, why),
            Err(Failure::NoAnswer(why)) => Outcome::new(Finding::Unknown, Phase::Send, why),
            Err(Failure::Cut(answer, why)) => Outcome {
                retry_after: retry_after(&answer.headers, self.clock.wall()),
                response: Some(Response {
                    status: Some(answer.status),
                    body: answer.body,
                    truncated: answer.truncated,
                }),
                ..Outcome::new(Finding::Unknown, Phase::Answer, format!("HTTP {}, but {why}", answer.status))
            },
        }
    }
    async fn probe(&self, probe: &Probe) -> Probed {
        let call = self.http.call(probe.effect.operation.as_deref());
        match call.and_then(|call| Some((call, call.probe.as_ref()?))) {
            Some((call, question)) => self.ask(call, question, probe).await,
            None => Probed::new(Sighting::Impossible, "the configuration has no probe for it"),
        }
    }
}
