//! Lost answers, on both sides of a worker: a COMMIT that was carried out and never confirmed, a listening connection that
//! went dead without a word, a payment server that is still busy with the first request.

use std::time::{Duration, Instant};

use rustix::process::Signal;
use sqlx::{Connection as _, Executor as _, PgConnection};
use tokio::time::sleep;

use crate::support::Chance;

use super::{
    checker::assert_kept,
    ledger_proxy::{Faults, LedgerProxy},
    processes::{Process, eventually, run},
    servers::{PaymentServer, Reply, SECRET, ScriptedServer},
    shop::{Fleet, Shop, WORKER, payments},
    tcp_proxy::{Matches, TcpProxy},
};

const SOON: Duration = Duration::from_secs(20);
const END: [&str; 3] = ["succeeded", "in_doubt", "failed"];

fn key(order: &str) -> String {
    format!("order-{order}/charge")
}

async fn drained(mut worker: Process) {
    worker.signal(Signal::TERM);
    let status = worker.ended(SOON).await;
    assert!(status.success(), "{}", worker.output());
}

/// OUTBOX-07 (a): the application's COMMIT is carried out, and the application never learns of it.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_enqueue_whose_commit_went_unanswered_can_be_repeated_and_gives_one_effect() {
    let shop = Shop::on_postgres("commit_enqueue").await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&server.url())));
    shop.migrate(&config).await;
    let proxy = TcpProxy::start(shop.database.server()).await;
    let enqueue = "SELECT inserted::text FROM aftercommit.enqueue('payments', '{\"amount\":1}'::json,
                          idempotency_key => 'order-a/charge', operation => 'charge')";
    proxy.swallow_answers_of(|statement| statement.trim_start().starts_with("commit"), 1);
    let lost = async {
        let mut connection = PgConnection::connect(&shop.database.url_through(proxy.address)).await?;
        connection.execute("BEGIN").await?;
        connection.execute(enqueue).await?;
        connection.execute("COMMIT").await
    };
    let lost = lost.await;
    assert!(lost.is_err() && proxy.swallowed() == 1, "{lost:?} of {:?}", proxy.statements());

    assert_eq!(shop.database.text(enqueue).await, "false", "the repetition finds the effect of the first");
    assert_eq!(shop.database.effects().await.len(), 1);
    shop.work_until_idle(&config).await;
    assert_eq!(server.counts(&key("a")), (1, 1));
}

/// Runs one effect while the answers of one statement of the worker are swallowed, until one has moved the effect (polls
/// claim, too, and find nothing). Gives the calls, the attempts and the state in the end.
async fn with_lost_answer(purpose: &str, statement: Matches) -> (u32, usize, String) {
    let shop = Shop::on_postgres(purpose).await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let proxy = TcpProxy::start(shop.database.server()).await;
    let settings = format!("{WORKER}{}", payments(&server.url()));
    let config = shop.configure_at("worker", &shop.database.url_through(proxy.address), &settings);
    shop.migrate(&config).await;
    let worker = shop.worker("worker", &config);
    // One effect without a fault: the worker is up, and its statements are known.
    shop.order("warm").await;
    shop.settled(&key("warm"), &END, SOON).await;
    proxy.swallow_answers_of(statement, u32::MAX);
    shop.order("lost").await;
    let what =
        format!("an answer is swallowed and the effect has moved; the worker ran {:#?}", proxy.statements());
    eventually(&what, SOON, async || {
        proxy.swallowed() > 0 && shop.database.effect(&key("lost")).await.state != "ready"
    })
    .await;
    proxy.swallow_answers_of(statement, 0);
    let state = shop.settled(&key("lost"), &END, SOON).await;
    drained(worker).await;
    assert_eq!(shop.database.effect(&key("lost")).await.state, state, "it stays so");
    (server.counts(&key("lost")).0, shop.database.attempts_of(&key("lost")).await.len(), state)
}

/// OUTBOX-07 (b).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_settle_that_went_unanswered_is_found_done_and_nothing_is_sent_again() {
    let settle: Matches = |statement| statement.contains("insert into aftercommit.outcomes");
    let (calls, attempts, state) = with_lost_answer("commit_settle", settle).await;
    assert_eq!((calls, attempts, state.as_str()), (1, 1, "succeeded"));
}

/// OUTBOX-07 (c).
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_claim_that_went_unanswered_is_found_again_and_sent_once() {
    let claim: Matches = |statement| statement.contains("insert into aftercommit.claims");
    let (calls, attempts, state) = with_lost_answer("commit_claim", claim).await;
    assert_eq!((calls, state.as_str()), (1, "succeeded"));
    assert!(attempts <= 2, "{attempts} attempts were counted for one call");
}

/// A line to the database that delays, is cut, and loses answers to whatever it likes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_bad_line_to_the_database_loses_nothing_and_repeats_nothing() {
    let mut chance = Chance::seeded();
    let shop = Shop::on_postgres("bad_line").await;
    let server = PaymentServer::start(shop.folder.path()).await;
    let ledger = LedgerProxy::start(&server.address, shop.folder.path(), Faults::NONE, chance.fork()).await;
    let proxy = TcpProxy::start(shop.database.server()).await;
    let settings = format!("{WORKER}{}", payments(&ledger.url()));
    let config = shop.configure_at("worker", &shop.database.url_through(proxy.address), &settings);
    shop.migrate(&config).await;
    let fleet = Fleet::start(&shop, &config, 2);
    let mut cuts = 0;
    for order in 1..=150 {
        shop.order(&format!("A-{order}")).await;
        if order % 8 == 0 {
            proxy.delay(chance.millis(80));
            if chance.percent(50) {
                proxy.swallow_answers_of(|_any| true, 2);
            } else {
                proxy.cut_all();
                cuts += 1;
            }
        }
        // The pace of the application: about eight seconds in all.
        sleep(Duration::from_millis(50)).await;
    }
    let swallowed = proxy.swallowed();
    eventually("every effect succeeds once the line is good", Duration::from_secs(60), async || {
        shop.outside(&["succeeded"]).await == 0
    })
    .await;
    let evidence = shop.evidence(ledger.ledger(), server.charges().await).await;
    println!("bad_line: {}; {cuts} cuts, {swallowed} answers swallowed", evidence.summary());
    assert_kept(&evidence.charged_once(), &evidence);
    assert!(cuts >= 3 && swallowed >= 6, "{cuts} cuts, {swallowed} answers swallowed");
    fleet.stop().await;
}

/// NOTIFY-01.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dead_listener_delays_by_a_poll_at_most_and_is_replaced() {
    let shop = Shop::on_postgres("listener").await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let proxy = TcpProxy::start(shop.database.server()).await;
    let settings = format!("{}{}", WORKER.replace("200ms", "1s"), payments(&server.url()));
    let config = shop.configure_at("worker", &shop.database.url_through(proxy.address), &settings);
    shop.migrate(&config).await;
    let listen: Matches = |statement| statement.trim_start().starts_with("listen");
    proxy.mark(listen);
    let worker = shop.worker("worker", &config);
    shop.order("warm").await;
    shop.settled(&key("warm"), &END, SOON).await;
    let what = format!("the worker listens; it ran {:#?}", proxy.statements());
    eventually(&what, SOON, async || proxy.marked() > 0).await;

    proxy.silence_marked();
    for order in ["a", "b", "c"] {
        let placed = Instant::now();
        shop.order(order).await;
        shop.settled(&key(order), &END, SOON).await;
        let took = placed.elapsed();
        assert!(took < Duration::from_millis(2500), "{order} took {took:?}, and the poll is 1s");
    }
    proxy.mark(listen);
    let replaced = proxy.marked();
    let what = "the dead listener is found out and replaced by another connection";
    eventually(what, Duration::from_secs(60), async || proxy.marked() > replaced).await;
    drained(worker).await;
}

/// IDEMP-OUT-04.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn in_progress_is_waited_for_and_other_conflicts_are_not() {
    let shop = Shop::on_postgres("in_progress").await;
    let in_use = Reply {
        applies: false,
        after: Duration::ZERO,
        status: 409,
        headers: "",
        body: r#"{"error":{"type":"invalid_request_error","code":"idempotency_key_in_use"}}"#,
    };
    let other = Reply {
        body: r#"{"error":{"type":"invalid_request_error","code":"lock_timeout_x"}}"#,
        ..in_use.clone()
    };
    let reused = Reply { status: 400, body: r#"{"error":{"type":"idempotency_error"}}"#, ..in_use.clone() };
    let replay = Reply { applies: false, headers: "Idempotent-Replayed: true\r\n", ..Reply::DONE };
    let began = Instant::now();
    let server = ScriptedServer::start(shop.folder.path(), move |request, nth| {
        let key = request.header("idempotency-key").unwrap_or_default();
        if key.contains("other") {
            return other.clone();
        }
        if key.contains("reused") {
            return reused.clone();
        }
        match nth {
            1 => Reply::done_after(Duration::from_secs(3)),
            2 | 3 => in_use.clone(),
            _ => replay.clone(),
        }
    })
    .await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&server.url())));
    shop.migrate(&config).await;
    let worker = shop.worker("worker", &config);
    for order in ["slow", "other", "reused"] {
        shop.order(order).await;
    }
    assert_eq!(shop.settled(&key("slow"), &END, SOON).await, "succeeded");
    assert_eq!(server.counts(&key("slow")), (4, 1), "after {:?}", began.elapsed());
    assert_eq!(shop.settled(&key("other"), &END, SOON).await, "failed");
    assert_eq!(shop.settled(&key("reused"), &END, SOON).await, "failed");
    let said = shop.database.effect(&key("reused")).await.last_error.unwrap_or_default();
    assert!(said.contains("key"), "the reason is named: {said}");
    drained(worker).await;
}

/// HTTP-07: secrets in the URL and in the authentication appear nowhere.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_shows_a_secret() {
    const CANARIES: [&str; 4] = ["pwCanary77", "T0-SECRETCANARY", "queryCanary88", SECRET];
    let shop = Shop::on_postgres("secrets").await;
    // Refused, timed out, cut: each kind of failure words its error in another way.
    let silent = ScriptedServer::start(shop.folder.path(), |_request, _nth| {
        Reply::done_after(Duration::from_secs(30))
    })
    .await;
    let refused = format!("127.0.0.1:{}", super::processes::free_port());
    let mut shown = String::new();
    for (name, address) in [("refused", refused), ("silent", silent.address.to_string())] {
        for (part, url) in [
            ("user", format!("http://user:pwCanary77@{address}")),
            ("path", format!("http://{address}/hooks/T0-SECRETCANARY")),
            ("query", format!("http://{address}/?token=queryCanary88")),
            ("tls", format!("https://{address}/hooks/T0-SECRETCANARY")),
        ] {
            let name = format!("{name}-{part}");
            let config = shop.configure(&name, &format!("{WORKER}{}", payments(&url)));
            // A URL that holds a password or a query may be refused; then the refusal must not print it.
            let (checked, out, err) =
                run(shop.command(&config).args(["config", "check"]), Duration::from_secs(30)).await;
            shown.push_str(&format!("== {name} config check\n{out}{err}"));
            // A URL's path and query are configuration, and `config show` is where they may be seen; passwords are not.
            let (_, out, err) =
                run(shop.command(&config).args(["config", "show"]), Duration::from_secs(30)).await;
            let config_shown = format!("== {name} config show\n{out}{err}");
            shown.push_str(&config_shown.replace("T0-SECRETCANARY", "…").replace("queryCanary88", "…"));
            if !checked.success() {
                continue;
            }
            shop.migrate(&config).await;
            shop.order(&name).await;
            let mut worker = shop.worker(&name, &config);
            eventually("an attempt failed", SOON, async || {
                !shop.database.attempts_of(&key(&name)).await.is_empty()
            })
            .await;
            worker.kill().await;
            let id = shop.database.effect(&key(&name)).await.id.to_string();
            for arguments in [
                &["effects", "show", &id][..],
                &["effects", "show", &id, "--json"],
                &["effects", "list", "--json"],
                &["downstreams", "list", "--json"],
            ] {
                let (_, out, err) = run(shop.command(&config).args(arguments), Duration::from_secs(30)).await;
                shown.push_str(&format!("== {name} {arguments:?}\n{out}{err}"));
            }
            shown.push_str(&format!("== {name} log\n{}", worker.output()));
            let errors = "SELECT coalesce(string_agg(error, ' '), '') FROM aftercommit.attempt_log";
            shown.push_str(&shop.database.text(errors).await);
        }
    }
    assert!(shown.contains("log\n"), "no worker ran: {shown}");
    for canary in CANARIES {
        let leaks: Vec<&str> = shown.lines().filter(|line| line.contains(canary)).collect();
        assert!(leaks.is_empty(), "{canary}: {leaks:#?}");
    }
}
