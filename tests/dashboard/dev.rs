//! `aftercommit dev` opens on the dashboard: one address, effects appear there as they come, and it carries bulks out.

use std::{net::SocketAddr, path::Path, time::Duration};

use rustix::process::Signal;
use serde_json::{Value, json};

use super::{Answer, Ask, api::body, live::Ear};
use crate::{
    e2e::processes::{Process, aftercommit},
    support::eventually,
};

const SOON: Duration = Duration::from_secs(60);

struct Dev {
    process: Process,
    address: SocketAddr,
}

impl Dev {
    async fn start(folder: &Path) -> Self {
        let mut command = aftercommit();
        command.current_dir(folder).args(["dev", "--port", "0"]);
        let process = Process::spawn("dev", &mut command, &folder.join("dev.log"));
        let said = eventually(SOON, "dev says where it is: see dev.log", async || {
            let output = process.output();
            output.contains("Ctrl-C").then_some(output)
        })
        .await;
        let places: Vec<&str> =
            said.lines().filter_map(|line| line.trim().strip_prefix("Dashboard http://")).collect();
        let [place] = places[..] else { panic!("one address of the dashboard: {said}") };
        let first = said.split("http://").nth(1).and_then(|rest| rest.split_whitespace().next());
        assert_eq!(first, Some(place), "it is the first that is told: {said}");
        let address = place.strip_suffix('/').and_then(|address| address.parse().ok());
        Self { process, address: address.unwrap_or_else(|| panic!("an address: {said}")) }
    }

    fn ask(&self, method: &str, path: &str) -> Ask {
        Ask::new(self.address, method, path)
    }

    async fn get(&self, path: &str) -> Value {
        body(&self.ask("GET", &format!("/api/v1/{path}")).send().await)
    }

    async fn post(&self, path: &str, sent: &Value) -> Answer {
        let ask = self.ask("POST", &format!("/api/v1/{path}")).with("Sec-Fetch-Site", "none");
        ask.json(&sent.to_string()).send().await
    }
}

/// How many effects of `downstream` are in `state`.
fn counted(counts: &Value, downstream: &str, state: &str) -> u64 {
    let all = counts["counts"].as_array().expect("a list");
    let those = all.iter().filter(|count| count["downstream"] == downstream && count["state"] == state);
    those.filter_map(|count| count["effects"].as_u64()).sum()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn dev_opens_on_the_dashboard_where_effects_appear_as_they_come() {
    let folder = tempfile::Builder::new().prefix("aftercommit-dev.").tempdir().expect("a folder");
    let mut dev = Dev::start(folder.path()).await;
    let page = dev.ask("GET", "/").shown().send().await;
    assert_eq!(page.status, 200, "{page:?}");
    for part in ["<title>Overview", "Environment: </span>dev", "Send a test effect"] {
        assert!(page.body.contains(part), "{part} in {page:?}");
    }

    let mut ear = Ear::at(dev.address, "/api/v1/events", "").await;
    let before = ear.counts("how things stand now", |_| true).await;
    assert_eq!(before["newest"], Value::Null, "{before}");
    let order = dev.ask("POST", "/orders").with("Idempotency-Key", "\"order-1\"");
    let order = order.form("item=tea&amount=1500&currency=jpy&email=ann%40example.com").send().await;
    assert_eq!(order.status, 201, "{order:?}");
    ear.counts("the order's effects appear", |counts| counts["newest"].is_i64()).await;
    ear.counts("and are carried out", |counts| {
        counted(counts, "payments", "succeeded") == 1 && counted(counts, "mail", "succeeded") == 1
    })
    .await;

    // A bulk is carried out, although nobody runs `aftercommit dashboard`.
    let later = json!({ "downstream": "payments", "operation": "charge", "payload": { "amount": 1 }, "delay_ms": 3_600_000 });
    let written = dev.post("effects", &later).await;
    assert_eq!(written.status, 201, "{written:?}");
    ear.counts("it is scheduled", |counts| counted(counts, "payments", "scheduled") == 1).await;
    let started = dev.post("bulk", &json!({ "verb": "cancel", "filter": { "states": ["scheduled"] } })).await;
    assert_eq!(started.status, 202, "{started:?}");
    let path = format!("bulk/{}", body(&started)["id"]);
    let bulk = eventually(SOON, "dev carries the bulk out", async || {
        let bulk = dev.get(&path).await;
        (!bulk["finished_at"].is_null()).then_some(bulk)
    })
    .await;
    assert_eq!(bulk["done"], 1, "{bulk}");
    ear.counts("it is called off", |counts| counted(counts, "payments", "cancelled") == 1).await;

    // A page that is open does not hold up the end.
    dev.process.signal(Signal::TERM);
    let ended = dev.process.ended(Duration::from_secs(40)).await;
    assert!(ended.success(), "{ended}\n{}", dev.process.output());
}
