//! The `http` kind: an effect is one request, sent once; its answer is read by the contract's rules.
//!
//! It follows no redirect, resends nothing, uses no proxy. `config` reads the table, `request` renders (with `template`,
//! `form`), `egress` guards URLs that no operator wrote, `send` makes the exchange and proves how far it got,
//! `classify` reads the answer, `check` looks without an effect.

mod account;
mod check;
mod classify;
mod config;
mod egress;
mod form;
mod headers;
mod predicate;
mod probe;
mod request;
mod retry_after;
mod send;
mod template;
#[cfg(test)]
pub(crate) mod tests;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    check::Check,
    clock::{Clock, SystemClock, Timestamp},
    downstream::{Attempt, Downstream, Probe},
    effect::Effect,
    outcome::{About, Finding, Outcome, Phase, Probed, Response, Sighting},
};
use reqwest::{
    dns::Resolve,
    header::{HeaderName, HeaderValue},
};
use tokio::time::Instant;
use url::Url;

// What the webhook kind sends and judges by.
pub(crate) use classify::Asked;
pub(crate) use config::read;
pub(crate) use egress::{Egress, Guarded, SystemNames};
pub(crate) use headers::{headers, is_ours};
pub(crate) use request::{Rendered, header};
pub(crate) use send::{AUTHORITY, NO_CLIENT, builder, not_begun};
pub(crate) use template::Text;

use self::{
    classify::classify,
    config::Http,
    egress::{Refused, Target},
    retry_after::retry_after,
    send::Failure,
};
use crate::{
    config::{Answers, Secrets},
    message,
    veil::Veil,
};

/// The header that carries the secret.
type Credential = (HeaderName, HeaderValue);

/// What an answer shows, for tests that hold it against a vendor's documentation.
#[cfg(test)]
pub(crate) fn read_answer(answers: &Answers, status: u16, headers: &[(&str, &str)], body: &str) -> Outcome {
    let answer = tests::answer(status, headers, body);
    classify(answers, answer, Asked::Chosen, "api.example.com:443", Timestamp::from_micros(0))
}

/// How one request goes.
struct Way<'a> {
    client: &'a reqwest::Client,
    credential: Option<&'a Credential>,
    asked: Asked,
}

/// How an exchange is made and read, besides its request.
pub(crate) struct Exchange<'a> {
    pub(crate) answers: &'a Answers,
    pub(crate) asked: Asked,
    pub(crate) deadline: Instant,
    pub(crate) max_response: usize,
    /// For a `Retry-After` date without a `Date`.
    pub(crate) wall: Timestamp,
}

impl Exchange<'_> {
    /// Sends the request once, and says what that showed.
    pub(crate) async fn make(self, client: &reqwest::Client, rendered: Rendered) -> Outcome {
        let place = request::place(&rendered.url);
        match send::exchange(client, rendered, &place, self.deadline, self.max_response).await {
            Ok(answer) => classify(self.answers, answer, self.asked, &place, self.wall),
            Err(Failure::NotBegun(why)) => Outcome::new(Finding::NotApplied, Phase::Connect, why),
            Err(Failure::NoAnswer(why)) => Outcome::new(Finding::Unknown, Phase::Send, why),
            Err(Failure::Cut(answer, why)) => Outcome {
                retry_after: retry_after(&answer.headers, self.wall),
                response: Some(Response {
                    status: Some(answer.status),
                    body: answer.body,
                    truncated: answer.truncated,
                }),
                ..Outcome::new(Finding::Unknown, Phase::Answer, format!("HTTP {}, but {why}", answer.status))
            },
        }
    }
}

/// What the effect's own text shows stays so, however often it is tried.
pub(crate) fn unsent(problem: &dyn std::fmt::Display) -> Outcome {
    Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Render, format!("not sent: {problem}"))
}

/// An `http` downstream, ready to be called.
pub(crate) struct HttpDownstream {
    http: Http,
    /// For `base_url`, which an operator wrote.
    client: reqwest::Client,
    /// For whole URLs, which effects bring.
    guarded: Option<Guarded>,
    credential: Option<Credential>,
    veil: Veil,
    clock: Arc<dyn Clock>,
}

impl HttpDownstream {
    /// Ready to be called; `names` answers for the names in effects' URLs. The error is (key, problem).
    fn build(http: &Http, secrets: &Secrets, names: Arc<dyn Resolve>) -> Result<Self, (String, String)> {
        let fastest = http.calls().map(|call| call.timeout).min().unwrap_or(http.default.timeout);
        let broken = |problem| ("base_url".to_owned(), problem);
        let tls = http.base.as_ref().is_some_and(|base| base.scheme() == "https");
        let client = send::client(tls, fastest, http.concurrency).map_err(broken)?;
        let guarded = match &http.target {
            Target::None | Target::Path => None,
            Target::Url(egress) => {
                let builder = send::builder(true, fastest, http.concurrency);
                let guarded = Guarded::build(Arc::clone(egress), builder, names);
                Some(guarded.map_err(|_error| broken(send::NO_CLIENT.to_owned()))?)
            }
        };
        let credential =
            send::credential(&http.auth, secrets).map_err(|problem| ("auth".to_owned(), problem))?;
        let veil = Veil::new(send::secrets(&http.auth, secrets));
        Ok(Self { http: http.clone(), client, guarded, credential, veil, clock: Arc::new(SystemClock) })
    }

    /// How an effect's request goes: a URL of the effect's own passes the guard, and gets the credential only where the
    /// configuration names its origin.
    fn way(&self, effect: &Effect, url: &Url) -> Result<Way<'_>, Refused> {
        let Some((guarded, _target)) = self.guarded.as_ref().zip(effect.target.as_ref()) else {
            let credential = self.credential.as_ref();
            return Ok(Way { client: &self.client, credential, asked: Asked::Chosen });
        };
        let client = guarded.client_for(url)?;
        let credential =
            self.credential.as_ref().filter(|_credential| guarded.egress().trusts_with_credentials(url));
        let asked = if credential.is_some() { Asked::Chosen } else { Asked::Named };
        Ok(Way { client, credential, asked })
    }
}

#[async_trait::async_trait]
impl Downstream for HttpDownstream {
    fn origin(&self, effect: &Effect) -> Option<Arc<str>> {
        let (guarded, target) = (self.guarded.as_ref()?, effect.target.as_deref()?);
        guarded.egress().origin_of(target).map(Into::into)
    }

    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let mut outcome = self.send(attempt).await;
        self.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        outcome
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        let mut checks = self.look(timeout).await;
        for check in &mut checks {
            self.veil.cover(&mut check.found, None);
        }
        checks
    }

    async fn probe(&self, probe: &Probe) -> Probed {
        let call = self.http.call(probe.effect.operation.as_deref());
        let mut probed = match call.and_then(|call| Some((call, call.probe.as_ref()?))) {
            Some((call, question)) => self.ask(call, question, probe).await,
            None => Probed::new(Sighting::Impossible, "the configuration has no probe for it"),
        };
        self.veil.cover(&mut probed.reason, probed.response.as_mut());
        probed
    }
}

impl HttpDownstream {
    async fn send(&self, attempt: &Attempt) -> Outcome {
        let deadline = Instant::now() + attempt.timeout;
        let effect = &attempt.effect;
        let Some(call) = self.http.call(effect.operation.as_deref()) else {
            return message::unconfigured(effect);
        };
        let mut rendered = match request::render(&self.http, call, effect, &attempt.key) {
            Ok(rendered) => rendered,
            Err(problem) => return unsent(&problem),
        };
        let way = match self.way(effect, &rendered.url) {
            Ok(way) => way,
            Err(refused) => return unsent(&refused),
        };
        send::authenticate(&mut rendered.headers, way.credential);
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Connect, send::not_begun(closed));
        }
        let exchange = Exchange {
            answers: &call.answers,
            asked: way.asked,
            deadline,
            max_response: self.http.max_response,
            wall: self.clock.wall(),
        };
        exchange.make(way.client, rendered).await
    }
}
