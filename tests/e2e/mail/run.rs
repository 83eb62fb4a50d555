//! One run, and what must hold of it.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use serde_json::{Value, json};
use tokio::time::sleep;

use super::{
    super::{
        checker::{Attempt, EffectRow},
        processes::eventually,
        shop::{Fleet, Shop, WORKER},
    },
    server::MailServer,
};
use crate::support::Chance;

const WORKERS: usize = 2;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Contract {
    Hold,
    Retry,
}

/// The states in which an effect may end.
const ENDS: &[&str] = &["succeeded", "failed", "in_doubt"];

#[derive(Clone, Copy, Debug)]
pub(super) struct Plan {
    pub(super) mails: usize,
    pub(super) kill_every: Duration,
    /// Time that the server takes for each mail.
    pub(super) slow: Duration,
    /// The run proves something only with so many.
    pub(super) kills: usize,
}

/// What a run showed.
pub(super) struct Showed {
    pub(super) effects: Vec<EffectRow>,
    pub(super) attempts: Vec<Attempt>,
    /// Per Message-ID: whom it was taken for, each time.
    pub(super) taken: BTreeMap<String, Vec<String>>,
    pub(super) figures: Value,
    changed: usize,
    answers_lost: usize,
    kills: usize,
}

impl Contract {
    const fn word(self) -> &'static str {
        match self {
            Self::Hold => "hold",
            Self::Retry => "retry",
        }
    }
}

fn configuration(port: u16, contract: Contract) -> String {
    format!(
        r#"{WORKER}
[downstream.mail]
kind = "smtp"
server = "smtp://127.0.0.1:{port}"
from = "Shop <shop@shop.test>"
timeout = "1s"
data_timeout = "500ms"
lease = "5s"
concurrency = 8
retry = {{ initial = "50ms", max = "500ms", max_attempts = 1000, max_age = "10d" }}
contract = {{ dedupe = "none", on_unknown = "{}" }}
"#,
        contract.word()
    )
}

/// Every twentieth recipient is one that the server refuses.
fn recipient(n: usize) -> String {
    format!("{}{n}@shop.test", if n.is_multiple_of(20) { "refused" } else { "user" })
}

async fn enqueue(shop: &Shop, mails: usize) {
    let rows: Vec<String> = (1..=mails)
        .map(|n| {
            let payload =
                json!({ "to": recipient(n), "subject": format!("Order {n}"), "text": "On its way.\n.\n" });
            format!("('mail', 'order-{n}/mail', '{payload}')")
        })
        .collect();
    for rows in rows.chunks(500) {
        let insert = "INSERT INTO aftercommit.effects (downstream, idempotency_key, payload) VALUES";
        shop.database.execute(&format!("{insert} {}", rows.join(","))).await;
    }
}

/// Kills a worker after the other until every effect has ended.
pub(super) async fn run(purpose: &'static str, plan: Plan, contract: Contract, mut chance: Chance) -> Showed {
    let shop = Shop::on_postgres(purpose).await;
    let server = MailServer::start(chance.fork(), plan.slow).await;
    let config = shop.configure("worker", &configuration(server.port, contract));
    shop.migrate(&config).await;
    enqueue(&shop, plan.mails).await;
    let began = Instant::now();
    let mut fleet = Fleet::start(&shop, &config, WORKERS);
    let begun = async || !server.ledger().taken.is_empty();
    eventually("the first mail is sent (logs: worker-N.log)", Duration::from_secs(30), begun).await;
    let deadline = began + Duration::from_secs(120) + plan.slow * u32::try_from(plan.mails).unwrap_or(0);
    // A worker judges what others left behind when it has lived for a lease: so only as long as there is something to send.
    let sent_or_open = [ENDS, &["in_flight"]].concat();
    while shop.outside(&sent_or_open).await > 0 || fleet.kills.len() < plan.kills {
        assert!(Instant::now() < deadline, "not sent: {:?}\n{}", open(&shop).await, fleet.output());
        // A kill at a steady rate is what disturbs.
        sleep(plan.kill_every).await;
        fleet.kill(fleet.kills.len(), None).await;
    }
    while shop.outside(ENDS).await > 0 {
        assert!(Instant::now() < deadline, "not drained: {:?}\n{}", open(&shop).await, fleet.output());
        sleep(Duration::from_millis(100)).await;
    }
    let seconds = began.elapsed().as_secs_f64();
    let kills = fleet.kills.len();
    fleet.stop().await;
    let (effects, attempts) = (shop.database.effects().await, shop.database.attempts().await);
    let ledger = server.ledger();
    let state = |state: &str| effects.iter().filter(|effect| effect.state == state).count();
    let unknown = attempts.iter().filter(|attempt| attempt.outcome == "unknown").count();
    let duplicates: usize = ledger.taken.values().map(|taken| taken.len() - 1).sum();
    let figures = json!({
        "on_unknown": contract.word(), "mails": plan.mails, "seconds": seconds.round(), "workers": WORKERS, "kills": kills,
        "succeeded": state("succeeded"), "failed": state("failed"), "in_doubt": state("in_doubt"),
        "attempts": attempts.len(), "unknown_attempts": unknown, "message_ids_taken": ledger.taken.len(), "duplicates": duplicates,
        "answers_lost": ledger.answers_lost, "refused": ledger.refused, "not_now": ledger.not_now, "connections": ledger.connections,
    });
    println!("{purpose}: {figures}");
    Showed {
        effects,
        attempts,
        taken: ledger.taken.clone(),
        figures,
        changed: ledger.changed,
        answers_lost: ledger.answers_lost,
        kills,
    }
}

async fn open(shop: &Shop) -> Vec<EffectRow> {
    let effects = shop.database.effects().await;
    effects.into_iter().filter(|effect| !ENDS.contains(&effect.state.as_str())).take(5).collect()
}

/// The promise, from the server's ledger and the database.
pub(super) fn check(showed: &Showed, plan: Plan, contract: Contract) {
    assert_eq!(showed.effects.len(), plan.mails);
    assert_eq!(showed.changed, 0, "every attempt sends the same bytes");
    let known: Vec<String> = (1..=plan.mails).map(|n| format!("<order-{n}/mail$mail@shop.test>")).collect();
    let strange: Vec<_> = showed.taken.keys().filter(|id| !known.contains(id)).collect();
    assert!(strange.is_empty(), "each mail has the id that its key gives: {strange:?}");
    let mut refused = 0;
    for effect in &showed.effects {
        let id = format!("<{}$mail@shop.test>", effect.key);
        let taken = showed.taken.get(&id).map_or(0, Vec::len);
        let unknown = showed
            .attempts
            .iter()
            .filter(|attempt| attempt.effect_id == effect.id && attempt.outcome == "unknown")
            .count();
        let what = format!("{effect:?} was taken {taken} times, {unknown} attempts unknown");
        match effect.state.as_str() {
            "succeeded" => assert!(taken >= 1, "lost: {what}"),
            "failed" => {
                refused += 1;
                assert_eq!(taken, 0, "{what}");
                let said = effect.last_error.as_deref().unwrap_or_default();
                assert!(said.contains("we do not know whom you mean"), "{what}");
            }
            // A refusal proves nothing about an attempt before it, of which nobody knows.
            _ => assert!(contract == Contract::Hold || (taken == 0 && unknown > 0), "{what}"),
        }
        match contract {
            Contract::Hold => assert!(taken <= 1, "sent twice: {what}"),
            Contract::Retry => assert!(taken <= 1 + unknown, "more often than there was doubt: {what}"),
        }
    }
    for (id, recipients) in &showed.taken {
        assert!(recipients.iter().all(|to| to == &recipients[0]), "{id} went to {recipients:?}");
    }
    // The run proves something only if it was disturbed enough.
    assert!(showed.kills >= plan.kills, "only {} kills", showed.kills);
    assert!(showed.answers_lost * 100 >= plan.mails * 3, "only {} answers were lost", showed.answers_lost);
    let refusable = plan.mails / 20;
    assert!(refused * 10 >= refusable * 5, "only {refused} of {refusable} refusals ended decisively");
}
