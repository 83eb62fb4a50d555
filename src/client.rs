//! The client's side of an idempotent request: one key for one intent, the same key with every try, until there is an answer.
//!
//! [`send`] knows no HTTP library: a try is a function that sends the request once and says what came back. What may have
//! happened already is sent again, because the server that guards its requests answers the repeat with the first answer.
//! A key that outlives this process (a row's number, an order's) makes the request safe over a crash of the client too; a random
//! one only over this call.
//!
//! ```ignore
//! let key = IdempotencyKey::parse(format!("order-{id}"))?;
//! let response = client::send(&Retry::default(), &key, |key| {
//!     let request = http.post(url).timeout(Duration::from_secs(10)).header("Idempotency-Key", key.as_str());
//!     async move {
//!         let response = request.json(&order).send().await?;
//!         let header = |name| Some(response.headers().get(name)?.to_str().ok()?.to_owned());
//!         let status = response.status().as_u16();
//!         let (retry_after, date) = (header("retry-after"), header("date"));
//!         let replayed = header("idempotent-replayed").is_some();
//!         Ok::<_, reqwest::Error>(Reply { status, retry_after, date, replayed, response })
//!     }
//! })
//! .await?;
//! ```

use std::{
    future::Future,
    time::{Duration, SystemTime},
};

use crate::{
    clock::{Clock, SystemClock, Timestamp},
    effect::IdempotencyKey,
};

/// How long and how often a request is tried.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Retry {
    /// The longest pause after the first try; each further one may be twice as long. The pause is drawn evenly from below it.
    pub initial: Duration,
    /// No pause is longer, unless the server asks for more.
    pub max: Duration,
    /// From the first try to the beginning of the last one.
    pub deadline: Duration,
}

impl Default for Retry {
    fn default() -> Self {
        Self {
            initial: Duration::from_millis(200),
            max: Duration::from_secs(20),
            deadline: Duration::from_secs(120),
        }
    }
}

/// What a try came back with.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Reply<R> {
    /// The status.
    pub status: u16,
    /// The value of `Retry-After`, if there is one.
    pub retry_after: Option<String>,
    /// The value of `Date`, if there is one: a date in `Retry-After` counts from it.
    pub date: Option<String>,
    /// Whether there is an `Idempotent-Replayed`: then it is the stored answer, and another try gets the same.
    pub replayed: bool,
    /// What is given back when this is the last try.
    pub response: R,
}

/// How the last try ended, when there was none that could be the last.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Last<R, E> {
    /// With an answer that asks to try again.
    Answer(R),
    /// Without an answer: what it did is not known.
    Lost(E),
}

/// The deadline came before a final answer. Whether the request was carried out is not known: a later call with the same key
/// finds out.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no final answer within the deadline, after {tries} tries: send it again later, with the same key")]
pub struct GaveUp<R, E> {
    /// How often it was sent.
    pub tries: u32,
    /// How the last one ended.
    pub last: Last<R, E>,
}

/// Time and chance, as arguments: a test has its own.
pub trait Pace: Clock {
    /// Waits.
    fn sleep(&self, pause: Duration) -> impl Future<Output = ()> + Send;
    /// Where the pauses are drawn from.
    fn seed(&self) -> u64;
}

impl Pace for SystemClock {
    fn sleep(&self, pause: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(pause)
    }

    fn seed(&self) -> u64 {
        uuid::Uuid::new_v4().as_u64_pair().1
    }
}

/// Sends a request by `attempt`, which is given the same key every time, until its answer is final: until it is a replay, or its
/// status another than 408, 425, 429, 5xx, and 409 with a `Retry-After` (the first is in progress; any other 409 is the application's
/// own). 422 (the key is another request's) is final, as is every other 4xx. An `Err` of `attempt`, which is to limit its own
/// time, is a lost answer.
///
/// # Errors
///
/// [`GaveUp`], with the last answer or error, when the next try would come after the deadline.
pub async fn send<R, E, F: Future<Output = Result<Reply<R>, E>>>(
    retry: &Retry,
    key: &IdempotencyKey,
    attempt: impl FnMut(IdempotencyKey) -> F,
) -> Result<R, GaveUp<R, E>> {
    send_at(&SystemClock, retry, key, attempt).await
}

/// [`send`] at a given pace.
///
/// # Errors
///
/// As [`send`].
pub async fn send_at<P: Pace, R, E, F: Future<Output = Result<Reply<R>, E>>>(
    pace: &P,
    retry: &Retry,
    key: &IdempotencyKey,
    mut attempt: impl FnMut(IdempotencyKey) -> F,
) -> Result<R, GaveUp<R, E>> {
    let began = pace.boot();
    let mut chance = Chance(pace.seed());
    let mut tries = 0;
    loop {
        tries += 1;
        let (last, asked) = match attempt(key.clone()).await {
            Ok(reply) if is_final(&reply) => return Ok(reply.response),
            Ok(reply) => {
                let asked = asked(&reply, pace.wall());
                (Last::Answer(reply.response), asked)
            }
            Err(error) => (Last::Lost(error), None),
        };
        let pause = chance.below(retry.ceiling(tries)).max(asked.unwrap_or_default());
        if pause > retry.deadline.saturating_sub(pace.boot() - began) {
            return Err(GaveUp { tries, last });
        }
        pace.sleep(pause).await;
    }
}

/// Whether another try could say nothing else.
fn is_final<R>(reply: &Reply<R>) -> bool {
    let comes_again = match reply.status {
        408 | 425 | 429 | 500..=599 => true,
        409 => reply.retry_after.is_some(),
        _ => false,
    };
    reply.replayed || !comes_again
}

impl Retry {
    fn ceiling(&self, tries: u32) -> Duration {
        let doubled = 1u32.checked_shl(tries.saturating_sub(1)).unwrap_or(u32::MAX);
        self.initial.saturating_mul(doubled).min(self.max)
    }
}

/// How long the server asks to be left alone: whole seconds, or a date that has not passed. Anything else says nothing.
fn asked<R>(reply: &Reply<R>, wall: Timestamp) -> Option<Duration> {
    let text = reply.retry_after.as_deref()?.trim_matches([' ', '\t']);
    if !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit()) {
        return Some(Duration::from_secs(text.parse().unwrap_or(u64::MAX)));
    }
    let at = httpdate::parse_http_date(text).ok()?;
    // By the server's own clock where it tells it.
    let now = reply.date.as_deref().and_then(|date| httpdate::parse_http_date(date.trim()).ok());
    let wall = Duration::from_micros(u64::try_from(wall.micros()).unwrap_or(0));
    at.duration_since(now.unwrap_or(SystemTime::UNIX_EPOCH + wall)).ok()
}

/// SplitMix64.
struct Chance(u64);

impl Chance {
    /// Evenly below `ceiling`.
    fn below(&mut self, ceiling: Duration) -> Duration {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        let micros = u64::try_from(ceiling.as_micros()).unwrap_or(u64::MAX);
        Duration::from_micros(z % micros.saturating_add(1).max(1))
    }
}

#[cfg(test)]
mod tests;
