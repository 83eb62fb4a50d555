//! Guarantee: only what the configuration names is declared; what exists otherwise is named, and leaves the rest alone
//! (AMQP-07).

use std::time::Duration;

use aftercommit::{engine::Stop, outcome::Finding};
use lapin::types::{AMQPValue, FieldTable};

use super::{
    engine,
    rabbit::{Rabbit, shared_url, unique},
    send, send_by, served, shows,
};
use crate::support::{TestDatabase, eventually, on_every_database, within};

on_every_database!(effects_for_other_queues_go_on_beside_a_queue_that_is_amiss);

fn ttl(ms: i32) -> FieldTable {
    let mut arguments = FieldTable::default();
    arguments.insert("x-message-ttl".into(), AMQPValue::LongInt(ms));
    arguments
}

#[tokio::test(flavor = "multi_thread")]
async fn a_queue_with_other_properties_is_refused_with_the_argument_that_differs_and_others_go_on() {
    let (rabbit, queue, other) = (Rabbit::at(&shared_url()).await, unique("ttl"), unique("other"));
    rabbit.queue_with(&queue, ttl(60_000)).await;
    rabbit.queue(&other).await;
    let table = |more: &str| {
        format!(
            "[downstream.orders.declare]\n{more}queues = [{{ name = \"{queue}\", arguments = {{ x-message-ttl = 1000 }} }}]"
        )
    };
    let refusing = served(&shared_url(), &table(""));
    for _ in 0..2 {
        let outcome = send(&refusing, "k", &queue).await;
        shows(&outcome, Finding::NotApplied, "x-message-ttl");
        assert!(!outcome.phase.may_have_reached(), "it costs no attempt");
        assert!(!outcome.refuses_us, "other queues are as they should be: {outcome:?}");
        shows(&send(&refusing, "o", &other).await, Finding::Applied, "confirmed");
    }
    let using = served(&shared_url(), &table("on_mismatch = \"use\"\n"));
    shows(&send(&using, "used", &queue).await, Finding::Applied, "confirmed");
    assert_eq!(rabbit.take_ids(&queue).await, ["used"]);
    // Mended, the next attempt declares it.
    rabbit.delete_queue(&queue).await;
    shows(&send(&refusing, "mended", &queue).await, Finding::Applied, "confirmed");
    rabbit.delete_queue(&queue).await;
    rabbit.delete_queue(&other).await;
    rabbit.leave().await;
}

async fn effects_for_other_queues_go_on_beside_a_queue_that_is_amiss(db: &TestDatabase) {
    const PATIENCE: Duration = Duration::from_secs(60);
    let (rabbit, amiss, fine) = (Rabbit::at(&shared_url()).await, unique("amiss"), unique("fine"));
    rabbit.queue_with(&amiss, ttl(60_000)).await;
    let insert = async |key: &str, queue: &str| {
        db.insert_with("orders", key, &[("target", format!("'{queue}'").as_str())]).await
    };
    let table = format!(
        "[downstream.orders.declare]\nqueues = [{{ name = \"{amiss}\", arguments = {{ x-message-ttl = 1000 }} }}, \
         {{ name = \"{fine}\" }}]"
    );
    let stuck = insert("stuck", &amiss).await;
    let (worker, stop) = (engine(db, served(&shared_url(), &table), 8), Stop::default());
    let running = tokio_util::task::TaskTracker::new().spawn({
        let stop = stop.clone();
        async move { worker.run(stop).await }
    });
    eventually(PATIENCE, "the refusal is shown", async || (!db.log(stuck).await.is_empty()).then_some(()))
        .await;
    // Nobody resumes anything.
    let goes_on = insert("goes-on", &fine).await;
    eventually(PATIENCE, "the other queue has its message", async || {
        db.state(goes_on).await.is_terminal().then_some(())
    })
    .await;
    stop.drain.cancel();
    within(PATIENCE, "the worker's end", running).await.expect("no panic").expect("the worker runs");
    assert_eq!(rabbit.take_ids(&fine).await, ["goes-on"]);
    assert!(!db.state(stuck).await.is_terminal(), "it waits");
    rabbit.delete_queue(&amiss).await;
    rabbit.delete_queue(&fine).await;
    rabbit.leave().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_topology_is_declared_before_the_first_message() {
    let (rabbit, exchange, queue) = (Rabbit::at(&shared_url()).await, unique("events"), unique("billing"));
    let served = served(
        &shared_url(),
        &format!(
            "exchange = \"{exchange}\"\n[downstream.orders.declare]\n\
             exchanges = [{{ name = \"{exchange}\", type = \"topic\" }}]\n\
             queues = [{{ name = \"{queue}\", arguments = {{ x-queue-type = \"quorum\" }} }}]\n\
             bindings = [{{ exchange = \"{exchange}\", queue = \"{queue}\", routing_key = \"order.#\" }}]"
        ),
    );
    shows(&send(&served, "k", "order.placed").await, Finding::Applied, "confirmed");
    assert_eq!(rabbit.take_ids(&queue).await, ["k"]);
    rabbit.delete_exchange(&exchange).await;
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}

/// Nothing is declared that nobody named: a missing exchange is a fault of the configuration.
#[tokio::test(flavor = "multi_thread")]
async fn a_missing_exchange_pauses_who_has_no_other_and_leaves_others_alone() {
    let (rabbit, queue) = (Rabbit::at(&shared_url()).await, unique("rest"));
    rabbit.queue(&queue).await;
    let alone = served(&shared_url(), "exchange = \"no-such-exchange\"");
    let outcome = send(&alone, "k", "x").await;
    shows(&outcome, Finding::NotApplied, "no-such-exchange");
    assert!(outcome.refuses_us && !outcome.phase.may_have_reached(), "{outcome:?}");
    let two = served(&shared_url(), "[downstream.orders.operations.event]\nexchange = \"no-such-exchange\"");
    let outcome = send_by(&two, Some("event"), "k", "x").await;
    shows(&outcome, Finding::NotApplied, "no-such-exchange");
    assert!(!outcome.refuses_us && !outcome.phase.may_have_reached(), "{outcome:?}");
    shows(&send(&two, "o", &queue).await, Finding::Applied, "confirmed");
    rabbit.delete_queue(&queue).await;
    rabbit.leave().await;
}
