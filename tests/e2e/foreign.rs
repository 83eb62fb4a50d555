//! Clients that nobody here wrote, against the order service of `aftercommit dev`: the SDKs of stripe and svix, which send bare
//! keys and retry on their own, behind a proxy that loses answers; schemathesis, which sends whatever the description allows and
//! much that it does not; and curl, as the documents tell it.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use serde::Deserialize;
use tokio::{io::AsyncWriteExt as _, net::TcpStream, process::Command};

use crate::support::Chance;

use super::{
    commands::{Machine, urls},
    database::Database,
    environment,
    ledger::Fate,
    ledger_proxy::{Faults, LedgerProxy, Loss},
    processes::{Process, eventually, run, run_ok},
    wire::{Message, Reader, get},
};

const SOON: Duration = Duration::from_secs(60);
/// What an SDK asks for, one after another.
const INTENTS: usize = 12;
/// The SDKs try three times: few requests are lost, and most answers that are lost are asked for again.
const LOSSY: Faults = Faults {
    hold: (Duration::ZERO, Duration::from_millis(10)),
    requests_one_in: 0,
    answers_one_in: 3,
    losses: &[Loss::Reset, Loss::Close],
};

/// `aftercommit dev` on a machine of its own.
struct Playground {
    machine: Machine,
    _dev: Process,
    address: String,
    /// What it printed.
    greeting: String,
}

impl Playground {
    async fn open() -> Self {
        let machine = Machine::new();
        let log = machine.path().join("dev.log");
        let mut dev = Process::spawn("dev", machine.command().args(["dev", "--port", "0"]), &log);
        eventually("dev prints what can be done", SOON, async || {
            assert!(dev.has_ended().is_none(), "{}", dev.output());
            dev.output().contains("Ctrl-C drains")
        })
        .await;
        let greeting = dev.output();
        let (address, _) =
            urls(&greeting).into_iter().find(|(_, path)| path == "/orders").expect("it is printed");
        Self { machine, _dev: dev, address, greeting }
    }

    fn database(&self) -> Database {
        let url = self.greeting.split_whitespace().find_map(|word| word.strip_prefix("DATABASE_URL="));
        let url = url.expect("it is printed").trim_matches('\'').to_owned();
        Database::Sqlite(self.machine.here().join(url.trim_start_matches("sqlite:")))
    }

    async fn count(&self, sql: &str) -> usize {
        self.database().text(&format!("SELECT CAST(({sql}) AS text)")).await.parse().expect("a number")
    }
}

/// What an SDK was told about one intent: by the answer that it took for the first, and when it asked once more.
#[derive(Deserialize)]
struct Told {
    key: String,
    first: Answer,
    again: Answer,
}

#[derive(Debug, PartialEq, Eq, Deserialize)]
struct Answer {
    status: u16,
    location: String,
    body: String,
    replayed: Option<String>,
}

/// Lets an SDK place its orders through the proxy.
async fn one_order_per_intent(sdk: &str) {
    let playground = Playground::open().await;
    let chance = Chance::seeded();
    let proxy = LedgerProxy::start(&playground.address, playground.machine.path(), LOSSY, chance).await;
    let mut script = Command::new(environment::python());
    script.arg(environment::script("sdk.py")).args([sdk, &proxy.url(), &INTENTS.to_string()]);
    let out = run_ok(&mut script, Duration::from_secs(150)).await;
    let told: Vec<Told> =
        out.lines().map(|line| serde_json::from_str(line).expect("what sdk.py prints")).collect();

    let lost: u64 =
        proxy.losses().iter().filter(|((fate, _), _)| *fate == Fate::AnswerDropped).map(|(_, n)| n).sum();
    println!("{sdk}: {lost} answers lost, {} replays", proxy.replays());
    assert!(lost > 0, "nothing was disturbed");
    assert_eq!(told.len(), INTENTS);
    for Told { key, first, again } in &told {
        assert_eq!((first.status, again.status), (201, 201), "{key}: {first:?}");
        assert_eq!(
            (&first.body, &first.location),
            (&again.body, &again.location),
            "{key} was told two things"
        );
        assert_eq!(again.replayed.as_deref(), Some("true"), "{key}: {again:?}");
    }
    let keys: BTreeSet<&str> = told.iter().map(|told| told.key.as_str()).collect();
    assert_eq!(keys.len(), INTENTS, "an intent had no key of its own");
    let calls = proxy.ledger().calls();
    let bare = calls.iter().all(|call| !call.key.is_empty() && !call.key.contains('"'));
    assert!(
        bare && keys.len() == calls.iter().map(|call| &call.key).collect::<BTreeSet<_>>().len(),
        "{calls:?}"
    );
    assert_eq!(playground.count("SELECT count(*) FROM demo_orders").await, INTENTS);
    assert_eq!(playground.database().effects().await.len(), 2 * INTENTS, "a charge and a receipt for each");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_of_stripe_places_one_order_per_intent() {
    one_order_per_intent("stripe").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_sdk_of_svix_places_one_order_per_intent() {
    one_order_per_intent("svix").await;
}

const CHECKS: &str =
    "not_a_server_error,status_code_conformance,response_schema_conformance,a_repeat_is_answered_alike";

/// No 5xx, no status and no body that the description does not have, no repeat that is answered otherwise.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_order_service_is_what_its_description_says() {
    let playground = Playground::open().await;
    let seed = Chance::seeded().seed() % 1_000_000;
    let mut schemathesis = Command::new(PathBuf::from(environment::python()).with_file_name("schemathesis"));
    schemathesis
        .args([
            "run",
            &format!("http://{}/openapi.json", playground.address),
            "--no-color",
            "--max-examples",
            "20",
        ])
        .args(["--checks", CHECKS])
        .args(["--seed", &seed.to_string()])
        .env("SCHEMATHESIS_HOOKS", "schemathesis_hooks")
        .env("PYTHONPATH", environment::file("tests/e2e"))
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(playground.machine.path());
    let (status, out, err) = run(&mut schemathesis, Duration::from_secs(150)).await;
    assert!(status.success(), "{out}\n{err}");
    println!(
        "{}",
        out.lines().rev().take(12).collect::<Vec<_>>().into_iter().rev().collect::<Vec<_>>().join("\n")
    );
    let orders = playground.count("SELECT count(*) FROM demo_orders").await;
    assert!(orders > 0, "it placed no order at all:\n{out}");
    let metrics = get(&playground.address, "/metrics", None).await.expect("dev serves metrics");
    let metrics = String::from_utf8_lossy(&metrics.body).into_owned();
    let counted = |outcome: &str| -> usize {
        let name = format!("aftercommit_requests_total{{outcome=\"{outcome}\"}} ");
        let figure = metrics.lines().find_map(|line| line.strip_prefix(&name)).expect("it is counted");
        figure.parse().expect("a number")
    };
    assert!(counted("replayed") >= orders && counted("first") >= orders, "{metrics}");
    assert_eq!(counted("in_progress"), 0, "on SQLite the writer is waited for");
    println!("{orders} orders, {} replays, {} mismatches", counted("replayed"), counted("mismatch"));
}

/// Sends a request with these header lines and this body.
async fn send(address: &str, start: &str, lines: &str, body: &str) -> Message {
    let mut stream = TcpStream::connect(address).await.expect("dev listens");
    let length = body.len();
    let request = format!(
        "{start} HTTP/1.1\r\nHost: {address}\r\n{lines}Content-Length: {length}\r\nConnection: close\r\n\r\n{body}"
    );
    stream.write_all(request.as_bytes()).await.expect("it reads");
    Reader::new(stream).message().await.expect("an answer").expect("an answer")
}

/// Callers apart, refusals as the description has them, wrong methods never 5xx.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_the_order_service_refuses_is_a_problem_and_frees_the_key() {
    let playground = Playground::open().await;
    let at = &playground.address;
    let key = "Idempotency-Key: k\r\n";
    let form = "Content-Type: application/x-www-form-urlencoded\r\n";
    let order = "item=tea&amount=1500&currency=jpy";
    let long = format!("item={}", "x".repeat(1 << 20));
    let (keyed, malformed) = (format!("{key}{form}"), format!("Idempotency-Key: \"k\r\n{form}"));
    let stranger = format!("{keyed}Authorization: Bearer\r\n");
    for (lines, body, status) in [
        (form, order, 400),
        (&malformed, order, 400),
        (&stranger, order, 401),
        (&keyed, &long, 413),
        (key, order, 415),
        (&keyed, "item=tea", 422),
    ] {
        let answer = send(at, "POST /orders", lines, body).await;
        let kind = answer.header("content-type").unwrap_or_default();
        assert_eq!((answer.status(), kind), (status, "application/problem+json"), "{lines}{body:.40}");
    }
    for start in
        ["PUT /orders", "GET /orders", "TRACE /orders", "BREW /orders", "POST /orders/1", "DELETE /orders/1"]
    {
        let answer = send(at, start, &keyed, order).await;
        assert!(answer.status() == 405 && answer.header("allow").is_some(), "{start}: {}", answer.start);
    }
    // The key is free: all that was refused was undone.
    let first = send(at, "POST /orders", &keyed, order).await;
    assert_eq!((first.status(), first.header("idempotent-replayed")), (201, None), "{}", first.start);
    let mismatch = send(at, "POST /orders", &keyed, "item=tea&amount=1501&currency=jpy").await;
    assert_eq!(mismatch.status(), 422);
    // The same key of somebody else is another key, and the order is not theirs.
    let theirs = "Authorization: Bearer someone\r\n";
    let other = send(at, "POST /orders", &format!("{keyed}{theirs}"), order).await;
    assert_eq!((other.status(), other.header("idempotent-replayed")), (201, None));
    let place = format!("GET {}", first.header("location").expect("where it is"));
    assert_ne!(first.header("location"), other.header("location"));
    assert_eq!(
        (send(at, &place, "", "").await.status(), send(at, &place, theirs, "").await.status()),
        (200, 404)
    );

    // Its answer is forgotten: the request runs again and finds what it has written; another one does not take its place.
    playground.database().execute("DELETE FROM aftercommit_requests").await;
    let other = send(at, "POST /orders", &keyed, "item=tea&amount=1501&currency=jpy").await;
    assert_eq!(other.status(), 422);
    let again = send(at, "POST /orders", &keyed, order).await;
    assert_eq!((again.status(), again.header("idempotent-replayed")), (201, None), "{}", again.start);
    assert_eq!(again.header("location"), first.header("location"));
    assert_eq!(playground.count("SELECT count(*) FROM demo_orders").await, 2);
    assert_eq!(playground.database().effects().await.len(), 4);
}

/// Status and headers of what `curl -i` printed, and the body.
fn head_and_body(printed: &str) -> (String, &str) {
    let (head, body) = printed.split_once("\r\n\r\n").unwrap_or_else(|| panic!("no answer: {printed}"));
    (head.to_ascii_lowercase(), body)
}

/// The lines of a text that run curl, without what stands before.
fn curls(text: &str) -> Vec<&str> {
    text.lines().filter_map(|line| Some(&line[line.find("curl -i http://127.0.0.1:")?..])).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_two_curl_commands_show_an_order_and_its_replay() {
    let playground = Playground::open().await;
    let commands = curls(&playground.greeting);
    assert_eq!(commands.len(), 2, "{}", playground.greeting);
    let mut answers = Vec::new();
    for command in &commands {
        answers.push(run_ok(Command::new("sh").args(["-c", &format!("{command} -s")]), SOON).await);
    }
    let ((first, order), (again, same)) = (head_and_body(&answers[0]), head_and_body(&answers[1]));
    assert!(first.starts_with("http/1.1 201") && !first.contains("idempotent-replayed"), "{first}");
    assert!(again.starts_with("http/1.1 201") && again.contains("idempotent-replayed: true"), "{again}");
    assert_eq!(order, same);

    let id = serde_json::from_str::<serde_json::Value>(order).expect("JSON")["id"]
        .as_str()
        .expect("an id")
        .to_owned();
    eventually("the order's effects succeed", SOON, async || {
        let shown = get(&playground.address, &format!("/orders/{id}"), None).await.expect("an answer");
        let shown: serde_json::Value = serde_json::from_slice(&shown.body).expect("JSON");
        let effects = shown["effects"].as_array().expect("a list");
        effects.len() == 2 && effects.iter().all(|effect| effect["state"] == "succeeded")
    })
    .await;

    // What the documents tell is what dev tells, on its usual port.
    let told: BTreeSet<String> =
        commands.iter().map(|command| command.replace(&playground.address, "127.0.0.1:7799")).collect();
    for document in ["docs/guard.md", "README.md"] {
        let text = std::fs::read_to_string(environment::file(document)).expect("it is there");
        for command in curls(&text) {
            assert!(told.contains(command), "{document} tells {command}, and dev {told:?}");
        }
    }
}
