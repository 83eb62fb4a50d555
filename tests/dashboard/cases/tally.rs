//! Trap T25: the counts are of one moment while everything moves, and at rest they are what there is: on every page, in the API and in
//! the metrics.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use aftercommit::{
    outcome::{About, Finding, Outcome, Phase},
    state::State,
    store::{Count, RegisteredTerms},
};
use aftercommit_dashboard::Role;
use serde_json::{Value, json};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::{
    super::{
        Site,
        api::{by, get},
        forms, token,
    },
    SOON, engine, site, unescaped,
};
use crate::{
    engine::Running,
    support::{Script, Scripted, TestDatabase, answer, eventually, key_terms, on_every_database},
};

on_every_database! {
    counts_are_of_one_moment_under_way_and_exact_at_rest,
}

const EFFECTS: usize = 120;

/// By state and downstream.
type Tally = BTreeMap<(String, String), u64>;

fn quick() -> RegisteredTerms {
    let mut terms = key_terms();
    terms.policy.max_attempts = 3;
    (terms.policy.initial, terms.policy.max) = (Duration::from_millis(1), Duration::from_millis(20));
    terms
}

/// Some are applied, some refused, some never reached, and of some nobody knows.
fn various() -> Arc<Scripted> {
    Scripted::by(|attempt| {
        Script::Answer(match attempt.effect.id.get() % 6 {
            0..=2 => answer(200, "{}"),
            3 => Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, "card declined"),
            4 => Outcome::new(Finding::NotApplied, Phase::Connect, "connection refused"),
            _ => Outcome::new(Finding::Unknown, Phase::Send, "no answer within 20 s"),
        })
    })
}

/// What there is, counted row by row.
async fn truth(db: &TestDatabase) -> Tally {
    let rows =
        db.sql.rows("SELECT downstream, state, count(*) AS n FROM aftercommit.status GROUP BY 1, 2").await;
    let text = |row: &crate::support::Row, name: &str| row[name].clone().expect("it is there");
    rows.iter()
        .map(|row| ((text(row, "state"), text(row, "downstream")), text(row, "n").parse().expect("a number")))
        .collect()
}

/// What people do meanwhile; how much of it was done.
async fn people(site: &Site) -> u64 {
    let mut done = 0;
    for _ in 0..15 {
        let page = get(site, "effects?limit=40&state=failed,retrying,ready").await;
        for effect in page["effects"].as_array().expect("a list") {
            let verb = if effect["state"] == "failed" { "retry" } else { "cancel" };
            let wish = json!({ "state": effect["state"], "token": effect["token"] });
            let ask = by(site, Role::Operator, "POST", &format!("effects/{}/{verb}", effect["id"]));
            let answer = ask.json(&wish.to_string()).send().await;
            assert!(matches!(answer.status, 200 | 409), "{verb}: {answer:?}");
            done += u64::from(answer.status == 200);
        }
    }
    done
}

/// Counts that are folded, and looked at, all the while; how often somebody looked.
struct Meanwhile {
    stop: CancellationToken,
    tasks: JoinSet<()>,
    looks: Arc<AtomicU64>,
}

impl Meanwhile {
    async fn begin(db: &TestDatabase) -> Self {
        let (stop, looks, mut tasks) =
            (CancellationToken::new(), Arc::new(AtomicU64::new(0)), JoinSet::new());
        for folds in [true, true, false] {
            let (store, stop, looks) = (db.another_store().await, stop.clone(), Arc::clone(&looks));
            tasks.spawn(async move {
                let mut ticks = tokio::time::interval(Duration::from_millis(15));
                while !stop.is_cancelled() {
                    ticks.tick().await;
                    if folds {
                        store.maintain().await.expect("the counters fold");
                    } else {
                        let counts: Vec<Count> = store.counts().await.expect("counting works");
                        let all: u64 = counts.iter().map(|count| count.effects).sum();
                        assert_eq!(
                            all, EFFECTS as u64,
                            "no effect is counted twice, and none is missed: {counts:?}"
                        );
                        looks.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        Self { stop, tasks, looks }
    }

    async fn end(self) -> u64 {
        self.stop.cancel();
        self.tasks.join_all().await;
        self.looks.load(Ordering::SeqCst)
    }
}

async fn counts_are_of_one_moment_under_way_and_exact_at_rest(db: &TestDatabase) {
    for name in ["pay", "mail"] {
        db.insert_many(name, "k", EFFECTS / 2).await;
    }
    let site = site(db).await;
    let meanwhile = Meanwhile::begin(db).await;
    let (pay, mail) = (various(), various());
    let of = [("pay", &pay, quick()), ("mail", &mail, quick())];
    let worker = Running::start(engine(db, "w1", &of));
    let done = people(&site).await;
    worker.drain().await;
    let looks = meanwhile.end().await;
    println!("{done} acts, {looks} looks");
    assert!(done > 20 && looks > 5, "{done} acts and {looks} looks are too few to prove anything");
    // At rest: what is due later is due by now.
    eventually(SOON, "nothing becomes due any more", async || {
        truth(db).await.keys().all(|(state, _)| state != "retrying").then_some(())
    })
    .await;
    let truth = truth(db).await;
    assert_eq!(truth.values().sum::<u64>(), EFFECTS as u64);
    assert!(truth.len() >= 5, "in many states: {truth:?}");
    eventually(SOON, "the API, the metrics and the pages agree with the rows", async || {
        let agree = told_by_the_api(&site).await == truth && told_by_the_metrics(&site, &truth).await;
        (agree && told_by_the_pages(&site, &truth).await).then_some(())
    })
    .await;
}

async fn told_by_the_api(site: &Site) -> Tally {
    let counts = get(site, "counts").await;
    let word = |one: &Value, name: &str| one[name].as_str().expect("a word").to_owned();
    let counts = counts["counts"].as_array().expect("a list").iter();
    counts
        .map(|one| {
            ((word(one, "state"), word(one, "downstream")), one["effects"].as_u64().expect("a number"))
        })
        .collect()
}

async fn told_by_the_metrics(site: &Site, truth: &Tally) -> bool {
    let metrics = site.ask("GET", "/metrics").bearer(&token(Role::Viewer)).send().await;
    ["pay", "mail"].iter().all(|downstream| {
        State::ALL.iter().all(|state| {
            let n = truth.get(&(state.to_string(), (*downstream).to_owned())).copied().unwrap_or_default();
            let line = format!("aftercommit_effects{{state=\"{state}\",downstream=\"{downstream}\"}} {n}\n");
            metrics.body.contains(&line)
        })
    })
}

/// Whether every number that a page marks as a count is the sum of what it says it counts.
async fn told_by_the_pages(site: &Site, truth: &Tally) -> bool {
    let mut numbers = 0;
    for path in ["", "effects", "doubt", "failures", "downstreams", "audit"] {
        let page = forms::page(site, path).await;
        for (states, of, shown) in counted(&page.body) {
            let wanted = |state: &str, downstream: &str| {
                states.split(' ').any(|wanted| wanted == state)
                    && of.as_deref().is_none_or(|of| of == downstream)
            };
            let fits = truth.iter().filter(|((state, downstream), _)| wanted(state, downstream));
            if fits.map(|(_, n)| n).sum::<u64>() != shown {
                return false;
            }
            numbers += 1;
        }
    }
    assert!(numbers > 25, "{numbers} numbers are marked as counts");
    true
}

/// The states, the downstream and the number of each count of a page.
fn counted(html: &str) -> Vec<(String, Option<String>, u64)> {
    let attribute = |tag: &str, name: &str| {
        let (_, rest) = tag.split_once(&format!(" {name}=\""))?;
        rest.split('"').next().map(unescaped)
    };
    let tags = html.split('<').filter_map(|piece| piece.split_once('>'));
    let counts = tags.filter_map(|(tag, text)| {
        let states = attribute(tag, "data-count")?;
        let number =
            text.trim().replace(',', "").parse().unwrap_or_else(|_no_number| panic!("<{tag}>{text}"));
        Some((states, attribute(tag, "data-of"), number))
    });
    counts.collect()
}
