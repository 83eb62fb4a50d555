//! Events: how things stand is told when it changes and not otherwise, to as many as listen, and to nobody who left.

use std::{net::SocketAddr, time::Duration};

use aftercommit::EffectId;
use aftercommit_dashboard::{Role, Settings};
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpStream,
    time::timeout,
};

use super::{
    Site,
    api::{site, worker},
    everybody, token,
};
use crate::support::{TestDatabase, on_every_database, on_sqlite};

on_every_database! {
    a_change_is_told_within_seconds_and_nothing_is_told_twice,
}
on_sqlite! {
    many_listen_and_the_database_is_asked_once,
    whoever_listens_in_vain_is_told_why_and_when_to_come_again,
}

const SOON: Duration = Duration::from_secs(15);

/// Somebody who listens.
pub(super) struct Ear {
    stream: TcpStream,
    heard: String,
}

impl Ear {
    async fn open(site: &Site) -> Self {
        let bearer = format!("Authorization: Bearer {}\r\n", token(Role::Viewer));
        Self::at(site.address, "/api/v1/events", &bearer).await
    }

    /// Listens to what is told there to whoever brings these lines.
    pub(super) async fn at(address: SocketAddr, path: &str, lines: &str) -> Self {
        let mut stream = TcpStream::connect(address).await.expect("it listens");
        let head =
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nAccept: text/event-stream\r\n{lines}\r\n");
        stream.write_all(head.as_bytes()).await.expect("it reads");
        Self { stream, heard: String::new() }
    }

    /// Reads until the text is there that `is` looks for.
    async fn until<T>(&mut self, what: &str, is: impl Fn(&str) -> Option<T>) -> T {
        let read = async {
            loop {
                if let Some(found) = is(&self.heard) {
                    return found;
                }
                let mut bytes = [0; 4096];
                let n = self.stream.read(&mut bytes).await.expect("it goes on");
                assert!(n > 0, "the stream ended: {}", self.heard);
                self.heard.push_str(&String::from_utf8_lossy(&bytes[..n]));
            }
        };
        timeout(SOON, read).await.unwrap_or_else(|_late| panic!("not heard in time: {what}"))
    }

    /// The counts that were told last.
    pub(super) async fn counts(&mut self, what: &str, is: impl Fn(&Value) -> bool) -> Value {
        self.until(what, |heard| told(heard).into_iter().rev().find(|counts| is(counts))).await
    }
}

/// The events of this name, as far as they are whole.
fn told(heard: &str) -> Vec<Value> {
    let lines = heard.split("event: counts\ndata: ").skip(1);
    lines.filter_map(|rest| serde_json::from_str(rest.split_once("\n")?.0).ok()).collect()
}

async fn a_change_is_told_within_seconds_and_nothing_is_told_twice(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let mut ear = Ear::open(&site).await;
    let first = ear.counts("how things stand now", |_| true).await;
    assert_eq!(first["newest"], Value::Null, "{first}");
    let id: EffectId = db.insert("pay", "k").await;
    let counted = |counts: &Value| counts["newest"] == id.get() && counts["counts"][0]["effects"] == 1;
    ear.counts("the new effect, counted", counted).await;
    let before = told(&ear.heard).len();
    // Nobody is told that nothing happens.
    let quiet = ear.until("nothing", |heard| (told(heard).len() > before).then_some(()));
    assert!(
        timeout(Duration::from_secs(3), quiet).await.is_err(),
        "nothing changed, and something was told: {}",
        ear.heard
    );
    assert!(
        ear.heard.contains("content-type: text/event-stream") && ear.heard.contains("x-accel-buffering: no")
    );
}

async fn many_listen_and_the_database_is_asked_once(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let mut ears = Vec::new();
    for _ in 0..50 {
        ears.push(Ear::open(&site).await);
    }
    for ear in &mut ears {
        ear.counts("how things stand now", |_| true).await;
    }
    let id = db.insert("pay", "k").await;
    let mut heard = Vec::new();
    for ear in &mut ears {
        let counts = ear.counts("the new effect", |counts| counts["newest"] == id.get()).await;
        heard.push(counts["as_of"].as_str().expect("a time").to_owned());
    }
    heard.dedup();
    assert!(heard.len() <= 3, "each was asked for alone: {heard:?}");
    drop(ears);
    let mut again = Ear::open(&site).await;
    again.counts("how things stand, for whoever comes later", |counts| counts["newest"] == id.get()).await;
}

async fn whoever_listens_in_vain_is_told_why_and_when_to_come_again(db: &TestDatabase) {
    let site = Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await;
    let mut ears = Vec::new();
    for _ in 0..200 {
        let mut ear = Ear::open(&site).await;
        ear.until("it is let in", |heard| heard.contains("\r\n\r\n").then_some(())).await;
        ears.push(ear);
    }
    let mut late = Ear::open(&site).await;
    let head = late
        .until("it is refused", |heard| heard.contains("too-many-listeners").then(|| heard.to_owned()))
        .await;
    assert!(head.starts_with("HTTP/1.1 503") && head.contains("retry-after: 30"), "{head}");
    // One who leaves makes room for another.
    drop(ears.pop());
    crate::support::eventually(SOON, "there is room again", async || {
        let mut ear = Ear::open(&site).await;
        ear.until("an answer", |heard| heard.contains("\r\n\r\n").then(|| heard.starts_with("HTTP/1.1 200")))
            .await
            .then_some(())
    })
    .await;
}
