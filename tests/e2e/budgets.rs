//! Budgets as an operator meets them: real workers, a real server, the command line.

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use rustix::process::Signal;
use serde_json::Value;

use super::{
    processes::{eventually, run, run_ok},
    servers::{Reply, SECRET, ScriptedServer},
    shop::{Shop, WORKER, payments_with},
};

const SOON: Duration = Duration::from_secs(30);

async fn listed(shop: &Shop, config: &std::path::PathBuf) -> Value {
    let out = run_ok(shop.command(config).args(["downstreams", "list", "--json"]), SOON).await;
    serde_json::from_str(out.lines().next().expect("a line per downstream")).expect("JSON")
}

/// Must show: a revoked API key pauses, burns nothing, and resumes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_revoked_api_key_pauses_burns_nothing_and_resumes() {
    let revoked = Arc::new(AtomicBool::new(true));
    let key = Arc::clone(&revoked);
    let shop = Shop::on_postgres("revoked").await;
    let server = ScriptedServer::start(shop.folder.path(), move |_request, _nth| {
        let refusal = Reply { applies: false, status: 401, body: "{}", ..Reply::DONE };
        if key.load(Ordering::SeqCst) { refusal } else { Reply::DONE }
    })
    .await;
    let config = shop
        .configure("worker", &format!("{WORKER}{}", payments_with(&server.url(), "profile = \"stripe-v1\"")));
    shop.migrate(&config).await;
    let orders: Vec<String> = (0..60).map(|n| n.to_string()).collect();
    for order in &orders {
        shop.order(order).await;
    }
    let mut workers = [shop.worker("one", &config), shop.worker("two", &config)];
    eventually("the downstream is paused", SOON, async || {
        !listed(&shop, &config).await["paused_at"].is_null()
    })
    .await;
    eventually("open calls have ended", SOON, async || listed(&shop, &config).await["in_flight"] == 0).await;
    let calls = || server.all_counts().values().map(|count| count.0).sum::<u32>();
    let made = calls();
    assert!(made <= 32, "{made} calls: more than were open");
    let info = listed(&shop, &config).await;
    assert!(info["pause_reason"].as_str().is_some_and(|why| why.contains("401")), "{info:#}");
    assert!(info["paused_by"].as_str().is_some_and(|who| who.starts_with("worker ")), "{info:#}");
    let effects =
        run_ok(shop.command(&config).args(["effects", "list", "--json", "--limit", "100"]), SOON).await;
    for line in effects.lines() {
        let effect: Value = serde_json::from_str(line).expect("JSON");
        assert_eq!(effect["held_by"], "pause", "{effect:#}");
    }
    let audit = run_ok(shop.command(&config).args(["audit", "--json"]), SOON).await;
    assert_eq!(audit.lines().count(), 1, "{audit}");
    let alerts: usize =
        workers.iter().map(|worker| worker.output().matches("the downstream refuses us").count()).sum();
    assert_eq!(alerts, 1, "one worker says so, once");
    assert_eq!(calls(), made, "nothing was sent while all that was asked");

    revoked.store(false, Ordering::SeqCst);
    let resume = ["downstreams", "resume", "payments", "--reason", "the new key is in place"];
    run_ok(shop.command(&config).args(resume), SOON).await;
    for order in &orders {
        let key = format!("order-{order}/charge");
        assert_eq!(shop.settled(&key, &["succeeded", "failed", "in_doubt"], SOON).await, "succeeded");
        assert_eq!(server.counts(&key).1, 1);
    }
    for worker in &mut workers {
        worker.signal(Signal::TERM);
        let status = worker.ended(SOON).await;
        assert!(status.success() && !worker.output().contains(SECRET), "{}", worker.output());
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_person_pauses_and_resumes_and_the_exit_codes_say_what_was_so() {
    let shop = Shop::on_sqlite().await;
    let config = shop.configure(
        "worker",
        &format!(
            "{WORKER}{}",
            payments_with("http://127.0.0.1:1", "profile = \"stripe-v1\"\nrate = \"25/s\"")
        ),
    );
    shop.migrate(&config).await;
    let act = async |words: &[&str]| {
        let (status, out, err) = run(shop.command(&config).args(words), SOON).await;
        (status.code(), out, err)
    };
    let pause = ["downstreams", "pause", "payments", "--reason", "their maintenance"];
    let resume = ["downstreams", "resume", "payments"];
    assert_eq!(act(&resume).await.0, Some(4), "it is not paused");
    assert_eq!(act(&["downstreams", "pause", "payments"]).await.0, Some(2), "a pause needs a reason");
    assert_eq!(act(&["downstreams", "pause", "other", "--reason", "x"]).await.0, Some(3));
    assert_eq!(act(&pause).await.0, Some(0));
    let (code, _, err) = act(&pause).await;
    assert_eq!(code, Some(4));
    assert!(err.contains("their maintenance"), "who and why: {err}");
    let info = listed(&shop, &config).await;
    assert_eq!(
        (&info["pause_reason"], &info["rate"], &info["breaker"]),
        (&"their maintenance".into(), &"25/s".into(), &"closed".into())
    );
    let (_, shown, _) = act(&["downstreams", "list"]).await;
    assert!(shown.contains("their maintenance") && shown.contains("25/s"), "{shown}");
    let (code, out, _) = act(&["downstreams", "resume", "payments", "--json"]).await;
    assert_eq!(code, Some(0));
    let info: Value = serde_json::from_str(&out).expect("the downstream as it is now");
    assert!(info["paused_at"].is_null(), "{info:#}");
    let (_, audit, _) = act(&["audit"]).await;
    assert!(audit.contains("pause") && audit.contains("resume") && audit.contains("payments"), "{audit}");
}
