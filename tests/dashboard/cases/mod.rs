//! Failures of systems of this kind, tried on the dashboard: each test bears the number that its case has in tests/README.md.

mod again;
mod deeds;
mod depth;
pub(super) mod digits;
mod doors;
mod freed;
mod late;
mod numbers;
mod races;
mod running;
mod tally;
mod unserved;
mod urls;
mod windows;
pub(super) mod zones;

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    clock::SystemClock,
    engine::Engine,
    store::{RegisteredTerms, Store},
};
use aftercommit_dashboard::Settings;
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::{Answer, Ask, Site, everybody, forms};
use crate::{
    engine::config,
    support::{Scripted, TestDatabase, served},
};

/// Longer than anything here takes on a busy machine.
const SOON: Duration = Duration::from_secs(60);

/// A dashboard with a token for each role, by this machine's clock.
async fn site(db: &TestDatabase) -> Site {
    Site::open(&db.store, Settings { access: everybody(), ..Settings::default() }).await
}

/// What an action on the effect carries now.
async fn seen(db: &TestDatabase, id: EffectId) -> Value {
    let status = db.status(id).await;
    json!({ "state": status.state, "token": status.token })
}

/// With more members.
fn with(mut seen: Value, more: &Value) -> Value {
    for (name, value) in more.as_object().expect("an object") {
        seen[name] = value.clone();
    }
    seen
}

/// Its last request was sent so long ago that it has arrived, or never will.
async fn quiet(db: &TestDatabase, id: EffectId) {
    db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
}

/// What an operator reads on a page, on one line.
async fn words(site: &Site, path: &str) -> String {
    let page = forms::page(site, path).await;
    assert!(matches!(page.status, 200 | 409), "{path}: {page:?}");
    text(&page.body)
}

/// The text of a page, on one line.
fn text(html: &str) -> String {
    let mut text = String::new();
    let mut rest = html;
    while let Some((before, tag)) = rest.split_once('<') {
        text.push_str(before);
        rest = tag.split_once('>').map_or("", |(_, after)| after);
    }
    text.push_str(rest);
    unescaped(&text).split_whitespace().collect::<Vec<_>>().join(" ")
}

/// What stands in HTML for these characters.
fn unescaped(html: &str) -> String {
    [("&#34;", "\""), ("&#39;", "'"), ("&#60;", "<"), ("&#62;", ">"), ("&#38;", "&")]
        .iter()
        .fold(html.to_owned(), |text, (escape, meant)| text.replace(escape, meant))
}

/// A worker that serves these with one scripted downstream each.
fn engine(db: &TestDatabase, worker: &str, of: &[(&str, &Arc<Scripted>, RegisteredTerms)]) -> Engine {
    let store: Arc<dyn Store> = db.store.clone();
    let served = of.iter().map(|(name, scripted, terms)| served(name, (*scripted).clone(), terms.clone()));
    Engine::new(store, served.collect(), config(worker), Arc::new(SystemClock)).expect("its settings fit")
}

/// Sends them all at one time; the answers, in the same order.
async fn all_at_once(asks: Vec<Ask>) -> Vec<Answer> {
    let mut sent = JoinSet::new();
    for (n, ask) in asks.into_iter().enumerate() {
        sent.spawn(async move { (n, ask.send().await) });
    }
    let mut answers = sent.join_all().await;
    answers.sort_by_key(|(n, _)| *n);
    answers.into_iter().map(|(_, answer)| answer).collect()
}
