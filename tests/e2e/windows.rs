//! Windows: what is uncertain is sent again only as long as the downstream remembers its key; what is certain has time. The
//! stored times are shifted, since nobody waits a day for a test.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;

use super::{
    database::Database,
    processes::Process,
    servers::{Reply, ScriptedServer},
    shop::{Shop, WORKER, payments_with},
};

const CONTRACT: &str = "contract = { dedupe = \"key\", window = \"24h\", margin = \"5m\" }";
const SOON: Duration = Duration::from_secs(20);

/// Answers nobody waits for: applied, and the caller has long timed out.
const TOO_LATE: Reply = Reply::done_after(Duration::from_secs(4));

/// A shop whose server answers too late as long as nothing else is said, and the configuration for it.
async fn shop_with(
    purpose: &str,
    script: impl Fn(&super::wire::Message, u32) -> Reply + Send + Sync + 'static,
) -> (Shop, ScriptedServer, PathBuf) {
    let shop = Shop::on_postgres(purpose).await;
    let server = ScriptedServer::start(shop.folder.path(), script).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments_with(&server.url(), CONTRACT)));
    shop.migrate(&config).await;
    (shop, server, config)
}

/// Orders whose first attempts went unanswered; no worker runs afterwards.
async fn make_uncertain(shop: &Shop, config: &PathBuf, orders: &[&str]) {
    for order in orders {
        shop.order(order).await;
    }
    let worker = shop.worker("first", config);
    for order in orders {
        let key = key(order);
        super::processes::eventually("the first attempt is logged as unknown", SOON, async || {
            shop.database.attempts_of(&key).await.iter().any(|attempt| attempt.outcome == "unknown")
        })
        .await;
    }
    drained(worker).await;
}

async fn drained(mut worker: Process) {
    worker.signal(Signal::TERM);
    let status = worker.ended(SOON).await;
    assert!(status.success(), "{}", worker.output());
}

fn key(order: &str) -> String {
    format!("order-{order}/charge")
}

/// Moves an uncertain effect in time: its window (with the margin taken off) ends in `safe_for`, and it is due in `due_in`.
async fn shift(database: &Database, order: &str, safe_for: &str, due_in: &str) {
    let sql = format!(
        "UPDATE aftercommit.queue q
            SET first_sent_at = clock_timestamp() - interval '24 hours' + interval '5 minutes' + interval '{safe_for}',
                started_at = clock_timestamp() - interval '24 hours',
                sweep_at = clock_timestamp() + interval '{safe_for}',
                quiet_at = least(quiet_at, clock_timestamp() - interval '1 hour'),
                due_at = clock_timestamp() + interval '{due_in}', lane = 't'
           FROM aftercommit.effects e
          WHERE e.id = q.id AND e.idempotency_key = '{}' AND q.uncertain AND NOT q.claimed",
        key(order)
    );
    let moved = database.try_execute(&sql).await.expect("the queue is as notes say");
    assert_eq!(moved, 1, "order {order} is not an unclaimed, uncertain effect");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncertain_effect_is_retried_inside_its_window_and_parked_after_it() {
    let answers = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    let says = std::sync::Arc::clone(&answers);
    let (shop, server, config) = shop_with("window", move |_request, _nth| {
        if says.load(std::sync::atomic::Ordering::SeqCst) { Reply::DONE } else { TOO_LATE }
    })
    .await;
    let parked = ["past", "comes-due", "never-due", "claimed-across"];
    let mut orders = vec!["inside"];
    orders.extend(parked);
    make_uncertain(&shop, &config, &orders).await;
    let calls = |order: &str| server.counts(&key(order)).0;
    let before: Vec<u32> = parked.iter().map(|order| calls(order)).collect();

    shift(&shop.database, "inside", "10 minutes", "-1 second").await;
    shift(&shop.database, "past", "-1 minute", "-1 second").await;
    shift(&shop.database, "comes-due", "2 seconds", "3 seconds").await;
    shift(&shop.database, "never-due", "2 seconds", "1 hour").await;
    // Due at once, while less than one timeout is left: a call would end after the window.
    shift(&shop.database, "claimed-across", "900 milliseconds", "-1 second").await;
    answers.store(true, std::sync::atomic::Ordering::SeqCst);
    let worker = shop.worker("second", &config);

    assert_eq!(shop.settled(&key("inside"), &["succeeded", "in_doubt", "failed"], SOON).await, "succeeded");
    for (order, before) in parked.iter().zip(before) {
        let state = shop.settled(&key(order), &["succeeded", "in_doubt", "failed"], SOON).await;
        assert_eq!(state, "in_doubt", "{order}: {:?}", shop.database.effect(&key(order)).await);
        assert_eq!(calls(order), before, "{order} was sent again after its window");
    }
    drained(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_uncertain_effect_whose_window_ends_while_paused_is_parked() {
    let (shop, server, config) = shop_with("paused", |_request, _nth| TOO_LATE).await;
    make_uncertain(&shop, &config, &["paused"]).await;
    let before = server.counts(&key("paused"));
    let pause = "UPDATE aftercommit.downstreams SET paused_at = clock_timestamp(), paused_by = 'test' WHERE name = 'payments'";
    shop.database.execute(pause).await;
    shift(&shop.database, "paused", "2 seconds", "-1 second").await;
    let worker = shop.worker("second", &config);
    let state = shop.settled(&key("paused"), &["succeeded", "in_doubt", "failed"], SOON).await;
    assert_eq!((state.as_str(), server.counts(&key("paused"))), ("in_doubt", before));
    drained(worker).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_effect_that_was_certainly_never_sent_is_retried_after_three_days() {
    let (shop, server, config) = shop_with("certain", |_request, _nth| Reply::DONE).await;
    // The same downstream at a port where nobody listens: refused connections are certainly not applied.
    let nobody = format!("http://127.0.0.1:{}", super::processes::free_port());
    let away = shop.configure("away", &format!("{WORKER}{}", payments_with(&nobody, CONTRACT)));
    shop.order("certain").await;
    let worker = shop.worker("first", &away);
    super::processes::eventually("a refused connection is logged", SOON, async || {
        shop.database
            .attempts_of(&key("certain"))
            .await
            .iter()
            .any(|attempt| attempt.outcome == "not_applied")
    })
    .await;
    drained(worker).await;
    let moved = "UPDATE aftercommit.queue SET started_at = started_at - interval '3 days',
                        due_at = due_at - interval '3 days', quiet_at = quiet_at - interval '3 days'";
    shop.database.execute(moved).await;
    let worker = shop.worker("second", &config);
    assert_eq!(shop.settled(&key("certain"), &["succeeded", "in_doubt", "failed"], SOON).await, "succeeded");
    assert_eq!(server.counts(&key("certain")), (1, 1));
    let attempts = shop.database.attempts_of(&key("certain")).await;
    assert!(attempts.iter().rev().skip(1).all(|attempt| attempt.outcome == "not_applied"), "{attempts:#?}");
    drained(worker).await;
}

/// IDEMP-OUT-02 and trap T12: a new version is deployed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_configuration_parks_the_uncertain_and_pins_the_certain_anew() {
    let busy = Reply { applies: false, status: 429, ..Reply::DONE };
    let (shop, server, config) = shop_with("changed", move |request, _nth| {
        let uncertain = request.header("idempotency-key").is_some_and(|key| key.contains("uncertain"));
        match (request.word(1), uncertain) {
            ("/v1/charges", true) => TOO_LATE,
            ("/v1/charges", false) => busy.clone(),
            _ => Reply::DONE,
        }
    })
    .await;
    shop.order("certain").await;
    make_uncertain(&shop, &config, &["uncertain"]).await;
    let refused = shop.database.attempts_of(&key("certain")).await;
    assert!(refused.iter().any(|attempt| attempt.outcome == "not_applied"), "{refused:#?}");

    let moved =
        std::fs::read_to_string(&config).expect("it was written").replace("/v1/charges", "/v2/charges");
    let changed = shop.path("changed.toml");
    std::fs::write(&changed, moved).expect("the folder is writable");
    let worker = shop.worker("second", &changed);
    let end = ["succeeded", "in_doubt", "failed"];
    assert_eq!(shop.settled(&key("certain"), &end, SOON).await, "succeeded");
    assert_eq!(shop.settled(&key("uncertain"), &end, SOON).await, "in_doubt");
    drained(worker).await;
    let paths = |order: &str| -> Vec<String> {
        server.ledger().calls_of(&key(order)).into_iter().map(|call| call.path).collect()
    };
    assert_eq!(paths("certain").last().map(String::as_str), Some("/v2/charges"));
    assert!(paths("uncertain").iter().all(|path| path == "/v1/charges"), "{:?}", paths("uncertain"));
}
