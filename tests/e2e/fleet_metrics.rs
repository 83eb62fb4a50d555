//! Health and metrics of a worker process, read by a parser that nobody here wrote.

use std::{process::Stdio, time::Duration};

use rustix::process::Signal;
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command};

use super::{
    environment,
    processes::{Process, eventually, free_port, run_ok},
    servers::{Reply, SECRET, ScriptedServer},
    shop::{Shop, WORKER, payments},
    wire::{Message, get},
};

const SOON: Duration = Duration::from_secs(60);

/// Every name of interface.md that exists today, with its type; what is missing there is not built yet.
const NAMES: [(&str, &str); 12] = [
    ("aftercommit_effects", "gauge"),
    ("aftercommit_attempts", "counter"),
    ("aftercommit_attempt_duration_seconds", "histogram"),
    ("aftercommit_delivery_lag_seconds", "histogram"),
    ("aftercommit_oldest_due_age_seconds", "gauge"),
    ("aftercommit_effects_in_doubt", "gauge"),
    ("aftercommit_lease_expired", "counter"),
    ("aftercommit_fenced_writes", "counter"),
    ("aftercommit_replays", "counter"),
    ("aftercommit_possible_duplicates", "counter"),
    ("aftercommit_db_pool_connections", "gauge"),
    ("aftercommit_build_info", "gauge"),
];

/// Fails where a histogram contradicts itself; prints a line per sample.
const PARSER: &str = "import json, sys
from prometheus_client.parser import text_string_to_metric_families
for family in text_string_to_metric_families(sys.stdin.read()):
    buckets, counts = {}, {}
    for sample in family.samples:
        print(json.dumps([family.name, family.type, sample.name, sample.labels, sample.value]))
        of = sample.labels.get('downstream')
        if sample.name.endswith('_bucket'): buckets.setdefault(of, []).append((float(sample.labels['le']), sample.value))
        if sample.name.endswith('_count'): counts[of] = sample.value
    for of, rows in buckets.items():
        values = [value for _, value in sorted(rows)]
        assert values == sorted(values), (family.name, of, values)
        assert sorted(rows)[-1][0] == float('inf') and values[-1] == counts[of], (family.name, of, rows)";

/// A sample: family, type, name, labels, value.
async fn samples(text: &[u8]) -> Vec<Value> {
    let mut command = Command::new(environment::python());
    command.args(["-c", PARSER]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut parser = command.kill_on_drop(true).spawn().expect("Python starts");
    parser.stdin.take().expect("a pipe").write_all(text).await.expect("it reads");
    let output =
        tokio::time::timeout(SOON, parser.wait_with_output()).await.expect("it ends").expect("it ran");
    let err = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{err}\n{}", String::from_utf8_lossy(text));
    let lines = String::from_utf8(output.stdout).expect("text");
    lines.lines().map(|line| serde_json::from_str(line).expect("a sample")).collect()
}

fn value(samples: &[Value], name: &str, labels: &[(&str, &str)]) -> f64 {
    let fits =
        |sample: &&Value| sample[2] == name && labels.iter().all(|(label, value)| sample[3][label] == *value);
    let found: Vec<&Value> = samples.iter().filter(fits).collect();
    assert_eq!(found.len(), 1, "{name} {labels:?}: {found:?}");
    found[0][4].as_f64().expect("a number")
}

async fn ready(address: &str) -> Option<(u16, Value)> {
    let answer: Message = get(address, "/readyz", None).await.ok()?;
    Some((answer.status(), serde_json::from_slice(&answer.body).expect("JSON")))
}

async fn shop_on_sqlite_and_postgres(case: impl AsyncFn(Shop)) {
    case(Shop::on_sqlite().await).await;
    case(Shop::on_postgres("metrics").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_s_metrics_say_what_happened_and_a_foreign_parser_takes_them() {
    shop_on_sqlite_and_postgres(async |shop: Shop| {
        let server = ScriptedServer::start(shop.folder.path(), |_request, nth| {
            if nth == 1 { Reply { status: 503, applies: false, ..Reply::DONE } } else { Reply::DONE }
        })
        .await;
        let config = shop.configure("worker", &format!("{WORKER}{}", payments(&server.url())));
        shop.migrate(&config).await;
        let address = format!("127.0.0.1:{}", free_port());
        let mut command = shop.command(&config);
        command.args(["work", "--listen", &address]);
        let mut worker = Process::spawn("worker", &mut command, &shop.path("worker.log"));
        eventually("the worker is ready", SOON, async || {
            ready(&address).await.is_some_and(|(status, _)| status == 200)
        })
        .await;
        shop.database.execute(&effect(&shop, "payments", "order-1")).await;
        shop.database.execute(&effect(&shop, "typo_by_a_user", "order-2")).await;
        shop.settled("order-1", &["succeeded"], SOON).await;
        let scrape = async || {
            let answer = get(&address, "/metrics", None).await.expect("an answer");
            assert_eq!(answer.header("content-type"), Some("text/plain; version=0.0.4; charset=utf-8"));
            answer.body
        };
        eventually("the counts are fresh", SOON, async || {
            let text = String::from_utf8(scrape().await).expect("text");
            text.contains("aftercommit_effects{state=\"succeeded\",downstream=\"payments\"} 1\n")
        })
        .await;
        let text = scrape().await;
        assert_told(&text).await;
        worker.signal(Signal::TERM);
        assert!(worker.ended(SOON).await.success(), "{}", worker.output());
        for line in worker.output().lines() {
            let line: Value = serde_json::from_str(line).unwrap_or_else(|error| panic!("{error}: {line}"));
            assert!(line["timestamp"].is_string() && line["level"].is_string(), "{line}");
        }
    })
    .await;
}

/// What one unknown attempt, one success and one effect at a name that nobody registered look like.
async fn assert_told(text: &[u8]) {
    let samples = samples(text).await;
    for (name, kind) in NAMES {
        assert!(samples.iter().any(|sample| sample[0] == name && sample[1] == kind), "{name} {kind}");
    }
    assert_eq!(
        value(&samples, "aftercommit_attempts_total", &[("downstream", "payments"), ("outcome", "unknown")]),
        1.0
    );
    assert_eq!(
        value(&samples, "aftercommit_attempts_total", &[("downstream", "payments"), ("outcome", "applied")]),
        1.0
    );
    assert_eq!(
        value(&samples, "aftercommit_attempt_duration_seconds_count", &[("downstream", "payments")]),
        2.0
    );
    assert_eq!(value(&samples, "aftercommit_delivery_lag_seconds_count", &[("downstream", "payments")]), 1.0);
    assert_eq!(
        value(&samples, "aftercommit_effects", &[("state", "ready"), ("downstream", "(unregistered)")]),
        1.0
    );
    assert!(value(&samples, "aftercommit_oldest_due_age_seconds", &[("downstream", "(unregistered)")]) > 0.0);
    let text = String::from_utf8_lossy(text).into_owned();
    for word in ["typo_by_a_user", "order-1", SECRET] {
        assert!(!text.contains(word), "{word} in {text}");
    }
}

fn effect(shop: &Shop, downstream: &str, key: &str) -> String {
    let table = match shop.database {
        super::database::Database::Postgres(_) => "aftercommit.effects",
        super::database::Database::Sqlite(_) => "aftercommit_effects",
    };
    format!(
        "INSERT INTO {table} (downstream, idempotency_key, payload) VALUES ('{downstream}', '{key}', '{{}}')"
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_whose_database_is_away_is_alive_and_not_ready_and_a_draining_one_says_so() {
    let shop = Shop::on_postgres("ready").await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, nth| {
        if nth == 1 { Reply::done_after(Duration::from_millis(800)) } else { Reply::DONE }
    })
    .await;
    let settings = format!("{WORKER}{}", payments(&server.url()));
    let config = shop.configure("worker", &settings);
    shop.migrate(&config).await;
    let address = format!("127.0.0.1:{}", free_port());
    let away = shop.configure_at("away", "postgres://postgres@127.0.0.1:1/none", &settings);
    let mut command = shop.command(&away);
    command.args(["work", "--listen", &address]);
    let mut worker = Process::spawn("away", &mut command, &shop.path("away.log"));
    eventually("it answers", SOON, async || ready(&address).await.is_some()).await;
    let (status, said) = ready(&address).await.expect("it answered before");
    assert!(
        status == 503 && said["reasons"][0].as_str().is_some_and(|why| why.contains("starting")),
        "{said}"
    );
    assert_eq!(get(&address, "/healthz", None).await.expect("alive").status(), 200);
    assert_eq!(get(&address, "/metrics", None).await.expect("alive").status(), 200);
    worker.signal(Signal::TERM);
    worker.ended(SOON).await;

    let mut command = shop.command(&config);
    command.arg("work").env("AFTERCOMMIT__WORKER__LISTEN", &address);
    let mut worker = Process::spawn("worker", &mut command, &shop.path("worker.log"));
    eventually("it is ready", SOON, async || ready(&address).await.is_some_and(|(status, _)| status == 200))
        .await;
    eventually("its listener is heard of", SOON, async || {
        ready(&address).await.is_some_and(|(_, said)| said["listener"]["heard_s_ago"].is_number())
    })
    .await;
    let hold = "INSERT INTO aftercommit.hold (found_by, reason, went_back) VALUES ('w', 'tried', false)";
    shop.database.execute(hold).await;
    eventually("it says that it is on HOLD", SOON, async || {
        ready(&address).await.is_some_and(|(status, said)| {
            status == 503 && said["reasons"].to_string().contains("HOLD: tried")
        })
    })
    .await;
    run_ok(shop.command(&config).args(["hold", "lift", "--reason", "tried"]), SOON).await;
    eventually("it is ready again", SOON, async || {
        ready(&address).await.is_some_and(|(status, _)| status == 200)
    })
    .await;
    shop.database.execute(&effect(&shop, "payments", "slow")).await;
    eventually("the call is open", SOON, async || server.counts("slow").0 == 1).await;
    worker.signal(Signal::TERM);
    eventually("it says that it drains", SOON, async || {
        ready(&address)
            .await
            .is_some_and(|(status, said)| status == 503 && said["reasons"].to_string().contains("draining"))
    })
    .await;
    assert!(worker.ended(SOON).await.success(), "{}", worker.output());
    let mut taken = shop.command(&config);
    let holder = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = holder.local_addr().expect("bound");
    taken.args(["work", "--once", "--listen", &port.to_string()]);
    let (status, _, err) = super::processes::run(&mut taken, SOON).await;
    assert!(status.code() == Some(1) && err.contains("worker.listen"), "{err}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn logs_are_json_off_a_terminal_unless_text_is_asked_for_and_an_error_stays_a_sentence() {
    let shop = Shop::on_sqlite().await;
    let server = ScriptedServer::start(shop.folder.path(), |_request, _nth| Reply::DONE).await;
    let config = shop.configure("worker", &format!("{WORKER}{}", payments(&server.url())));
    shop.migrate(&config).await;
    let logged =
        async |words: &[&str]| super::processes::run(shop.command(&config).args(words), SOON).await.2;
    let json = logged(&["work", "--once"]).await;
    assert!(
        json.lines().count() > 0 && json.lines().all(|line| line.starts_with("{\"timestamp\"")),
        "{json}"
    );
    let text = logged(&["--log-format", "text", "work", "--once"]).await;
    assert!(text.contains("worker started") && !text.contains('{') && !text.contains('\x1b'), "{text}");
    let error = logged(&["effects", "show", "17"]).await;
    assert!(error.starts_with("aftercommit: there is no effect 17"), "{error}");
}
