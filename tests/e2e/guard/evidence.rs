//! The checker: from what clients sent and heard, and from what the tables hold, whether the guard kept its promise. A pure
//! function of its evidence, so that forged evidence shows that it would have noticed ([`super::can_fail`]).

use std::collections::{BTreeMap, BTreeSet};

use aftercommit::key;

use super::client::{Answer, Exchange};

/// A row of the business table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) id: i64,
    pub(super) scope: String,
    pub(super) key: String,
}

/// An effect of an order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Effect {
    pub(super) key: String,
    pub(super) order: i64,
}

/// All that is known of a run.
#[derive(Clone, Debug, Default)]
pub(super) struct Evidence {
    pub(super) exchanges: Vec<Exchange>,
    pub(super) orders: Vec<Order>,
    pub(super) effects: Vec<Effect>,
    /// Transactions that are still open although no request is.
    pub(super) strays: usize,
}

/// The name that the handler's effect has among those of its request.
const EFFECT: &str = "payments/";

type Key<'a> = (&'a str, &'a str);

impl Evidence {
    /// What is wrong.
    pub(super) fn broken_promises(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        if self.strays > 0 {
            wrong.push(format!("stray: {} transactions are open and nobody uses them", self.strays));
        }
        let mut orders: BTreeMap<Key<'_>, Vec<&Order>> = BTreeMap::new();
        for order in &self.orders {
            orders.entry((&order.scope, &order.key)).or_default().push(order);
        }
        for (key, orders) in orders.iter().filter(|(_, orders)| orders.len() > 1) {
            wrong.push(format!("twice: {key:?} has {} orders: {orders:?}", orders.len()));
        }
        wrong.extend(self.effects_match_orders());
        for exchange in &self.exchanges {
            wrong.extend(manners(exchange));
        }
        let by_key = self.by_key();
        for key in orders.keys().filter(|key| !by_key.contains_key(*key)) {
            wrong.push(format!("phantom: {key:?} has an order, and nobody asked for one"));
        }
        for (key, exchanges) in &by_key {
            let orders = orders.get(key).cloned().unwrap_or_default();
            wrong.extend(one_key(*key, exchanges, &orders));
        }
        wrong
    }

    /// Fails with the first few things that are wrong.
    pub(super) fn assert_kept(&self) {
        let wrong = self.broken_promises();
        let shown: Vec<&str> = wrong.iter().take(10).map(String::as_str).collect();
        assert!(
            wrong.is_empty(),
            "{} broken promises:\n{}\n{}",
            wrong.len(),
            shown.join("\n"),
            self.summary()
        );
    }

    /// How often each status was heard; 0: nothing was.
    pub(super) fn statuses(&self) -> BTreeMap<u16, usize> {
        let mut statuses = BTreeMap::new();
        for exchange in &self.exchanges {
            *statuses.entry(exchange.heard.as_ref().map_or(0, |answer| answer.status)).or_default() += 1;
        }
        statuses
    }

    /// How many answers said that they were replays.
    pub(super) fn replays(&self) -> usize {
        self.exchanges.iter().filter(|of| of.heard.as_ref().is_some_and(Answer::is_replay)).count()
    }

    pub(super) fn summary(&self) -> String {
        format!(
            "{} requests {:?}, {} replays; {} orders; {} effects",
            self.exchanges.len(),
            self.statuses(),
            self.replays(),
            self.orders.len(),
            self.effects.len()
        )
    }

    fn by_key(&self) -> BTreeMap<Key<'_>, Vec<&Exchange>> {
        let mut by_key: BTreeMap<Key<'_>, Vec<&Exchange>> = BTreeMap::new();
        for exchange in &self.exchanges {
            by_key.entry((&exchange.ask.scope, &exchange.ask.key)).or_default().push(exchange);
        }
        by_key
    }

    /// Every order has its one effect, with the key that is derived from the request's; there is no other effect.
    fn effects_match_orders(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        let ids: BTreeSet<i64> = self.orders.iter().map(|order| order.id).collect();
        for effect in self.effects.iter().filter(|effect| !ids.contains(&effect.order)) {
            wrong.push(format!("phantom: {effect:?} has no order"));
        }
        let mut effects: BTreeMap<i64, Vec<&Effect>> = BTreeMap::new();
        for effect in &self.effects {
            effects.entry(effect.order).or_default().push(effect);
        }
        for order in &self.orders {
            let effects = effects.get(&order.id).cloned().unwrap_or_default();
            let derived = key::derive(&order.scope, &order.key, EFFECT);
            match effects.as_slice() {
                [] => wrong.push(format!("lost: {order:?} has no effect")),
                [effect] if effect.key == derived.as_str() => {}
                [effect] => wrong.push(format!("a key of its own: {effect:?} of {order:?} is not {derived}")),
                more => wrong.push(format!("twice: {order:?} has {} effects", more.len())),
            }
        }
        wrong
    }
}

/// What every answer must be like, whatever the request.
fn manners(exchange: &Exchange) -> Option<String> {
    let answer = exchange.heard.as_ref()?;
    let unfriendly = answer.asks_again() && !answer.has("retry-after");
    let failed = answer.status >= 500 && answer.status != 503;
    (failed || unfriendly).then(|| format!("manners: {:?} was told {}", exchange.ask, answer.shown()))
}

/// What the clients of one key were told, against its orders.
fn one_key(key: Key<'_>, exchanges: &[&Exchange], orders: &[&Order]) -> Vec<String> {
    let mut wrong = Vec::new();
    let heard: Vec<(&str, &Answer)> =
        exchanges.iter().filter_map(|of| Some((of.ask.body.as_str(), of.heard.as_ref()?))).collect();
    let successes: Vec<_> = heard.iter().filter(|(_, answer)| answer.is_success()).collect();
    if let Some((body, first)) = successes.first() {
        if orders.is_empty() {
            wrong.push(format!("lost: {key:?} was told {}, and there is no order", first.shown()));
        }
        if let Some((_, other)) = successes.iter().find(|(_, other)| other.lasting() != first.lasting()) {
            wrong.push(format!("two answers: {key:?} was told {first:?} and {other:?}"));
        }
        if let Some((other, _)) = successes.iter().find(|(other, _)| other != body) {
            wrong.push(format!("a stranger's answer: {key:?} was told the same for {body} and {other}"));
        }
        let firsts = successes.iter().filter(|(_, answer)| !answer.is_replay()).count();
        if firsts > 1 {
            wrong.push(format!("twice: {firsts} answers of {key:?} were no replays"));
        }
        for order in orders {
            let named = format!("\"order\":{},", order.id);
            if !String::from_utf8_lossy(&first.body).contains(&named) {
                wrong.push(format!("another's order: {key:?} has {order:?} and was told {}", first.shown()));
            }
        }
    }
    let refused = |answer: &Answer| (400..500).contains(&answer.status);
    let all_refused = heard.len() == exchanges.len() && heard.iter().all(|(_, answer)| refused(answer));
    if all_refused && !orders.is_empty() {
        wrong.push(format!("a refusal that was none: {key:?} only heard refusals, and has {orders:?}"));
    }
    let bodies: BTreeSet<&str> = exchanges.iter().map(|of| of.ask.body.as_str()).collect();
    if bodies.len() == 1 && heard.iter().any(|(_, answer)| answer.status == 422) {
        wrong.push(format!("a false mismatch: {key:?} was sent with one body only"));
    }
    wrong
}
