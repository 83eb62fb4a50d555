//! Signals at awkward moments: a worker killed and replaced under the same host name, one that sleeps through its lease, one
//! that is asked to stop.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use rustix::process::Signal;
use tokio::task::JoinSet;

use super::{
    clock::now_us,
    processes::{ending, eventually},
    servers::{Reply, ScriptedServer},
    shop::{Shop, WORKER, payments},
    wire::Message,
};

const SOON: Duration = Duration::from_secs(20);
const END: [&str; 3] = ["succeeded", "in_doubt", "failed"];

async fn shop_with(
    purpose: &str,
    worker: &str,
    script: impl Fn(&Message, u32) -> Reply + Send + Sync + 'static,
) -> (Shop, ScriptedServer, PathBuf) {
    let shop = Shop::on_postgres(purpose).await;
    let server = ScriptedServer::start(shop.folder.path(), script).await;
    let config = shop.configure("worker", &format!("{worker}{}", payments(&server.url())));
    shop.migrate(&config).await;
    (shop, server, config)
}

/// Timeouts that outlast a slow answer.
fn patient(payments: &str) -> String {
    payments.replace("timeout = \"1s\"", "timeout = \"6s\"")
}

const PATIENT_WORKER: &str = "[worker]\nlease = \"8s\"\npoll = \"200ms\"\nshutdown_grace = \"2s\"\n";

fn key(order: &str) -> String {
    format!("order-{order}/charge")
}

async fn called(server: &ScriptedServer, order: &str, times: u32) {
    let what = format!("{order} is called {times} times; it was {:?}", server.counts(&key(order)));
    eventually(&what, SOON, async || server.counts(&key(order)).0 >= times).await;
}

/// LEASE-13.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_worker_does_not_keep_the_claim_of_its_killed_predecessor_alive() {
    let (shop, server, config) = shop_with("lease13", WORKER, |_request, nth| {
        if nth == 1 { Reply::done_after(Duration::from_secs(30)) } else { Reply::DONE }
    })
    .await;
    for (order, pruned) in [("pruned", true), ("restarted", false)] {
        let mut first = shop.worker("worker", &config);
        shop.order(order).await;
        called(&server, order, 1).await;
        first.kill().await;
        if pruned {
            shop.database.execute("DELETE FROM aftercommit.workers").await;
        }
        let mut second = shop.worker("worker", &config);
        assert_eq!(shop.settled(&key(order), &END, SOON).await, "succeeded");
        assert_eq!(server.counts(&key(order)).0, 2, "it is reclaimed once");
        let attempts = shop.database.attempts_of(&key(order)).await;
        let outcomes: Vec<&str> = attempts.iter().map(|attempt| attempt.outcome.as_str()).collect();
        assert_eq!(outcomes, ["unknown", "applied"], "{attempts:#?}");
        assert_ne!(attempts[0].worker, attempts[1].worker, "a new process has a name of its own");
        let waited = attempts[1].started - attempts[0].started;
        assert!(
            waited >= 2_900_000,
            "the claim was taken over {waited} us after it was made, within its lease"
        );
        second.kill().await;
    }
}

/// A zombie: stopped past its lease, it wakes up with a refusal in its hands.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_that_slept_through_its_lease_cannot_overwrite_what_happened_since() {
    let declined = Reply {
        applies: false,
        after: Duration::from_millis(300),
        status: 402,
        headers: "",
        body: r#"{"error":{"type":"card_error","code":"card_declined"}}"#,
    };
    let (shop, server, config) = shop_with("zombie", WORKER, move |_request, nth| {
        if nth == 1 { declined.clone() } else { Reply::done_after(Duration::from_millis(500)) }
    })
    .await;
    let mut zombie = shop.worker("zombie", &config);
    shop.order("z").await;
    called(&server, "z", 1).await;
    zombie.signal(Signal::STOP);
    let mut other = shop.worker("other", &config);
    called(&server, "z", 2).await;
    zombie.signal(Signal::CONT);
    assert_eq!(shop.settled(&key("z"), &END, SOON).await, "succeeded");

    // The zombie is a worker like any other again, and its late word changes nothing.
    other.signal(Signal::TERM);
    assert!(other.ended(SOON).await.success(), "{}", other.output());
    shop.order("afterwards").await;
    shop.settled(&key("afterwards"), &END, SOON).await;
    assert!(zombie.has_ended().is_none(), "{}", zombie.output());
    zombie.signal(Signal::TERM);
    assert!(zombie.ended(SOON).await.success(), "{}", zombie.output());
    assert_eq!(shop.database.effect(&key("z")).await.state, "succeeded");
    let attempts = shop.database.attempts_of(&key("z")).await;
    assert!(attempts.iter().any(|row| row.outcome == "applied"), "{attempts:#?}");
    assert!(server.counts(&key("z")).0 == 2, "{:?}", server.counts(&key("z")));
}

/// CRASH-08 and CRASH-10, the first TERM.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_first_term_drains_and_what_does_not_finish_is_not_failed() {
    let (shop, server, _config) = shop_with("drain", WORKER, |request, nth| {
        let slow = request.header("idempotency-key").is_some_and(|key| key.contains("slow"));
        Reply::done_after(match (slow, nth) {
            (true, 1) => Duration::from_secs(5),
            (true, _) => Duration::ZERO,
            (false, _) => Duration::from_millis(1200),
        })
    })
    .await;
    let settings = format!("{PATIENT_WORKER}{}", patient(&payments(&server.url())));
    let config = shop.configure("patient", &settings);
    let mut worker = shop.worker("worker", &config);
    let (quick, slow) = (["quick-1", "quick-2", "quick-3"], ["slow-1", "slow-2"]);
    for order in quick.iter().chain(&slow) {
        shop.order(order).await;
    }
    for order in quick.iter().chain(&slow) {
        called(&server, order, 1).await;
    }
    worker.signal(Signal::TERM);
    let asked = Instant::now();
    shop.order("too-late").await;
    let status = worker.ended(Duration::from_secs(6)).await;
    assert!(status.success(), "{}\n{}", ending(status), worker.output());
    assert!(asked.elapsed() >= Duration::from_millis(1000), "it did not wait for its open calls");
    assert_eq!(server.counts(&key("too-late")).0, 0, "it claimed after TERM");
    for order in quick {
        let effect = shop.database.effect(&key(order)).await;
        assert_eq!((effect.state.as_str(), effect.attempts), ("succeeded", 1), "{effect:?}");
    }
    for order in slow {
        let effect = shop.database.effect(&key(order)).await;
        assert!(matches!(effect.state.as_str(), "in_flight" | "retrying" | "ready"), "{effect:?}");
    }
    let mut next = shop.worker("next", &config);
    for order in quick.iter().chain(&slow).chain(&["too-late"]) {
        assert_eq!(shop.settled(&key(order), &END, SOON).await, "succeeded");
    }
    for order in slow {
        assert_eq!(server.counts(&key(order)).0, 2, "the next try has the same key");
    }
    next.signal(Signal::TERM);
    assert!(next.ended(SOON).await.success(), "{}", next.output());
}

/// CRASH-10, the second TERM.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_second_term_stops_at_once() {
    let (shop, server, _config) =
        shop_with("term_twice", WORKER, |_request, _nth| Reply::done_after(Duration::from_secs(5))).await;
    let worker = PATIENT_WORKER.replace("shutdown_grace = \"2s\"", "shutdown_grace = \"60s\"");
    let config = shop.configure("patient", &format!("{worker}{}", patient(&payments(&server.url()))));
    let mut worker = shop.worker("worker", &config);
    shop.order("slow").await;
    called(&server, "slow", 1).await;
    worker.signal(Signal::TERM);
    eventually("the worker says that it drains", SOON, async || {
        let output = worker.output().to_lowercase();
        output.contains("drain") || output.contains("stop")
    })
    .await;
    assert!(worker.has_ended().is_none(), "the first TERM must wait for the open call: {}", worker.output());
    worker.signal(Signal::TERM);
    let asked = Instant::now();
    worker.ended(SOON).await;
    assert!(asked.elapsed() < Duration::from_secs(3), "it took {:?}", asked.elapsed());
    assert_ne!(shop.database.effect(&key("slow")).await.state, "failed");
}

/// RUNTIME-07.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_term_under_a_stream_of_inserts_ends_cleanly_and_nothing_is_claimed_after_it() {
    let (shop, server, config) = shop_with("term_inserts", WORKER, |_request, _nth| Reply::DONE).await;
    let shop = Arc::new(shop);
    let stop = Arc::new(AtomicBool::new(false));
    let mut producers = JoinSet::new();
    for producer in 0..4 {
        let (shop, stop) = (Arc::clone(&shop), Arc::clone(&stop));
        producers.spawn(async move {
            let mut n = 0;
            while !stop.load(Ordering::SeqCst) {
                shop.order(&format!("{producer}-{n}")).await;
                n += 1;
                // The rate of the case: four producers make about 200 a second.
                tokio::time::sleep(Duration::from_millis(15)).await;
            }
        });
    }
    for round in 0..3 {
        let mut worker = shop.worker(&format!("worker-{round}"), &config);
        let seen = server.all_counts().len();
        eventually("the worker works", SOON, async || server.all_counts().len() > seen + 20).await;
        let asked = now_us();
        worker.signal(Signal::TERM);
        let status = worker.ended(SOON).await;
        assert!(status.success(), "{}\n{}", ending(status), worker.output());
        assert!(!worker.output().contains("panicked"), "{}", worker.output());
        let late =
            shop.database.attempts().await.into_iter().filter(|row| row.started > asked + 300_000).count();
        assert_eq!(late, 0, "claims after TERM");
    }
    stop.store(true, Ordering::SeqCst);
    while producers.join_next().await.is_some() {}
    let twice: Vec<_> = server.all_counts().into_iter().filter(|(_, counts)| counts.0 > 1).collect();
    assert!(twice.is_empty(), "a drain gives back what it did not start: {twice:?}");
}
