//! What every [`Downstream`] owes the engine, as a suite that anybody's kind can run: money depends on it.
//!
//! Whoever writes a kind implements [`Rig`] over a server that the test controls, and calls [`check`] in a test of their own:
//!
//! ```no_run
//! # async fn example(rig: impl aftercommit::conformance::Rig) {
//! aftercommit::conformance::check(&rig).await.expect("a downstream that the engine can rely on");
//! # }
//! ```
//!
//! It asks for what the seam promises and a compiler cannot see: that the gate is asked before the first byte; that a lost answer
//! is never taken for a refusal or a success; that nothing is sent twice within an attempt, nor after it was given up; that every
//! attempt sends the same key and the same bytes.

use std::{
    fmt,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    downstream::{Attempt, Closed, Downstream, Gate},
    effect::Effect,
    outcome::{Outcome, Phase, Verdict},
};

/// How the rig's server treats whatever is sent to it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Behaviour {
    /// It applies it and answers.
    Applies,
    /// It applies it and never answers; connections stay open.
    AppliesSilently,
    /// It applies it, then cuts the connection without an answer.
    AppliesAndCuts,
    /// Nobody listens: connections are refused.
    Gone,
}

/// What the rig's server applied.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Taken {
    /// The key that came with it.
    pub key: String,
    /// What came, without what must change from attempt to attempt (signatures over the time, trace context).
    pub bytes: Vec<u8>,
}

/// A downstream and a server that a test controls.
#[async_trait::async_trait]
pub trait Rig: Send + Sync {
    /// The downstream under test, which leads to the rig's server: the same one at each call.
    fn downstream(&self) -> Arc<dyn Downstream>;

    /// An effect that the server takes; another one for each number.
    fn effect(&self, number: i64) -> Effect;

    /// From now on the server behaves like this.
    async fn behave(&self, behaviour: Behaviour);

    /// All that it applied so far, in order.
    async fn taken(&self) -> Vec<Taken>;

    /// Texts that must stand in no reason and in no answer. None by default.
    fn secrets(&self) -> Vec<String> {
        Vec::new()
    }
}

/// What a downstream does not do as it should: a sentence each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nonconforming(pub Vec<String>);

impl fmt::Display for Nonconforming {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0.join("\n"))
    }
}

impl std::error::Error for Nonconforming {}

/// An attempt that should end has this long.
const TIMEOUT: Duration = Duration::from_secs(10);
/// One that is never answered is given up after this long ...
const SHORT: Duration = Duration::from_millis(700);
/// ... and the engine would drop it after this long.
const LEASE: Duration = Duration::from_secs(10);
/// No downstream keeps more connections than this for twenty attempts at one time.
const KEPT_MAX: usize = 20;
/// Attempts at one time.
const TOGETHER: i64 = 20;

/// Runs the suite.
///
/// # Errors
///
/// Everything that was found, not only the first.
pub async fn check(rig: &dyn Rig) -> Result<(), Nonconforming> {
    let mut suite = Suite { rig, numbers: 0, found: Vec::new() };
    suite.a_closed_gate_lets_nothing_out().await;
    suite.an_effect_is_applied_once_after_the_gate_was_asked().await;
    suite.every_attempt_sends_the_same().await;
    suite.attempts_at_one_time_do_not_mix().await;
    suite.a_lost_answer_is_unknown(Behaviour::AppliesSilently).await;
    suite.a_lost_answer_is_unknown(Behaviour::AppliesAndCuts).await;
    suite.what_cannot_be_reached_was_not_applied().await;
    suite.an_attempt_that_was_dropped_sends_nothing_later().await;
    rig.behave(Behaviour::Applies).await;
    if suite.found.is_empty() { Ok(()) } else { Err(Nonconforming(suite.found)) }
}

struct Suite<'r> {
    rig: &'r dyn Rig,
    numbers: i64,
    found: Vec<String>,
}

impl Suite<'_> {
    async fn a_closed_gate_lets_nothing_out(&mut self) {
        self.behave(Behaviour::Applies).await;
        for closed in [Closed::TooLate, Closed::Stopping, Closed::Held] {
            let effect = self.effect();
            let gate = Arc::new(Door { closed: Some(closed), asked: AtomicUsize::new(0) });
            let (outcome, took) = self.deliver(&effect, TIMEOUT, gate).await;
            self.expect(took.is_empty(), || {
                format!("something was sent although the gate was closed ({closed})")
            });
            self.expect_not_applied(&outcome, "at a closed gate");
        }
    }

    async fn an_effect_is_applied_once_after_the_gate_was_asked(&mut self) {
        let effect = self.effect();
        let gate = Door::open();
        let (outcome, took) = self.deliver(&effect, TIMEOUT, gate.clone()).await;
        self.expect(outcome.verdict() == Verdict::Applied, || {
            format!("what was applied and answered is {}", shown(&outcome))
        });
        self.expect(took.len() == 1, || format!("one attempt was applied {} times", took.len()));
        self.expect(gate.asked.load(Ordering::SeqCst) > 0, || "the gate was not asked".to_owned());
        let wanted = key_of(&effect);
        for taken in took.iter().filter(|taken| taken.key != wanted) {
            self.found.push(format!("the key {:?} was sent as {:?}", wanted, taken.key));
        }
    }

    async fn every_attempt_sends_the_same(&mut self) {
        let effect = self.effect();
        let mut sent = Vec::new();
        for _ in 0..2 {
            let (_outcome, took) = self.deliver(&effect, TIMEOUT, Door::open()).await;
            sent.extend(took);
        }
        if let [first, second] = sent.as_slice() {
            self.expect(first == second, || {
                "two attempts of one effect sent different keys or bytes".to_owned()
            });
        }
    }

    async fn attempts_at_one_time_do_not_mix(&mut self) {
        let before = self.rig.taken().await.len();
        let effects: Vec<Arc<Effect>> = (0..TOGETHER).map(|_| self.effect()).collect();
        let downstream = self.rig.downstream();
        let calls = effects.iter().map(|effect| {
            let attempt = attempt(effect, TIMEOUT, Door::open());
            let downstream = Arc::clone(&downstream);
            async move { downstream.deliver(&attempt).await }
        });
        let outcomes = futures_util::future::join_all(calls).await;
        let mut keys: Vec<String> =
            self.rig.taken().await.split_off(before).into_iter().map(|taken| taken.key).collect();
        keys.sort_unstable();
        let mut wanted: Vec<String> = effects.iter().map(|effect| key_of(effect)).collect();
        wanted.sort_unstable();
        for outcome in outcomes.iter().filter(|outcome| outcome.verdict() != Verdict::Applied) {
            self.found.push(format!("one of {TOGETHER} attempts at one time is {}", shown(outcome)));
        }
        self.expect(keys == wanted, || {
            format!("{TOGETHER} attempts at one time sent {} keys, or others", keys.len())
        });
    }

    async fn a_lost_answer_is_unknown(&mut self, behaviour: Behaviour) {
        self.behave(behaviour).await;
        let effect = self.effect();
        let (outcome, took) = self.deliver(&effect, SHORT, Door::open()).await;
        self.expect(took.len() == 1, || {
            format!("one attempt was applied {} times ({behaviour:?})", took.len())
        });
        let verdict = outcome.verdict();
        self.expect(verdict == Verdict::Unknown, || {
            format!("an answer that was lost ({behaviour:?}) is {}", shown(&outcome))
        });
        self.expect(outcome.phase.may_have_reached(), || {
            format!("what was sent is said not to have left: {}", shown(&outcome))
        });
        self.behave(Behaviour::Applies).await;
        let next = self.effect();
        let (outcome, _took) = self.deliver(&next, TIMEOUT, Door::open()).await;
        self.expect(verdict_is(&outcome, Verdict::Applied), || {
            format!("after an answer that was lost ({behaviour:?}) the next attempt is {}", shown(&outcome))
        });
    }

    async fn what_cannot_be_reached_was_not_applied(&mut self) {
        self.behave(Behaviour::Gone).await;
        let effect = self.effect();
        let (outcome, took) = self.deliver(&effect, TIMEOUT, Door::open()).await;
        self.expect(took.is_empty(), || "something was applied where nobody listened".to_owned());
        self.expect_not_applied(&outcome, "where nobody listens");
        self.behave(Behaviour::Applies).await;
        let next = self.effect();
        let (outcome, took) = self.deliver(&next, TIMEOUT, Door::open()).await;
        self.expect(verdict_is(&outcome, Verdict::Applied), || {
            format!("once somebody listens again the next attempt is {}", shown(&outcome))
        });
        self.expect(took.len() == 1, || {
            format!("once somebody listens again {} were applied instead of one", took.len())
        });
    }

    /// The engine drops an attempt at the end of its lease.
    async fn an_attempt_that_was_dropped_sends_nothing_later(&mut self) {
        self.behave(Behaviour::AppliesSilently).await;
        let effect = self.effect();
        let downstream = self.rig.downstream();
        let given_up = attempt(&effect, LEASE, Door::open());
        let dropped = tokio::time::timeout(SHORT, downstream.deliver(&given_up)).await;
        self.expect(dropped.is_err(), || {
            "an attempt that was not answered ended by itself, long before its time".to_owned()
        });
        let before = self.rig.taken().await.len();
        self.behave(Behaviour::Applies).await;
        let next = self.effect();
        let (outcome, _took) = self.deliver(&next, TIMEOUT, Door::open()).await;
        self.expect(verdict_is(&outcome, Verdict::Applied), || {
            format!("after a dropped attempt the next is {}", shown(&outcome))
        });
        let late = self.rig.taken().await.split_off(before);
        let repeated = late.iter().any(|taken| taken.key == key_of(&effect));
        self.expect(!repeated, || "a dropped attempt was sent later".to_owned());
    }

    /// The server behaves otherwise from now on. Connections that were kept from before may be dead, which one attempt each finds
    /// out, honestly in doubt: those are not what is looked for.
    async fn behave(&mut self, behaviour: Behaviour) {
        self.rig.behave(behaviour).await;
        for _ in 0..KEPT_MAX {
            let effect = self.effect();
            let (outcome, took) = self.deliver(&effect, SHORT, Door::open()).await;
            if !took.is_empty() || outcome.verdict() != Verdict::Unknown {
                return;
            }
        }
        self.found.push(format!(
            "{KEPT_MAX} attempts in a row found nothing but broken connections ({behaviour:?})"
        ));
    }

    /// One attempt, and what the server applied meanwhile.
    async fn deliver(
        &mut self,
        effect: &Arc<Effect>,
        timeout: Duration,
        gate: Arc<Door>,
    ) -> (Outcome, Vec<Taken>) {
        let before = self.rig.taken().await.len();
        let attempt = attempt(effect, timeout, gate);
        let delivering = self.rig.downstream();
        let outcome = tokio::time::timeout(timeout + LEASE, delivering.deliver(&attempt))
            .await
            .unwrap_or_else(|_elapsed| {
                self.found.push(format!("an attempt went on for {LEASE:?} after its time"));
                Outcome::lease_ended()
            });
        let response = outcome.response.as_ref().map(|response| response.body.as_slice()).unwrap_or_default();
        let said = format!("{} {}", outcome.reason, String::from_utf8_lossy(response));
        for secret in self.rig.secrets().iter().filter(|secret| said.contains(secret.as_str())) {
            self.found.push(format!(
                "a secret of {} characters stands in {}",
                secret.len(),
                "what is stored"
            ));
        }
        (outcome, self.rig.taken().await.split_off(before))
    }

    fn effect(&mut self) -> Arc<Effect> {
        self.numbers += 1;
        Arc::new(self.rig.effect(self.numbers))
    }

    fn expect_not_applied(&mut self, outcome: &Outcome, when: &str) {
        let unsent = matches!(outcome.phase, Phase::Render | Phase::Connect);
        self.expect(verdict_is(outcome, Verdict::NotApplied) && unsent, || {
            format!("an attempt {when} is {}, and should be not applied, in phase connect", shown(outcome))
        });
    }

    fn expect(&mut self, holds: bool, otherwise: impl FnOnce() -> String) {
        if !holds {
            self.found.push(otherwise());
        }
    }
}

fn verdict_is(outcome: &Outcome, verdict: Verdict) -> bool {
    outcome.verdict() == verdict
}

fn shown(outcome: &Outcome) -> String {
    format!("{} in phase {} ({})", outcome.verdict(), outcome.phase.as_str(), outcome.stored_reason())
}

/// The suite's downstreams have a prefix of none.
fn key_of(effect: &Effect) -> String {
    effect.key.clone()
}

fn attempt(effect: &Arc<Effect>, timeout: Duration, gate: Arc<Door>) -> Attempt {
    Attempt { effect: Arc::clone(effect), key: key_of(effect), number: 1, timeout, gate }
}

/// A gate that counts.
struct Door {
    closed: Option<Closed>,
    asked: AtomicUsize,
}

impl Door {
    fn open() -> Arc<Self> {
        Arc::new(Self { closed: None, asked: AtomicUsize::new(0) })
    }
}

impl Gate for Door {
    fn may_begin(&self) -> Result<(), Closed> {
        self.asked.fetch_add(1, Ordering::SeqCst);
        self.closed.map_or(Ok(()), Err)
    }
}
