//! What the dashboard shows of the whole: downstreams, workers, requests, courses, and the list of effects.

use std::time::Duration;

use aftercommit::{
    NewEffect,
    store::{AuditFilter, RequestFilter},
};
use aftercommit_dashboard::{Operations, Role, Settings, Trial};
use serde_json::{Value, json};

use super::{
    Answer, Site,
    api::{assert_problem, by, failed, get, in_doubt, post, worker},
    everybody,
    forms::{page, to},
    token,
};
use crate::support::{
    Settling, TestDatabase, Worker, answered, key_terms, on_every_database, registered, request,
};

on_every_database! {
    downstreams_are_read_once_for_everybody_who_asks,
    a_downstream_that_somebody_changed_is_told_as_it_is_now,
    workers_are_told_with_where_they_run_and_what_they_hold,
    requests_are_told_with_what_a_repeat_gets,
    what_failed_and_how_long_it_took_is_drawn_and_told,
    attempts_are_told_with_how_many_there_may_be,
    columns_are_chosen_by_the_address_or_remembered,
    a_test_effect_is_offered_where_it_harms_nobody_and_nowhere_else,
}

const HOUR: Duration = Duration::from_secs(3_600);

fn open_settings() -> Settings {
    Settings { access: everybody(), ..Settings::default() }
}

/// A dashboard whose clock goes on.
async fn site(db: &TestDatabase) -> Site {
    Site::open(&db.store, open_settings()).await
}

fn assert_shows(answer: &Answer, parts: &[&str]) {
    assert_eq!(answer.status, 200, "{answer:?}");
    for part in parts {
        assert!(answer.body.contains(part), "{part:?} in {}", answer.body);
    }
}

async fn downstreams_are_read_once_for_everybody_who_asks(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    // The database's clock has microseconds: two readings never tell the same time. One pair says nothing, since the one reading may
    // be renewed between its requests.
    for _ in 0..100 {
        let (one, other) = (get(&site, "downstreams").await, get(&site, "downstreams").await);
        assert_eq!(one["downstreams"].as_array().map(Vec::len), Some(2), "{one}");
        if one["now"] == other["now"] {
            return;
        }
    }
    panic!("each request read the queue");
}

async fn a_downstream_that_somebody_changed_is_told_as_it_is_now(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let paused_at = async || {
        let all = get(&site, "downstreams").await;
        let mut all = all["downstreams"].as_array().expect("a list").iter();
        all.find(|of| of["name"] == "pay").expect("it is there")["paused_at"].clone()
    };
    for round in 0..5 {
        assert_eq!(paused_at().await, Value::Null, "round {round}");
        let paused = post(&site, "downstreams/pay/pause", &json!({ "reason": "they asked us to" })).await;
        assert_eq!(paused.status, 200, "{paused:?}");
        let at = paused_at().await;
        assert!(at.is_string(), "round {round}: {at}");
        let resumed = post(&site, "downstreams/pay/resume", &json!({ "paused_at": at })).await;
        assert_eq!(resumed.status, 200, "{resumed:?}");
    }
}

async fn workers_are_told_with_where_they_run_and_what_they_hold(db: &TestDatabase) {
    let name = "app-3-4711-19a0c3f2";
    let holder = Worker::start(&db.store, name, vec![registered("pay", key_terms())]).await;
    db.insert_many("pay", "k", 3).await;
    let claims = holder.claim("pay", 3).await;
    assert_eq!(claims.len(), 3);
    let site = site(db).await;
    let told = get(&site, "workers").await["workers"][0].clone();
    let held = (&told["name"], &told["live"], &told["in_flight"], &told["leases"]);
    assert_eq!(held, (&name.into(), &true.into(), &3.into(), &1.into()), "{told}");
    assert!(told["lease_until"].as_str() > told["seen_at"].as_str(), "{told}");
    let shown = page(&site, "workers").await;
    assert_shows(
        &shown,
        &["app-3 <span class=\"quiet\">process 4711</span>", name, ">1 lease<", "0.0.0-test"],
    );
    for claim in &claims {
        holder.settle(Settling::of(claim).succeed()).await;
    }
    let told = get(&site, "workers").await["workers"][0].clone();
    assert_eq!((&told["leases"], &told["lease_until"]), (&0.into(), &Value::Null), "{told}");
}

/// A request that was answered.
async fn answered_request(db: &TestDatabase, key: &str, effects: usize) -> i64 {
    let request = request("tenant-7", key, "the body of somebody");
    let mut tx = db.sql.begin().await;
    tx.begin_request(&request).await.expect("it begins");
    for at in 0..effects {
        tx.enqueue(NewEffect::to("pay").name(format!("effect-{at}"))).await.expect("written");
    }
    tx.finish_request(&request, &answered(201, "what only a repeat is told")).await.expect("it is finished");
    tx.commit().await;
    let filter = RequestFilter { key: Some(key.to_owned()), limit: 1, ..RequestFilter::default() };
    db.store.requests(&filter).await.expect("readable")[0].id
}

async fn requests_are_told_with_what_a_repeat_gets(db: &TestDatabase) {
    worker(db).await;
    answered_request(db, "kept", 1).await;
    let over = [answered_request(db, "held", 2).await, answered_request(db, "over", 0).await];
    let (began, ended) =
        (db.engine.before("created_at", HOUR * 48), db.engine.before("expires_at", HOUR * 48));
    for id in over {
        let earlier = format!(
            "UPDATE aftercommit.requests SET created_at = {began}, expires_at = {ended} WHERE id = {id}"
        );
        db.sql.execute(&earlier).await;
    }
    let site = site(db).await;
    let told = async |query: &str| -> Vec<(String, String, u64)> {
        let page = get(&site, &format!("requests{query}")).await;
        let row = |row: &Value| {
            let text = |name: &str| row[name].as_str().expect("a word").to_owned();
            (text("key"), text("state"), row["unfinished"].as_u64().expect("a number"))
        };
        page["requests"].as_array().expect("a list").iter().map(row).collect()
    };
    let row = |key: &str, state: &str, unfinished| (key.to_owned(), state.to_owned(), unfinished);
    let (kept, held) = (row("kept", "kept", 1), row("held", "expired", 2));
    let expired = told("?state=expired").await;
    assert!(
        expired.len() == 2 && expired.contains(&held) && expired.contains(&row("over", "expired", 0)),
        "{expired:?}"
    );
    assert_eq!(told("").await.len(), 3);
    for query in ["?state=kept", "?scope=tenant-7&key=kept&state=kept"] {
        assert_eq!(told(query).await, std::slice::from_ref(&kept), "{query}");
    }
    let first = get(&site, "requests?state=expired&limit=1").await;
    let next = format!("?state=expired&limit=1&before={}", first["next"].as_str().expect("there is more"));
    assert_ne!(told(&next).await[0].0, first["requests"][0]["key"], "the next page goes on");
    let wrong = by(&site, Role::Viewer, "GET", "requests?state=answered").send().await;
    assert_problem(&wrong, 400, "request-malformed");
    let shown = page(&site, "requests").await;
    assert_shows(&shown, &["past its time: 2 effects not ended", "a repeat acts anew"]);
    let only = page(&site, "requests?state=kept").await;
    assert!(
        !only.body.contains("a repeat acts anew") && only.body.contains("value=\"kept\" selected"),
        "{only:?}"
    );
    // Whoever knows the hash of a body can try bodies until one fits.
    let hash = request("tenant-7", "kept", "the body of somebody").fingerprint.as_str().to_owned();
    for secret in [hash.as_str(), "what only a repeat is told"] {
        assert!(!shown.body.contains(secret) && !get(&site, "requests").await.to_string().contains(secret));
    }
    assert!(!shown.body.contains("Since this process began"), "this process guards none");
    let operations = Operations::default();
    let counts = aftercommit::guard::RequestCounts { first: 5, replayed: 1_204, ..Default::default() };
    operations.count_requests(move || counts);
    let guarding = Site::open(&db.store, Settings { operations: Some(operations), ..open_settings() }).await;
    assert_shows(&page(&guarding, "requests").await, &["Since this process began: 5 acted, 1,204 replayed"]);
}

async fn what_failed_and_how_long_it_took_is_drawn_and_told(db: &TestDatabase) {
    let worker = worker(db).await;
    for n in 0..3 {
        db.insert("pay", &format!("ok-{n}")).await;
        let claim = worker.claim_one("pay").await;
        worker.settle(Settling::of(&claim).succeed()).await;
    }
    failed(db, &worker, "pay", "declined").await;
    in_doubt(db, &worker, "mail", "doubtful").await;
    for table in ["outcomes", "attempts"] {
        let end = db.engine.after("started_at", Duration::from_millis(250));
        let lasted = format!("UPDATE aftercommit.{table} SET ended_at = {end} WHERE started_at IS NOT NULL");
        db.sql.execute(&lasted).await;
    }
    let site = site(db).await;
    for span in ["1h", "24h", "7d"] {
        let shown = page(&site, &format!("?span={span}")).await;
        assert_shows(
            &shown,
            &[
                "id=\"chart-errors\"",
                "<b>25 %</b>",
                "1 failed of 4 that succeeded or failed",
                "id=\"chart-latency\"",
                "<b>250 ms</b>",
                "half took no longer than 250 ms",
            ],
        );
        for chart in ["succeeded", "failed", "errors", "latency"] {
            let (_, chart) = shown.body.split_once(&format!("id=\"chart-{chart}\"")).expect("it is drawn");
            let (chart, _) = chart.split_once("</figure>").expect("it ends");
            for part in ["<svg class=\"plot", "<p class=\"sr\">", "<table>", "<td class=\"num\">"] {
                assert!(chart.contains(part), "{part} in {chart}");
            }
        }
    }
    let since = db.now().await.minus(HOUR).rfc3339();
    let told = get(&site, &format!("latencies?per=hour&since={since}")).await;
    let rows = told["latencies"].as_array().expect("a list");
    assert_eq!(rows.iter().filter_map(|row| row["sampled"].as_u64()).sum::<u64>(), 4, "{told}");
    assert!(rows.iter().all(|row| row["p50_us"] == 250_000 && row["p95_us"] == 250_000), "{told}");
}

async fn attempts_are_told_with_how_many_there_may_be(db: &TestDatabase) {
    let worker = worker(db).await;
    let again = db.insert("pay", "again").await;
    let claim = worker.claim_one("pay").await;
    let later = db.now().await.plus(HOUR);
    worker.settle(Settling::of(&claim).retry_not_applied(later)).await;
    failed(db, &worker, "pay", "declined").await;
    db.insert("mail", "waits").await;
    let site = site(db).await;
    let most = key_terms().policy.max_attempts;
    let tries = async |key: &str| {
        let shown = page(&site, &format!("effects?q=key:{key}")).await;
        let (_, cell) = shown.body.split_once("data-label=\"tries\">").unwrap_or_else(|| panic!("{shown:?}"));
        cell.split('<').next().expect("it ends").to_owned()
    };
    assert_eq!(tries("again").await, format!("1 of {most}"), "{again}");
    assert_eq!(tries("declined").await, "1", "it is over: nothing more may come");
    assert_eq!(tries("waits").await, "none");
}

async fn columns_are_chosen_by_the_address_or_remembered(db: &TestDatabase) {
    let worker = worker(db).await;
    for n in 0..51 {
        failed(db, &worker, "pay", &format!("declined-{n}")).await;
    }
    let site = site(db).await;
    let ask = |path: &str| site.ask("GET", path).bearer(&token(Role::Viewer)).shown();
    let heads = |answer: &Answer| -> Vec<String> {
        assert_eq!(answer.status, 200, "{answer:?}");
        let (head, _) = answer.body.split_once("</thead>").expect("a table");
        let cells = head.split("<th scope=\"col\"").skip(1);
        cells.filter_map(|cell| Some(cell.split_once('>')?.1.split_once('<')?.0.to_lowercase())).collect()
    };
    let usual = ["state", "effect", "key and references", "tries", "when", "last error"];
    assert_eq!(heads(&ask("/effects").send().await), usual);
    let chosen = ask("/effects?q=state:failed&columns=worker,bogus,answer,%3Cscript%3E").send().await;
    assert_eq!(heads(&chosen), ["effect", "worker", "last answer"]);
    assert!(!chosen.body.contains("<td class=\"when\"") && chosen.body.contains("rejected"), "{chosen:?}");
    assert!(chosen.header("set-cookie").is_none(), "an address changes nobody's choice");
    let older = chosen.body.split("id=\"next\" href=\"").nth(1).and_then(|rest| rest.split('"').next());
    assert!(
        older.is_some_and(|link| link.ends_with("columns=worker,answer")),
        "its pages have them too: {older:?}"
    );
    assert_eq!(heads(&ask("/effects?columns=bogus").send().await), usual, "none of them is a column");
    let kept = ask("/effects?q=state:failed&remember=columns&columns=state&columns=worker").send().await;
    assert_eq!(to(&kept), "effects?q=state:failed");
    let cookie = kept.cookie().expect("the browser remembers");
    let with = async |path: &str| heads(&ask(path).cookie(&cookie).send().await);
    assert_eq!(with("/effects").await, ["state", "effect", "worker"]);
    assert_eq!(with("/effects?columns=error").await, ["effect", "last error"], "the address wins");
    let usual_again = ask("/effects?q=&remember=columns").cookie(&cookie).send().await;
    assert!(
        usual_again.header("set-cookie").is_some_and(|line| line.contains("Max-Age=0")),
        "{usual_again:?}"
    );
}

async fn a_test_effect_is_offered_where_it_harms_nobody_and_nowhere_else(db: &TestDatabase) {
    worker(db).await;
    let button = "Send a test effect";
    let plain = site(db).await;
    let shown = page(&plain, "").await;
    assert!(shown.body.contains("Nothing was enqueued yet") && !shown.body.contains(button), "{shown:?}");
    let refused = plain.ask("POST", "/trial").bearer(&token(Role::Admin)).ours().form("").send().await;
    assert_problem(&refused, 404, "not-found");
    let trial = Trial {
        effect: NewEffect::to("pay").operation("charge"),
        says: "It goes to a stand-in: no money moves.".to_owned(),
    };
    let site = Site::open(&db.store, Settings { trial: Some(trial), ..open_settings() }).await;
    assert_shows(&page(&site, "").await, &[button, "It goes to a stand-in: no money moves."]);
    let viewer = site.ask("GET", "/").bearer(&token(Role::Viewer)).shown().send().await;
    assert!(!viewer.body.contains(button), "whoever may only look is offered nothing: {viewer:?}");
    let strange = site.ask("POST", "/trial").bearer(&token(Role::Operator));
    let strange = strange.with("Sec-Fetch-Site", "cross-site").form("").send().await;
    assert_problem(&strange, 403, "cross-site");
    for n in 1..=2 {
        let sent = site.ask("POST", "/trial").bearer(&token(Role::Operator)).ours().form("").send().await;
        assert!(to(&sent).starts_with("effects/"), "{sent:?}");
        let all = get(&site, "effects?downstream=pay&operation=charge").await;
        assert_eq!(all["effects"].as_array().map(Vec::len), Some(n), "each is an effect of its own: {all}");
    }
    let filter = AuditFilter { downstream: Some("pay".to_owned()), limit: 9, ..AuditFilter::default() };
    let audit = db.store.audit(&filter).await.expect("readable");
    assert!(
        audit.len() == 2 && audit.iter().all(|row| row.who == "operator" && row.verb == "enqueue"),
        "{audit:?}"
    );
    assert!(!page(&site, "").await.body.contains(button), "it is for who has no effect yet");
}
