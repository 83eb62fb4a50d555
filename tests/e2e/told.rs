//! What the command line tells a person of effects: whose is which, what holds them, and what is wrong with those that wait.

use std::time::Duration;

use serde_json::Value;

use super::{
    processes::{run, run_ok},
    shop::Shop,
};

const SOON: Duration = Duration::from_secs(60);
const SETTINGS: &str = r#"
[downstream.mail]
kind = "smtp"
server = "smtp://127.0.0.1:9"
from = "Shop <shop@shop.test>"
[downstream.pay]
kind = "http"
base_url = "http://127.0.0.1:9"
dynamic_target = "path"
[downstream.pay.operations.refund]
path = "/refunds"
[downstream.hooks]
kind = "webhook"
profile = "standard-webhooks"
[downstream.hooks.endpoints.acme]
url = "https://hooks.acme.test/in/sesame"
secret = { env = "HOOK_ACME" }
"#;
const MAIL: &str = r#"{"to":["Ann <ann@shop.test>","bob@shop.test"],"subject":"s","text":"t"}"#;

fn lines(out: &str) -> Vec<Value> {
    out.lines().map(|line| serde_json::from_str(line).expect("one object a line")).collect()
}

async fn a_mail_to_several_is_one_effect_each_and_each_knows_the_others(shop: Shop) {
    let config = shop.configure("shop", SETTINGS);
    shop.migrate(&config).await;
    let enqueue = |payload: &str, more: &[&str]| {
        let mut command = shop.command(&config);
        command.args(["enqueue", "mail", "--key", "order-17", "--payload", payload]).args(more);
        command
    };
    let out = run_ok(&mut enqueue(MAIL, &["--json"]), SOON).await;
    let written = lines(&out);
    let targets: Vec<_> = written.iter().map(|one| one["target"].clone()).collect();
    assert_eq!(targets, ["ann@shop.test", "bob@shop.test"], "{out}");
    assert_eq!(written[0]["idempotency_key"], "order-17");
    let derived = aftercommit::key::derive("mail", "order-17", "bob@shop.test").to_string();
    assert_eq!(written[1]["idempotency_key"], derived.as_str(), "as SQL and the library derive it");
    let again = run_ok(&mut enqueue(MAIL, &[]), SOON).await;
    assert!(again.contains("to ann@shop.test") && again.contains("to bob@shop.test"), "{again}");
    // Another mail under the key is refused whole: its third recipient gets nothing.
    let other = MAIL.replace("bob@shop.test", "cid@shop.test");
    let (status, out, err) = run(&mut enqueue(&other, &[]), SOON).await;
    assert_eq!(status.code(), Some(4), "{out}{err}");
    assert_eq!(shop.database.effects().await.len(), 2);
    for (one, other) in [(0, 1), (1, 0)] {
        let id = written[one]["id"].to_string();
        let shown = run_ok(shop.command(&config).args(["effects", "show", &id]), SOON).await;
        assert!(shown.contains("ann@shop.test") && shown.contains("bob@shop.test"), "{shown}");
        let message_id =
            format!("{}$mail@shop.test>", written[one]["idempotency_key"].as_str().unwrap_or(""));
        assert!(shown.contains("Message-ID") && shown.contains(&message_id), "{message_id}: {shown}");
        let json = run_ok(shop.command(&config).args(["effects", "show", &id, "--json"]), SOON).await;
        let json: Value = serde_json::from_str(&json).expect("one object");
        assert_eq!(json["recipients"][other]["id"], written[other]["id"], "{json:#}");
        assert_eq!(json["request"]["target"], targets[one], "{json:#}");
    }
}

async fn who_paused_a_downstream_is_told_with_its_effects(shop: Shop) {
    let config = shop.configure("shop", SETTINGS);
    shop.migrate(&config).await;
    let enqueue = ["enqueue", "pay", "--target", "/charges/17?token=sesame", "--json"];
    let written = lines(&run_ok(shop.command(&config).args(enqueue), SOON).await);
    let reason = ["downstreams", "pause", "pay", "--reason", "they asked us to"];
    run_ok(shop.command(&config).args(reason).env("AFTERCOMMIT_OPERATOR", "mo"), SOON).await;
    let id = written[0]["id"].to_string();
    let shown = run_ok(shop.command(&config).args(["effects", "show", &id]), SOON).await;
    for words in ["paused by mo at ", "they asked us to", "downstreams resume pay", "/charges/17?…"] {
        assert!(shown.contains(words), "{words}: {shown}");
    }
    assert!(!shown.contains("sesame"), "a query may be a secret: {shown}");
}

async fn a_look_at_everything_finds_what_cannot_be_sent(shop: Shop) {
    let config = shop.configure("shop", SETTINGS);
    shop.migrate(&config).await;
    for operation in ["refund", "refnd", "refnd"] {
        run_ok(shop.command(&config).args(["enqueue", "pay", "--operation", operation]), SOON).await;
    }
    run_ok(shop.command(&config).args(["enqueue", "pay", "--expires-at", "2038-01-01T00:00:00Z"]), SOON)
        .await;
    let look = async |secret: &str| {
        let mut command = shop.command(&config);
        let (_, out, _) = run(command.args(["doctor", "--json"]).env("HOOK_ACME", secret), SOON).await;
        let of =
            |check: &str| lines(&out).into_iter().filter(|one| one["check"] == check).collect::<Vec<_>>();
        (of("operation"), of("endpoint"))
    };
    let (operations, endpoints) = look("").await;
    assert_eq!((operations.len(), endpoints.len()), (1, 1), "{operations:?} {endpoints:?}");
    let found = operations[0]["found"].as_str().unwrap_or("");
    assert!(found.contains("2 waiting effects for the operation refnd"), "{found}");
    assert!(operations[0]["remedy"].as_str().is_some_and(|said| said.contains("is refund meant?")));
    let found = endpoints[0]["found"].as_str().unwrap_or("");
    assert!(found.contains("acme") && found.contains("HOOK_ACME") && !found.contains("sesame"), "{found}");
    assert_eq!(endpoints[0]["level"], "fail");
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    assert!(look(secret).await.1.is_empty(), "its secret can be read");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_to_several_is_one_effect_each_on_postgres() {
    a_mail_to_several_is_one_effect_each_and_each_knows_the_others(Shop::on_postgres("told_mail").await)
        .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_mail_to_several_is_one_effect_each_on_sqlite() {
    a_mail_to_several_is_one_effect_each_and_each_knows_the_others(Shop::on_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_paused_a_downstream_is_told_on_postgres() {
    who_paused_a_downstream_is_told_with_its_effects(Shop::on_postgres("told_pause").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_paused_a_downstream_is_told_on_sqlite() {
    who_paused_a_downstream_is_told_with_its_effects(Shop::on_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_sent_is_found_on_postgres() {
    a_look_at_everything_finds_what_cannot_be_sent(Shop::on_postgres("told_doctor").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_sent_is_found_on_sqlite() {
    a_look_at_everything_finds_what_cannot_be_sent(Shop::on_sqlite().await).await;
}
