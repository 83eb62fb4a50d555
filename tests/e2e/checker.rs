//! The checker: from the ledger, the payment server's own list and the database, and from nothing the workers say of
//! themselves, it tells whether the promise was kept. It is a pure function of its evidence, so that forged evidence can
//! prove that it would have noticed.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use serde::Deserialize;

use super::{
    ledger::{Call, Fate},
    servers::Charge,
};

/// An effect, from `status`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct EffectRow {
    pub(super) id: i64,
    pub(super) key: String,
    pub(super) state: String,
    pub(super) attempts: i64,
    pub(super) last_outcome: Option<String>,
    pub(super) last_error: Option<String>,
}

/// An attempt, from `attempt_log`. Times in microseconds since 1970.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
pub(super) struct Attempt {
    pub(super) effect_id: i64,
    pub(super) attempt: i64,
    pub(super) worker: Option<String>,
    pub(super) started: i64,
    pub(super) ended: Option<i64>,
    pub(super) phase: String,
    pub(super) outcome: String,
}

/// A worker's end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Kill {
    /// When, in microseconds since 1970.
    pub(super) at: i64,
    /// Its process id, which its name carries.
    pub(super) pid: i32,
}

/// Everything that is known of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    /// The orders that the database has: the witness of which transactions committed.
    pub(super) orders: Vec<String>,
    /// Orders whose transaction was rolled back on purpose.
    pub(super) rolled_back: Vec<String>,
    pub(super) effects: Vec<EffectRow>,
    pub(super) attempts: Vec<Attempt>,
    pub(super) calls: Vec<Call>,
    pub(super) charges: Vec<Charge>,
    pub(super) kills: Vec<Kill>,
}

/// The key of an order's charge: the examples choose it so.
pub(super) fn charge_key(order: &str) -> String {
    format!("order-{order}/charge")
}

/// How far a time in the log may be off: a worker knows the database's clock from its last claim, as well as the answer to
/// that came promptly on a busy machine.
const CLOCK_ERROR_US: i64 = 2_000_000;
/// From an answer's last byte until the ledger says so.
const WRITING_US: i64 = 100_000;
/// A decisive answer is settled within this, or its worker was killed meanwhile.
const SETTLED_WITHIN_US: i64 = 1_500_000;

impl Evidence {
    /// The main promise: every committed order charged once, and nothing else; every effect succeeded.
    pub(super) fn charged_once(&self) -> Vec<String> {
        let mut wrong = self.always();
        let charged = self.charges_by_order();
        for order in &self.orders {
            if !charged.contains_key(order.as_str()) {
                wrong.push(format!("lost: order {order} was committed and never charged"));
            }
        }
        for effect in self.effects.iter().filter(|effect| effect.state != "succeeded") {
            wrong.push(format!("not done: {effect:?}"));
        }
        wrong
    }

    /// What holds at a downstream that cannot deduplicate, when unknown outcomes are held.
    pub(super) fn called_at_most_once(&self) -> Vec<String> {
        let mut wrong = self.always();
        for (key, calls) in self.calls_by_key() {
            if calls.len() > 1 {
                wrong.push(format!("called {} times: {key}", calls.len()));
            }
        }
        wrong.extend(self.needless_doubt());
        wrong
    }

    /// What holds in every run, however it was disturbed.
    pub(super) fn always(&self) -> Vec<String> {
        let mut wrong = self.phantoms();
        wrong.extend(self.changed_requests());
        wrong.extend(self.unlogged());
        wrong.extend(self.lies());
        wrong
    }

    /// Effects, calls and charges of orders that were never committed; orders without their effect; double charges.
    fn phantoms(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let committed: BTreeSet<&str> = self.orders.iter().map(String::as_str).collect();
        let keys: BTreeSet<String> = self.orders.iter().map(|order| charge_key(order)).collect();
        let effects: BTreeSet<&str> = self.effects.iter().map(|effect| effect.key.as_str()).collect();
        for order in self.rolled_back.iter().filter(|order| committed.contains(order.as_str())) {
            wrong.push(format!("the harness: order {order} was to be rolled back and is there"));
        }
        for key in keys.iter().filter(|key| !effects.contains(key.as_str())) {
            wrong.push(format!("lost: {key} has its order and no effect"));
        }
        for key in effects.iter().filter(|key| !keys.contains(**key)) {
            wrong.push(format!("phantom: {key} is an effect without an order"));
        }
        for call in self.calls.iter().filter(|call| !keys.contains(&call.key)) {
            wrong.push(format!("phantom: a call for {:?}, which was never committed", call.key));
        }
        for (order, charges) in self.charges_by_order() {
            if !committed.contains(order) {
                wrong.push(format!("phantom: {order:?} was charged and never committed"));
            }
            if charges.len() > 1 {
                wrong.push(format!("twice: order {order} was charged {} times: {charges:?}", charges.len()));
            }
        }
        wrong
    }

    /// One key, one request.
    fn changed_requests(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for (key, calls) in self.calls_by_key() {
            let request = |call: &Call| {
                (call.method.clone(), call.path.clone(), call.body_sha256.clone(), call.headers.clone())
            };
            let requests: BTreeSet<_> = calls.iter().map(|call| request(call)).collect();
            if requests.len() > 1 {
                wrong.push(format!("changed: {key} was sent as {requests:#?}"));
            }
        }
        wrong
    }

    /// Calls without a row in the log, and rows that claim an answer that the ledger never gave.
    fn unlogged(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let calls = self.calls_by_key();
        let mut attempts: HashMap<i64, Vec<&Attempt>> = HashMap::new();
        for attempt in &self.attempts {
            attempts.entry(attempt.effect_id).or_default().push(attempt);
        }
        for effect in &self.effects {
            let mut rows = attempts.remove(&effect.id).unwrap_or_default();
            // Each call is given the row that ends first of those it fits: no other assignment can serve more calls.
            rows.sort_by_key(|row| row.ended);
            for call in calls.get(effect.key.as_str()).into_iter().flatten() {
                let fits = |row: &&Attempt| {
                    row.started - CLOCK_ERROR_US <= call.at
                        && row.ended.is_none_or(|ended| call.at <= ended + CLOCK_ERROR_US)
                };
                match rows.iter().position(fits) {
                    Some(row) => drop(rows.remove(row)),
                    None => wrong.push(format!("unlogged: {call:?}")),
                }
            }
            for row in rows.iter().filter(|row| !matches!(row.outcome.as_str(), "unknown" | "not_applied")) {
                wrong.push(format!("invented: {} has {row:?} and no call for it", effect.key));
            }
        }
        for orphans in attempts.values() {
            wrong.push(format!("invented: attempts of no effect: {orphans:?}"));
        }
        wrong
    }

    /// What was applied is never shown as failed, cancelled or expired; what is shown as succeeded was applied.
    fn lies(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let charged: BTreeSet<String> = self.charges_by_order().into_keys().map(charge_key).collect();
        for effect in &self.effects {
            let applied = charged.contains(&effect.key);
            let state = effect.state.as_str();
            if applied && matches!(state, "failed" | "cancelled" | "expired") {
                wrong.push(format!("a lie: it was charged, and is shown as {effect:?}"));
            }
            if !applied && state == "succeeded" {
                wrong.push(format!("a lie: it was never charged, and is shown as {effect:?}"));
            }
        }
        wrong
    }

    /// What was decisively answered is not in doubt, unless its worker was killed before it could write the answer down.
    fn needless_doubt(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let calls = self.calls_by_key();
        for effect in self.effects.iter().filter(|effect| effect.state == "in_doubt") {
            for call in calls.get(effect.key.as_str()).into_iter().flatten() {
                let Some((Fate::Answered, answered)) = call.fate else { continue };
                let lost = |row: &&Attempt| row.effect_id == effect.id && row.phase == "lease";
                let worker = self.attempts.iter().find(lost).and_then(|row| row.worker.as_deref());
                let died = |kill: &Kill| {
                    (answered - WRITING_US..answered + SETTLED_WITHIN_US).contains(&kill.at)
                        && worker.is_some_and(|name| name.split('-').any(|part| part == kill.pid.to_string()))
                };
                if !self.kills.iter().any(died) {
                    wrong.push(format!("needless doubt: {call:?} was answered, and {effect:?}"));
                }
            }
        }
        wrong
    }

    fn calls_by_key(&self) -> BTreeMap<&str, Vec<&Call>> {
        let mut by_key: BTreeMap<&str, Vec<&Call>> = BTreeMap::new();
        for call in &self.calls {
            by_key.entry(&call.key).or_default().push(call);
        }
        by_key
    }

    fn charges_by_order(&self) -> BTreeMap<&str, Vec<&Charge>> {
        let mut by_order: BTreeMap<&str, Vec<&Charge>> = BTreeMap::new();
        for charge in self.charges.iter().filter(|charge| charge.paid) {
            by_order.entry(&charge.order).or_default().push(charge);
        }
        by_order
    }

    /// How many attempts ended unknown.
    pub(super) fn unknown_attempts(&self) -> usize {
        self.attempts.iter().filter(|attempt| attempt.outcome == "unknown").count()
    }

    /// The counts, for whoever reads the test's output.
    pub(super) fn summary(&self) -> String {
        let mut states: BTreeMap<&str, usize> = BTreeMap::new();
        for effect in &self.effects {
            *states.entry(&effect.state).or_default() += 1;
        }
        let mut outcomes: BTreeMap<(&str, &str), usize> = BTreeMap::new();
        for attempt in &self.attempts {
            *outcomes.entry((&attempt.outcome, &attempt.phase)).or_default() += 1;
        }
        format!(
            "{} orders committed, {} rolled back; {} effects {states:?}; {} calls; {} attempts {outcomes:?}; {} charges; {} kills",
            self.orders.len(),
            self.rolled_back.len(),
            self.effects.len(),
            self.calls.len(),
            self.attempts.len(),
            self.charges.len(),
            self.kills.len(),
        )
    }
}

/// Fails with the first few things that are wrong.
pub(super) fn assert_kept(wrong: &[String], evidence: &Evidence) {
    let shown: Vec<&str> = wrong.iter().take(10).map(String::as_str).collect();
    assert!(
        wrong.is_empty(),
        "{} broken promises:\n{}\n{}",
        wrong.len(),
        shown.join("\n"),
        evidence.summary()
    );
}
