//! The JSON API: what it shows and to whom, digit by digit, and that it takes nothing for what it is not.

use aftercommit::{
    EffectId,
    decision::Decision,
    store::{DownstreamInfo, Settlement},
};
use aftercommit_dashboard::Role;
use serde_json::{Value, json};

use super::{Answer, Ask, Site, everybody, settings, token};
use crate::support::{
    Settling, TestDatabase, Worker, answer, key_terms, none_terms, on_every_database, registered,
};

on_every_database! {
    pages_follow_each_other_without_a_gap_and_filters_narrow,
    one_effect_tells_all_that_is_known_and_what_can_be_done,
    nobody_who_may_only_view_is_shown_what_was_sent_or_answered,
    numbers_come_out_digit_by_digit,
    what_nobody_knows_is_refused_by_its_name,
    an_effect_that_is_written_twice_is_one,
    a_downstream_is_paused_and_resumed_once,
    who_did_what_is_told_with_from_where,
    causes_counts_and_traffic_agree_with_the_effects,
}

/// A dashboard with a token for each role.
pub(super) async fn site(db: &TestDatabase) -> Site {
    Site::open(&db.store, settings(everybody()).1).await
}

/// Something that `role` asks.
pub(super) fn by(site: &Site, role: Role, method: &str, path: &str) -> Ask {
    site.ask(method, &format!("/api/v1/{path}")).bearer(&token(role))
}

/// What an operator is shown there.
pub(super) async fn get(site: &Site, path: &str) -> Value {
    let answer = by(site, Role::Operator, "GET", path).send().await;
    assert_eq!(answer.status, 200, "{path}: {answer:?}");
    body(&answer)
}

/// What an operator sends there.
pub(super) async fn post(site: &Site, path: &str, body: &Value) -> Answer {
    by(site, Role::Operator, "POST", path).json(&body.to_string()).send().await
}

/// The JSON of an answer.
pub(super) fn body(answer: &Answer) -> Value {
    serde_json::from_str(&answer.body).unwrap_or_else(|problem| panic!("{problem}: {answer:?}"))
}

/// The answer is a problem of this status and kind.
pub(super) fn assert_problem(answer: &Answer, status: u16, kind: &str) {
    assert_eq!((answer.status, answer.problem().as_str()), (status, kind), "{answer:?}");
    assert_eq!(answer.header("content-type"), Some("application/problem+json"), "{answer:?}");
    let problem = body(answer);
    assert_eq!(problem["status"], status, "{problem}");
    assert!(problem["detail"].as_str().is_some_and(|detail| detail.len() > 15), "{problem}");
}

/// A worker that serves `pay`, whose downstream keeps keys, and `mail`, whose does not.
pub(super) async fn worker(db: &TestDatabase) -> Worker {
    let mail = registered("mail", none_terms(aftercommit::contract::OnUnknown::Hold));
    Worker::start(&db.store, "w1", vec![registered("pay", key_terms()), mail]).await
}

/// An effect of `downstream` in doubt.
pub(super) async fn in_doubt(db: &TestDatabase, worker: &Worker, downstream: &str, key: &str) -> EffectId {
    written(db, worker, (downstream, key), |settling| settling.park("no answer within 20 s")).await
}

/// A failed effect of `downstream`.
pub(super) async fn failed(db: &TestDatabase, worker: &Worker, downstream: &str, key: &str) -> EffectId {
    written(db, worker, (downstream, key), |settling| settling.fail("card declined")).await
}

/// A new effect, settled so; what else is due is given back as it was.
async fn written(
    db: &TestDatabase,
    worker: &Worker,
    (downstream, key): (&str, &str),
    settle: impl Fn(&Settling) -> Settlement,
) -> EffectId {
    let id = db.insert_with(downstream, key, &[("payload", "'{\"amount\":1500}'")]).await;
    for claim in worker.claim(downstream, 100).await {
        let settling = Settling::of(&claim);
        let settlement = if claim.effect.id == id { settle(&settling) } else { settling.give_back() };
        worker.settle(settlement).await;
    }
    id
}

fn ids(page: &Value) -> Vec<i64> {
    let effects = page["effects"].as_array().unwrap_or_else(|| panic!("no list: {page}"));
    effects.iter().map(|effect| effect["id"].as_i64().expect("a number")).collect()
}

async fn pages_follow_each_other_without_a_gap_and_filters_narrow(db: &TestDatabase) {
    let worker = worker(db).await;
    let doubtful = in_doubt(db, &worker, "mail", "m").await;
    let refused = failed(db, &worker, "pay", "f").await;
    let order = "'{\"order\":\"A-17\",\"n\":1}'";
    let marked = db.insert_with("pay", "k", &[("metadata", order)]).await;
    let mut written = vec![doubtful.get(), refused.get(), marked.get()];
    written.extend(db.insert_many("pay", "more", 4).await.iter().map(|id| id.get()));
    written.reverse();
    let site = site(db).await;
    let (mut seen, mut path) = (Vec::new(), "effects?limit=3".to_owned());
    loop {
        let page = get(&site, &path).await;
        assert_eq!(page["searched"], Value::Null, "indexes serve it");
        seen.extend(ids(&page));
        match page["next"].as_i64() {
            Some(next) => path = format!("effects?limit=3&before={next}"),
            None => break,
        }
    }
    assert_eq!(seen, written);
    for (query, found) in [
        ("state=failed,in_doubt", vec![refused, doubtful]),
        ("state=in_doubt&downstream=mail", vec![doubtful]),
        ("downstream=mail", vec![doubtful]),
        ("key=k", vec![marked]),
        ("metadata=%7B%22order%22%3A%22A-17%22%7D", vec![marked]),
        ("error=CARD", vec![refused]),
        (&format!("id={refused},{doubtful},999"), vec![refused, doubtful]),
        ("operation=none", vec![]),
        ("created_before=2000-01-01T00:00:00Z", vec![]),
        ("created_after=2000-01-01T00:00:00%2B01:00&state=failed", vec![refused]),
    ] {
        let found: Vec<i64> = found.iter().map(|id| id.get()).collect();
        assert_eq!(ids(&get(&site, &format!("effects?{query}")).await), found, "{query}");
    }
    let searched = get(&site, "effects?error=declined").await;
    assert!(searched["searched"].as_u64().is_some_and(|n| n > 0), "it had to search: {searched}");
}

async fn one_effect_tells_all_that_is_known_and_what_can_be_done(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = in_doubt(db, &worker, "mail", "m").await;
    let site = site(db).await;
    let effect = get(&site, &format!("effects/{id}")).await;
    assert_eq!((&effect["state"], &effect["uncertain"]), (&"in_doubt".into(), &true.into()), "{effect}");
    assert_eq!(effect["attempt_log"][0]["outcome"], "unknown", "{effect}");
    assert!(effect["what_follows"].as_str().is_some_and(|words| words.contains("In doubt")), "{effect}");
    assert!(effect["request"]["bytes"] == 15 && effect["request"]["dropped"] == false, "{effect}");
    let verbs = effect["verbs"].as_array().expect("a list");
    let verb = |name: &str| verbs.iter().find(|verb| verb["verb"] == name).expect(name);
    assert_eq!(verb("resend")["confirmation"], format!("resend {id}"), "{effect}");
    assert!(verb("resend")["consequence"].as_str().expect("words").contains("mail cannot tell"), "{effect}");
    assert!(verb("retry")["refused"].as_str().expect("words").contains("resend or resolve it"), "{effect}");
    let attempts = get(&site, &format!("effects/{id}/attempts")).await;
    assert_eq!(attempts["attempts"], effect["attempt_log"]);
    for path in ["effects/999", "effects/999/attempts"] {
        assert_problem(&by(&site, Role::Viewer, "GET", path).send().await, 404, "not-found");
    }
}

async fn nobody_who_may_only_view_is_shown_what_was_sent_or_answered(db: &TestDatabase) {
    let worker = worker(db).await;
    let columns = [
        ("payload", "'{\"card\":\"canary-payload\"}'"),
        ("headers", "'{\"X-Canary\":\"canary-header\"}'"),
        ("target", "'canary-target'"),
    ];
    let id = db.insert_with("pay", "k", &columns).await;
    let claim = worker.claim_one("pay").await;
    let answered = answer(200, r#"{"is":"canary-answer"}"#);
    worker.settle(Settling::of(&claim).decided(Decision::Succeed, &answered)).await;
    let site = site(db).await;
    let reads: Vec<String> = site
        .dashboard
        .table()
        .iter()
        .filter(|route| route.method == "GET" && route.path.starts_with("/api/v1/"))
        .map(|route| route.path.replace("{id}", &id.to_string()).replace("{name}", "pay"))
        .collect();
    let mut shown_to_an_operator = 0;
    for path in reads.iter().filter(|path| !path.ends_with("/events")) {
        for query in ["", "?payload=true"] {
            let path = format!("{path}{query}");
            let viewer = site.ask("GET", &path).bearer(&token(Role::Viewer)).send().await;
            assert!(!viewer.body.contains("canary"), "{path}: {viewer:?}");
            let operator = site.ask("GET", &path).bearer(&token(Role::Operator)).send().await;
            shown_to_an_operator += operator.body.matches("canary").count();
        }
    }
    assert!(shown_to_an_operator >= 5, "an operator is shown them: {shown_to_an_operator}");
    let one = body(&by(&site, Role::Viewer, "GET", &format!("effects/{id}?payload=true")).send().await);
    assert!(one["request"].is_null() && one["response"].is_null() && one["state"] == "succeeded", "{one}");
}

async fn numbers_come_out_digit_by_digit(db: &TestDatabase) {
    let worker = worker(db).await;
    let site = site(db).await;
    let payload =
        r#"{"id":9007199254740993,  "big":1234567890123456789012345,"neg":-9223372036854775809,"e":1.50e3}"#;
    let metadata = r#"{"big": 1234567890123456789012345}"#;
    let wish =
        format!(r#"{{"downstream":"pay","idempotency_key":"k","payload":{payload},"metadata":{metadata}}}"#);
    let written = by(&site, Role::Operator, "POST", "effects").json(&wish).send().await;
    assert_eq!(written.status, 201, "{written:?}");
    let id = body(&written)["effects"][0]["id"].as_i64().expect("a number");
    let claim = worker.claim_one("pay").await;
    assert_eq!(claim.effect.payload.as_deref(), Some(payload), "it is sent as it was written");
    worker.settle(Settling::of(&claim).decided(Decision::Succeed, &answer(200, payload))).await;
    let shown = by(&site, Role::Operator, "GET", &format!("effects/{id}?payload=true")).send().await;
    assert!(shown.body.contains("\"response\":{\"id\":9007199254740993,"), "{}", shown.body);
    assert_eq!(shown.body.matches("1234567890123456789012345").count(), 3, "{}", shown.body);
    assert_eq!(body(&shown)["request"]["payload"], payload);
    let page = by(&site, Role::Operator, "GET", "effects").send().await;
    assert!(page.body.contains("-9223372036854775809"), "{}", page.body);
}

async fn what_nobody_knows_is_refused_by_its_name(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    for (path, named) in [
        ("effects?stat=failed", "stat"),
        ("effects?state=lost", "lost"),
        ("effects?state=failed&state=ready", "state"),
        ("effects?limit=0", "limit"),
        ("effects?limit=1001", "limit"),
        ("effects?limit=-1", "limit"),
        ("effects?before=abc", "before"),
        ("effects?metadata=17", "metadata"),
        ("effects?created_before=tomorrow", "created_before"),
        ("effects?id=1,x", "id"),
        ("effects/abc", "abc"),
        ("effects/0", "0"),
        ("effects/1?payload=yes", "payload"),
        ("audit?efect=1", "efect"),
        ("requests?before=x", "before"),
        ("causes?state=ready", "ready"),
        ("causes", "state"),
        ("traffic?since=2026-01-01T00:00:00Z&per=day", "day"),
        ("bulk?limit=x", "limit"),
        ("bulk/x", "x"),
    ] {
        let answer = by(&site, Role::Viewer, "GET", path).send().await;
        assert_problem(&answer, 400, "request-malformed");
        assert!(body(&answer)["detail"].as_str().expect("words").contains(named), "{path}: {answer:?}");
    }
    for (path, sent, named) in [
        (format!("effects/{id}/retry"), json!({ "state": "failed", "token": 1, "tokn": 2 }), "tokn"),
        (format!("effects/{id}/retry"), json!({ "state": "failed" }), "token"),
        (
            format!("effects/{id}/resolve"),
            json!({ "state": "in_doubt", "token": 1, "as": "maybe", "reason": "x" }),
            "maybe",
        ),
        ("effects".to_owned(), json!({ "downstream": "pay", "idempotencykey": "x" }), "idempotencykey"),
        ("bulk".to_owned(), json!({ "verb": "retry", "filter": { "stat": "failed" } }), "stat"),
        ("downstreams/pay/pause".to_owned(), json!({ "why": "x" }), "why"),
    ] {
        let answer = post(&site, &path, &sent).await;
        assert_problem(&answer, 400, "request-malformed");
        assert!(body(&answer)["detail"].as_str().expect("words").contains(named), "{path}: {answer:?}");
    }
    let form = by(&site, Role::Operator, "POST", "effects").form("downstream=pay").send().await;
    assert_problem(&form, 415, "media-type");
    let long = format!("{{\"downstream\":\"{}\"}}", "x".repeat(3 << 20));
    let answer = by(&site, Role::Operator, "POST", "effects").json(&long).send().await;
    assert_problem(&answer, 413, "body-too-large");
    assert_eq!(db.status(id).await.state, aftercommit::state::State::Failed, "nothing of it was done");
}

async fn an_effect_that_is_written_twice_is_one(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let wish = json!({
        "downstream": "pay", "idempotency_key": "order-17", "payload": { "amount": 1500 }, "metadata": { "order": "17" },
        "delay_ms": 60_000,
    });
    let first = post(&site, "effects", &wish).await;
    assert_eq!(first.status, 201, "{first:?}");
    let effect = body(&first)["effects"][0].clone();
    assert_eq!((&effect["inserted"], &effect["state"]), (&true.into(), &"scheduled".into()), "{effect}");
    let again = post(&site, "effects", &wish).await;
    assert_eq!((again.status, &body(&again)["effects"][0]["inserted"]), (200, &false.into()), "{again:?}");
    let other = json!({ "downstream": "pay", "idempotency_key": "order-17", "payload": { "amount": 1501 } });
    assert_problem(&post(&site, "effects", &other).await, 409, "key-taken");
    for wrong in [
        json!({ "downstream": "pay", "idempotency_key": " x" }),
        json!({ "downstream": "", "payload": 1 }),
        json!({ "downstream": "pay", "payload": 1, "body_base64": "eA==" }),
        json!({ "downstream": "pay", "body_base64": "not base64" }),
        json!({ "downstream": "pay", "content_type": "text/plain" }),
        json!({ "downstream": "pay", "metadata": [1] }),
        json!({ "downstream": "pay", "headers": { "Authorization": "x" } }),
        json!({ "downstream": "pay", "expires_at": "2000-01-01T00:00:00Z" }),
        json!({ "downstream": "pay", "due_at": "2030-01-01T00:00:00Z", "delay_ms": 1 }),
    ] {
        assert_problem(&post(&site, "effects", &wrong).await, 422, "request-unusable");
    }
    assert_eq!(db.sql.number("SELECT count(*) FROM aftercommit.effects").await, 1);
}

async fn a_downstream_is_paused_and_resumed_once(db: &TestDatabase) {
    worker(db).await;
    let site = site(db).await;
    let reason = json!({ "reason": "the vendor asked us to" });
    assert_problem(&post(&site, "downstreams/pay/pause", &json!({})).await, 422, "reason-needed");
    let paused = post(&site, "downstreams/pay/pause", &reason).await;
    assert_eq!((paused.status, &body(&paused)["paused_by"]), (200, &"operator".into()), "{paused:?}");
    let again = post(&site, "downstreams/pay/pause", &reason).await;
    assert_problem(&again, 409, "state-forbids");
    assert!(again.body.contains("by operator at"), "it says who did: {again:?}");
    assert_problem(&post(&site, "downstreams/nobody/pause", &reason).await, 404, "not-found");
    let all = get(&site, "downstreams").await;
    let pay = all["downstreams"]
        .as_array()
        .and_then(|all| all.iter().find(|of| of["name"] == "pay"))
        .expect("it is there");
    assert!(pay["pause_reason"] == "the vendor asked us to" && pay["breaker"] == "closed", "{pay}");
    assert_problem(&post(&site, "downstreams/pay/resume", &json!({})).await, 400, "request-malformed");
    let seen = json!({ "paused_at": pay["paused_at"] });
    assert_eq!(post(&site, "downstreams/pay/resume", &seen).await.status, 200);
    assert_problem(&post(&site, "downstreams/pay/resume", &seen).await, 409, "state-forbids");
    let known: Vec<DownstreamInfo> = db.store.downstreams().await.expect("they can be listed");
    assert!(known.iter().all(|info| info.paused.is_none()), "{known:?}");
}

async fn who_did_what_is_told_with_from_where(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let token = db.status(id).await.token;
    let site = site(db).await;
    let wish = json!({ "state": "failed", "token": token, "reason": "the key is valid again" });
    assert_eq!(post(&site, &format!("effects/{id}/retry"), &wish).await.status, 200);
    post(&site, "downstreams/mail/pause", &json!({ "reason": "quiet" })).await;
    let rows = get(&site, &format!("audit?effect={id}")).await;
    let row = &rows["audit"][0];
    assert_eq!(
        (&row["who"], &row["from"], &row["verb"], &row["reason"]),
        (&"operator".into(), &"127.0.0.1".into(), &"retry".into(), &"the key is valid again".into()),
        "{rows}"
    );
    let first = get(&site, "audit?limit=1").await;
    assert_eq!(first["audit"][0]["verb"], "pause", "the newest first: {first}");
    let next = get(&site, &format!("audit?limit=1&before={}", first["next"])).await;
    assert_eq!(next["audit"][0]["effect_id"], id.get(), "{next}");
    for (query, n) in [("downstream=mail", 1), ("who=operator", 2), ("who=nobody", 0)] {
        let rows = get(&site, &format!("audit?{query}")).await;
        assert_eq!(rows["audit"].as_array().map(Vec::len), Some(n), "{query}: {rows}");
    }
}

async fn causes_counts_and_traffic_agree_with_the_effects(db: &TestDatabase) {
    let worker = worker(db).await;
    for n in 0..3 {
        failed(db, &worker, "pay", &format!("f{n}")).await;
    }
    in_doubt(db, &worker, "mail", "m").await;
    db.store.maintain().await.expect("the counters fold");
    let site = site(db).await;
    let causes = get(&site, "causes?state=failed").await;
    assert_eq!((&causes["causes"][0]["effects"], &causes["whole"]), (&3.into(), &true.into()), "{causes}");
    assert_eq!(causes["causes"][0]["search"], "card declined", "{causes}");
    let counts = get(&site, "counts").await;
    let of = |state: &str| {
        let counts = counts["counts"].as_array().expect("a list");
        counts
            .iter()
            .filter(|count| count["state"] == state)
            .map(|count| count["effects"].as_u64().expect("a number"))
            .sum::<u64>()
    };
    assert_eq!((of("failed"), of("in_doubt"), of("ready")), (3, 1, 0), "{counts}");
    let traffic = get(&site, "traffic?since=2000-01-01T00:00:00Z&per=hour").await;
    let rows = traffic["traffic"].as_array().expect("a list");
    let ended: u64 = rows.iter().map(|row| row["effects"].as_u64().expect("a number")).sum();
    assert_eq!(ended, 3, "{traffic}");
    let about = get(&site, "about").await;
    assert_eq!(
        (&about["who"], &about["role"], &about["hold"]),
        (&"operator".into(), &"operator".into(), &Value::Null)
    );
    assert_eq!(get(&site, "workers").await["workers"][0]["name"], "w1");
}
