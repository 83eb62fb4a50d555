//! The main job under faults: orders and charges arrive by psql, calls and answers are lost, workers are killed, and a
//! payment server that nobody here wrote must have charged every committed order once.

use std::time::{Duration, Instant};

use tokio::time::{MissedTickBehavior, interval, sleep_until};

use crate::support::Chance;

use super::{
    checker::{Evidence, assert_kept},
    environment,
    ledger_proxy::{Faults, LedgerProxy},
    processes::{Psql, eventually},
    servers::PaymentServer,
    shop::{Fleet, Shop, WORKER, payments, payments_with},
};

/// What a run is given.
struct Plan<'a> {
    purpose: &'static str,
    contract: Option<&'a str>,
    lasts: Duration,
    /// The states in which an effect may end.
    ends: &'static [&'static str],
}

/// What a run showed, besides the evidence.
struct Showed {
    evidence: Evidence,
    replays: u64,
    kills_with_open_call: usize,
}

const ORDER_EVERY: Duration = Duration::from_millis(40);
const KILL_EVERY: Duration = Duration::from_millis(300);
const WORKERS: usize = 3;

async fn run(plan: Plan<'_>) -> Showed {
    let chance = Chance::seeded();
    let shop = Shop::on_postgres(plan.purpose).await;
    let server = PaymentServer::start(shop.folder.path()).await;
    let proxy = LedgerProxy::start(&server.address, shop.folder.path(), Faults::MAIN, chance).await;
    let downstream = match plan.contract {
        None => payments(&proxy.url()),
        Some(contract) => payments_with(&proxy.url(), contract),
    };
    let config = shop.configure("worker", &format!("{WORKER}{downstream}"));
    shop.migrate(&config).await;

    let mut fleet = Fleet::start(&shop, &config, WORKERS);
    let rolled_back = disturb(&shop, &mut fleet, &proxy, plan.lasts).await;
    let what = format!("every effect is {:?} (the workers' logs are below)", plan.ends);
    let drained = async || shop.outside(plan.ends).await == 0;
    tokio::select! {
        () = eventually(&what, Duration::from_secs(90), drained) => {}
        () = sleep_until((Instant::now() + Duration::from_secs(80)).into()) => {
            let evidence = shop.evidence(proxy.ledger(), server.charges().await).await;
            panic!("not drained: {}\n{}", evidence.summary(), fleet.output());
        }
    }

    let mut evidence = shop.evidence(proxy.ledger(), server.charges().await).await;
    evidence.rolled_back = rolled_back;
    evidence.kills.clone_from(&fleet.kills);
    let showed =
        Showed { evidence, replays: proxy.replays(), kills_with_open_call: fleet.kills_with_open_call };
    fleet.stop().await;
    println!(
        "{}: {}; {} attempts unknown, {} kills hit an open call, {} replays; lost: {:?}",
        plan.purpose,
        showed.evidence.summary(),
        showed.evidence.unknown_attempts(),
        showed.kills_with_open_call,
        showed.replays,
        proxy.losses()
    );
    showed
}

/// Orders at a steady rate, a kill at a steady rate, for so long. Every tenth order is rolled back; those are returned.
async fn disturb(shop: &Shop, fleet: &mut Fleet<'_>, proxy: &LedgerProxy, lasts: Duration) -> Vec<String> {
    let mut psql = Psql::open(&shop.database.url(), &shop.path("psql.log"));
    let example = environment::example("orders.sql");
    let mut orders = interval(ORDER_EVERY);
    let mut kills = interval(KILL_EVERY);
    kills.set_missed_tick_behavior(MissedTickBehavior::Delay);
    let end = Instant::now() + lasts;
    let (mut order, mut victim, mut rolled_back) = (0_u32, 0_usize, Vec::new());
    while Instant::now() < end {
        tokio::select! {
            _tick = orders.tick() => {
                order += 1;
                if order.is_multiple_of(10) {
                    let name = format!("R-{order}");
                    psql.feed(&shop.order_sql(&name, "ROLLBACK")).await;
                    rolled_back.push(name);
                } else {
                    let variables = format!("\\set order A-{order}\n\\set amount {}", 1000 + order);
                    psql.feed(&format!("{variables}\n\\i {}", example.display())).await;
                }
            }
            _tick = kills.tick() => {
                victim += 1;
                fleet.kill(victim, Some(proxy)).await;
            }
        }
    }
    psql.close().await;
    rolled_back
}

/// IDEMP-OUT-02, traps T4 and T12.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_committed_order_is_charged_once_whatever_is_killed() {
    let plan =
        Plan { purpose: "main_run", contract: None, lasts: Duration::from_secs(20), ends: &["succeeded"] };
    let showed = run(plan).await;
    let evidence = &showed.evidence;
    assert_kept(&evidence.charged_once(), evidence);
    // The run proves something only if it was disturbed enough.
    assert!(evidence.orders.len() >= 400, "only {} orders committed", evidence.orders.len());
    assert!(
        evidence.unknown_attempts() >= 100,
        "only {} attempts ended unknown",
        evidence.unknown_attempts()
    );
    assert!(showed.kills_with_open_call >= 30, "only {} kills hit an open call", showed.kills_with_open_call);
    assert!(showed.replays >= 50, "only {} replays", showed.replays);
}

/// Trap T4.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_downstream_that_cannot_deduplicate_is_never_called_twice_for_a_key() {
    let plan = Plan {
        purpose: "hold_run",
        contract: Some("contract = { dedupe = \"none\", on_unknown = \"hold\" }"),
        lasts: Duration::from_secs(8),
        ends: &["succeeded", "in_doubt"],
    };
    let showed = run(plan).await;
    let evidence = &showed.evidence;
    assert_kept(&evidence.called_at_most_once(), evidence);
    let state = |state: &str| evidence.effects.iter().filter(|effect| effect.state == state).count();
    assert!(state("succeeded") >= 20, "only {} succeeded", state("succeeded"));
    assert!(state("in_doubt") >= 20, "only {} are in doubt", state("in_doubt"));
    assert!(showed.kills_with_open_call >= 5, "only {} kills hit an open call", showed.kills_with_open_call);
}
