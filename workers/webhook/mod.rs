//! The `webhook` kind: an effect is one signed request to one of many endpoints, by name; Standard Webhooks.
//!
//! It sends, guards and reads answers as `http` does, with its code. `config` reads the table, `secrets` makes an endpoint ready
//! to be called, `sign` signs, `check` looks at endpoints without sending anything. Rows of endpoints come, and what calls
//! showed of them goes, over the [`Directory`]: only the engine touches the database.

mod check;
mod config;
mod secrets;
mod sign;
#[cfg(test)]
mod tests;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    check::Check,
    clock::{Clock, SystemClock},
    downstream::{
        Attempt, Downstream,
        endpoint::{Called, Directory, Disabled, Sign},
    },
    effect::Effect,
    outcome::{Finding, Outcome, Phase, Verdict},
};
use reqwest::{
    ClientBuilder, Method,
    dns::Resolve,
    header::{CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue},
};
use tokio::time::{Instant, timeout_at};

pub(crate) use config::read;

use self::{
    config::{Call, Webhook, is_taken},
    secrets::{Described, Problem, Ready},
};
use crate::{
    cloudevents,
    config::Secrets,
    http::{self, Asked, Exchange, Guarded, Rendered},
    message::{self, Message},
};

const ID: HeaderName = HeaderName::from_static("webhook-id");
const TIMESTAMP: HeaderName = HeaderName::from_static("webhook-timestamp");
const SIGNATURE: HeaderName = HeaderName::from_static("webhook-signature");
/// The receiver wants nothing more, ever (RFC 9110 §15.5.11; Standard Webhooks).
const GONE: u16 = 410;
/// How long fresh rows are waited for before an endpoint counts as unknown or disabled.
const FRESH_WAIT: Duration = Duration::from_secs(3);

/// A `webhook` downstream, ready to be called.
pub(crate) struct WebhookDownstream {
    webhook: Webhook,
    guarded: Guarded,
    secrets: Secrets,
    directory: Directory,
    clock: Arc<dyn Clock>,
}

/// An endpoint as it is now.
enum Found {
    Ready(Ready),
    /// Nothing is sent: this effect ends.
    Refused(String),
    /// Nothing can be sent until somebody mends it, or until the rows are read.
    NotNow(String),
}

impl WebhookDownstream {
    /// Ready to be called; the names of hosts are asked of the last argument.
    fn build(
        webhook: &Webhook,
        secrets: &Secrets,
        builder: ClientBuilder,
        (directory, names): (Directory, Arc<dyn Resolve>),
    ) -> Result<Self, String> {
        let guarded = Guarded::build(Arc::clone(&webhook.egress), builder, names)
            .map_err(|_error| http::NO_CLIENT.to_owned())?;
        let clock = Arc::new(SystemClock);
        Ok(Self { webhook: webhook.clone(), guarded, secrets: secrets.clone(), directory, clock })
    }

    /// The endpoint of this name. What looks unknown or disabled is looked up once more in rows that are read from now on: it may
    /// have been written together with the effect.
    async fn find(&self, name: &str, deadline: Instant) -> Found {
        if !self.directory.is_read() || self.refusal(name).is_some() {
            let until = deadline.min(Instant::now() + FRESH_WAIT);
            let read = timeout_at(until, self.directory.fresh()).await.is_ok() && self.directory.is_read();
            if !read {
                let why = "the endpoints could not be read from the database: look at the worker's log";
                return Found::NotNow(why.to_owned());
            }
        }
        match self.refusal(name) {
            Some(why) => Found::Refused(why),
            None => match self.ready(name) {
                Ok(ready) => Found::Ready(ready),
                Err(Problem::Url(why)) => Found::Refused(format!("endpoint {name:?}: {why}")),
                Err(Problem::Secret(why)) => Found::NotNow(format!("not sent: endpoint {name:?}: {why}")),
            },
        }
    }

    /// Why nothing is sent to the endpoint of this name.
    fn refusal(&self, name: &str) -> Option<String> {
        let row = self.directory.find(name);
        let known =
            self.webhook.endpoints.contains_key(name) || row.as_ref().is_some_and(|row| row.url.is_some());
        if !known {
            return Some(format!(
                "there is no endpoint {name:?}, neither in the configuration nor in the database: add it, then retry this"
            ));
        }
        let Disabled { since, reason } = row.as_ref()?.disabled.as_ref()?;
        Some(format!(
            "the endpoint {name:?} is disabled since {since} ({reason}): once it is mended, `endpoints enable` it, then retry this"
        ))
    }

    /// What `of` makes of the endpoint of this name; `None` where there is none.
    fn described<T>(&self, name: &str, of: impl FnOnce(&Described<'_>) -> T) -> Option<T> {
        if let Some(fixed) = self.webhook.endpoints.get(name) {
            return Some(of(&Described::Fixed(fixed)));
        }
        let row = self.directory.find(name)?;
        Some(of(&Described::Kept(&row, &self.webhook.secrets_from)))
    }

    /// The endpoint of a name that is known.
    fn ready(&self, name: &str) -> Result<Ready, Problem> {
        self.described(name, |described| described.ready(self.guarded.egress(), &self.secrets))
            .unwrap_or_else(|| {
                Err(Problem::Url("it was dropped meanwhile: add it, then retry this".to_owned()))
            })
    }

    /// The request without its signature. What is sent is the same for every attempt.
    fn render(&self, effect: &Effect, name: &str, key: &str, ready: &Ready) -> Result<Rendered, String> {
        if key.contains('.') {
            return Err(
                "the key has a \".\", which a webhook-id must not, as the signature could be moved within it: write keys without dots"
                    .to_owned(),
            );
        }
        let message = Message::enveloped(effect, key, self.webhook.envelope.as_ref())?;
        let mut headers = HeaderMap::new();
        let fixed = self.webhook.endpoints.get(name).map(|fixed| &fixed.headers);
        for (name, value) in self.webhook.headers.iter().chain(fixed.into_iter().flatten()) {
            let (name, value) = http::header(name, value)?;
            headers.insert(name, value);
        }
        for (name, value) in &message.headers {
            let (name, value) = http::header(name, value)?;
            if is_taken(name.as_str(), self.webhook.envelope.as_ref()) {
                return Err(format!(
                    "headers must not set {name}: it belongs to the request, not the effect"
                ));
            }
            if headers.insert(name.clone(), value).is_some() {
                return Err(format!("headers set {name} twice, or against the configuration"));
            }
        }
        for (name, value) in message.attributes_as("ce-")? {
            let (name, value) = http::header(&name, &cloudevents::header_value(value))?;
            headers.insert(name, value);
        }
        if let Some(trace) = &message.traceparent {
            let (name, value) = http::header("traceparent", trace)?;
            headers.insert(name, value);
        }
        let (_, content_type) = http::header(CONTENT_TYPE.as_str(), &message.content_type)?;
        headers.insert(CONTENT_TYPE, content_type);
        Ok(Rendered { method: Method::POST, url: ready.url.clone(), headers, body: message.body.into() })
    }

    async fn send(&self, attempt: &Attempt) -> Outcome {
        let deadline = Instant::now() + attempt.timeout;
        let effect = &attempt.effect;
        let Some(call) = self.webhook.call(effect.operation.as_deref()) else {
            return message::unconfigured(effect);
        };
        let Some(name) = effect.target.as_deref() else {
            return http::unsent(&"target is missing: it names the endpoint");
        };
        let ready = match self.find(name, deadline).await {
            Found::Ready(ready) => ready,
            Found::Refused(why) => return http::unsent(&why),
            Found::NotNow(why) => return Outcome::new(Finding::NotApplied, Phase::Render, why),
        };
        let mut outcome = match self.render(effect, name, &attempt.key, &ready) {
            Ok(rendered) => self.exchange(attempt, call, (name, &ready), rendered, deadline).await,
            Err(problem) => http::unsent(&problem),
        };
        ready.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        outcome
    }

    /// Signs what is sent and sends it.
    async fn exchange(
        &self,
        attempt: &Attempt,
        call: &Call,
        (name, ready): (&str, &Ready),
        mut rendered: Rendered,
        deadline: Instant,
    ) -> Outcome {
        let client = match self.guarded.client_for(&rendered.url) {
            Ok(client) => client,
            Err(refused) => return http::unsent(&refused),
        };
        let now = self.clock.wall();
        let seconds = now.micros().div_euclid(1_000_000);
        let signatures = sign::signatures(&ready.keys, &attempt.key, seconds, &rendered.body);
        for (name, value) in
            [(ID, attempt.key.clone()), (TIMESTAMP, seconds.to_string()), (SIGNATURE, signatures)]
        {
            let Ok(value) = HeaderValue::from_str(&value) else {
                return http::unsent(&format!("{name} cannot stand in a header"));
            };
            rendered.headers.insert(name, value);
        }
        if let Err(closed) = attempt.may_begin() {
            return Outcome::new(Finding::NotApplied, Phase::Connect, http::not_begun(closed));
        }
        let exchange = Exchange {
            answers: &call.answers,
            // Its owner's refusal says nothing about our other endpoints: nobody pauses for it.
            asked: Asked::Named,
            deadline,
            max_response: self.webhook.max_response,
            wall: now,
        };
        let mut outcome = exchange.make(client, rendered).await;
        ready.veil.cover(&mut outcome.reason, outcome.response.as_mut());
        let called = Called { name: name.into(), url: ready.row_url.clone() };
        self.directory.note(called, sign_of(&outcome));
        outcome
    }
}

/// What an answer, or its absence, says of the endpoint.
fn sign_of(outcome: &Outcome) -> Sign {
    match outcome.verdict() {
        Verdict::Applied => Sign::Took,
        Verdict::Rejected | Verdict::NotApplied | Verdict::Unknown => {
            let reason = outcome.stored_reason();
            if outcome.status() == Some(GONE) { Sign::Gone(reason) } else { Sign::Failed(reason) }
        }
    }
}

#[async_trait::async_trait]
impl Downstream for WebhookDownstream {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        self.send(attempt).await
    }

    fn origin(&self, effect: &Effect) -> Option<Arc<str>> {
        let url = |described: &Described<'_>| described.url(self.guarded.egress(), &self.secrets).ok();
        let url = self.described(effect.target.as_deref()?, url)??;
        Some(url.origin().ascii_serialization().into())
    }

    fn directory(&self) -> Option<&Directory> {
        Some(&self.directory)
    }

    fn share(&self, effect: &Effect) -> Option<(Arc<str>, u32)> {
        Some((effect.target.as_deref()?.into(), self.webhook.endpoint_concurrency))
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        check::check(self, timeout).await
    }
}
