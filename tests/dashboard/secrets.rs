//! What nobody is shown stands in every free text that is stored, and on no page, in no answer and in no refusal, whoever asks. The pages
//! come from the router's own table, so that a new one is covered with its first build.

use std::{collections::BTreeSet, time::Duration};

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    decision::Decision,
    outcome::{About, Finding, Outcome, Phase, Response},
    state::State,
    store::{ItemOutcome, NewBulk, RegisteredDownstream, Report, Sign, identity::Mismatch},
    verb::{Actor, Seen, Verb},
};
use aftercommit_dashboard::{Pointer, Right, Role};
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::{Value, json};

use super::{
    Answer, Site,
    api::{body, by, site},
    everybody, settings, token,
};
use crate::support::{
    Engine, Settling, TestDatabase, Worker, key_terms, none_terms, on_every_database, registered,
};

on_every_database! {
    no_route_shows_a_known_secret_to_anybody,
    no_search_finds_an_effect_by_what_is_hidden_in_it,
}

/// How each secret begins; and what stands in its place.
const BEGINS: &str = "sk_live_";
const MASK: &str = "•••";

/// A secret of a known form, which says where it stood.
fn secret(place: &str) -> String {
    format!("it is {BEGINS}{place}0123456789!")
}

fn somebody(place: &str) -> Actor {
    Actor { who: "ann".to_owned(), reason: Some(secret(place)), ..Actor::default() }
}

fn answered(finding: Finding, place: &str) -> Outcome {
    let body = json!({ "said": secret(&format!("{place}Response")) }).to_string().into_bytes();
    Outcome {
        response: Some(Response { status: Some(402), body, truncated: false }),
        ..Outcome::new(finding, Phase::Done, secret(&format!("{place}Attempt")))
    }
}

struct Planted {
    effects: Vec<EffectId>,
    bulk: i64,
}

/// An effect that carries a secret wherever one may stand.
async fn carrying(db: &TestDatabase, downstream: &str, key: &str) -> EffectId {
    let payload = format!("'{}'", json!({ "key": secret("Payload") }));
    let metadata = format!("'{}'", json!({ "order": secret("Metadata"), "n": 1 }));
    let headers = format!("'{}'", json!({ "X-Api-Key": "hush", "X-Plain": secret("Header") }));
    let target = format!("'/hooks/{}'", secret("Target").replace(' ', "-"));
    let columns =
        [("payload", &payload), ("metadata", &metadata), ("headers", &headers), ("target", &target)];
    db.insert_with(downstream, key, &columns.map(|(name, value)| (name, value.as_str()))).await
}

/// One whose body is bytes.
async fn with_bytes(db: &TestDatabase, key: &str) -> EffectId {
    let hex: String = format!("key={}", secret("Body")).bytes().map(|byte| format!("{byte:02x}")).collect();
    let body = match db.engine {
        Engine::Postgres => format!("'\\x{hex}'"),
        Engine::Sqlite => format!("X'{hex}'"),
    };
    db.insert_with("pay", key, &[("body", &body), ("content_type", "'application/x-www-form-urlencoded'")])
        .await
}

/// Secrets in all that is stored of effects, of what people did, of the fleet.
async fn plant(db: &TestDatabase) -> Planted {
    let store = &db.store;
    let pay = RegisteredDownstream {
        kind: "http",
        origin: Some("https://pay.test".into()),
        ..registered("pay", key_terms())
    };
    let mail = registered("mail", none_terms(OnUnknown::Hold));
    let worker = Worker::start(store, "w1", vec![pay, mail]).await;
    let mut effects = Vec::new();
    let later = db.now().await.plus(Duration::from_secs(3_600));
    let refused = Finding::Rejected(About::FirstRequest);
    for (key, finding, decision) in [
        ("failed", refused, Decision::Fail(secret("Failed"))),
        ("applied", Finding::Applied, Decision::Succeed),
        ("again", Finding::Unknown, Decision::RetryAt(later)),
    ] {
        effects.push(carrying(db, "pay", key).await);
        let claim = worker.claim_one("pay").await;
        worker.settle(Settling::of(&claim).decided(decision, &answered(finding, key))).await;
    }
    effects.push(carrying(db, "mail", "doubt").await);
    let claim = worker.claim_one("mail").await;
    let parked = Decision::Park(secret("Parked"));
    worker.settle(Settling::of(&claim).decided(parked, &answered(Finding::Unknown, "doubt"))).await;
    db.shift_back("queue", "quiet_at", effects[3], Duration::from_secs(3_600)).await;
    let cancelled = carrying(db, "pay", "cancelled").await;
    store.act(cancelled, &Verb::Cancel, &somebody("Reason"), None).await.expect("cancelling works");
    effects.extend([cancelled, with_bytes(db, "bytes").await, carrying(db, "mail", "due").await]);
    for name in ["pay", "mail"] {
        store.pause(name, &somebody("Pause")).await.expect("pausing works");
    }
    let report = Report {
        origin: "https://pay.test".into(),
        sign: Sign::Failed,
        pause: Some(Duration::from_secs(300)),
        reason: secret("Origin"),
    };
    store.report(&[report]).await.expect("reporting works");
    store
        .switch_endpoint("mail", "acme", Some(&secret("Endpoint")), &somebody("Endpoint"))
        .await
        .expect("it is disabled");
    let bulk =
        NewBulk { verb: "retry".to_owned(), what: secret("Bulk"), rate: 0, actor: somebody("BulkReason") };
    let seen = Seen { state: State::Failed, token: 0 };
    let bulk = store.start_bulk(&bulk, &[(effects[0], seen)]).await.expect("a bulk starts");
    store.bulk_refused(bulk, 1, ItemOutcome::Refused, &secret("Sample")).await.expect("it is refused");
    let found = Mismatch { reason: secret("Found"), went_back: false, token_above: 0, epoch_above: 0 };
    store.enter_hold("w1", &found).await.expect("the fleet is put on hold");
    Planted { effects, bulk }
}

/// The addresses that a route stands for, each with what may be asked for there. A route with another kind of place needs a line here.
fn addresses(path: &str, planted: &Planted) -> Vec<String> {
    let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect::<Vec<_>>();
    let mut all = vec![String::new()];
    for part in path.split('/').skip(1) {
        let filled = match part {
            "{id}" if path.contains("/bulk/") => vec![planted.bulk.to_string()],
            "{id}" => planted.effects.iter().map(ToString::to_string).collect(),
            "{verb}" if path.contains("/downstreams/") => words(&["pause", "resume"]),
            "{verb}" => words(&[
                "retry",
                "resend",
                "cancel",
                "redact",
                "resolve",
                "resolve?as=applied",
                "reissue?as=not-applied",
            ]),
            "{control}" => words(&["pause"]),
            "{name}" => words(&["pay", "mail"]),
            "{endpoint}" => words(&["acme"]),
            "{file}" => words(&["app.js"]),
            part if part.starts_with('{') => panic!("what stands in place of {part} in {path}?"),
            part => words(&[part]),
        };
        all = all.iter().flat_map(|path| filled.iter().map(move |part| format!("{path}/{part}"))).collect();
    }
    let queries: &[&str] = match path {
        "/api/v1/effects/{id}" => &["", "?payload=true"],
        "/api/v1/causes" => &["?state=failed", "?state=in_doubt"],
        "/api/v1/traffic" | "/api/v1/latencies" => &["?since=2026-01-01T00:00:00Z&per=hour"],
        "/failures" => &["", "?state=in_doubt"],
        "/bulk/new" => &["?q=state:failed", "?q=state:failed&verb=retry"],
        _ => &[""],
    };
    all.iter().flat_map(|path| queries.iter().map(move |query| format!("{path}{query}"))).collect()
}

/// What an answer says, with what stands in it in base64.
fn said(answer: &Answer) -> String {
    fn decoded(value: &Value, out: &mut String) {
        match value {
            Value::Object(members) => {
                for (name, value) in members {
                    if let ("body_base64", Some(text)) = (name.as_str(), value.as_str()) {
                        let bytes = STANDARD.decode(text).expect("it is base64");
                        out.push_str(&String::from_utf8_lossy(&bytes));
                    }
                    decoded(value, out);
                }
            }
            Value::Array(items) => items.iter().for_each(|item| decoded(item, out)),
            Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
        }
    }
    let mut said = answer.body.clone();
    if let Ok(json) = serde_json::from_str(&answer.body) {
        decoded(&json, &mut said);
    }
    said
}

/// Whether something is hidden in the answer; nothing that must be may stand there.
fn hides(asked: &str, answer: &Answer) -> bool {
    let said = said(answer);
    assert!(answer.status < 500 || asked.contains("readyz"), "{asked}: {answer:?}");
    for shown in [BEGINS, "hush"] {
        if let Some(at) = said.find(shown) {
            let around: String = said[at..].chars().take(60).collect();
            panic!("{asked} shows {around:?}");
        }
    }
    said.contains(MASK)
}

async fn no_route_shows_a_known_secret_to_anybody(db: &TestDatabase) {
    let planted = plant(db).await;
    let site = site(db).await;
    let mut hiding = BTreeSet::new();
    for role in Role::ALL {
        for route in site.dashboard.table().iter().filter(|route| route.method == "GET") {
            for address in addresses(&route.path, &planted) {
                let ask = site.ask("GET", &address).bearer(&token(role)).shown();
                let answer = ask.send().await;
                if hides(&format!("GET {address} as {role:?}"), &answer) {
                    hiding.insert(route.path.clone());
                }
                let is_seen = route.right != Right::Public && role == Role::Admin;
                assert!(!is_seen || matches!(answer.status, 200 | 409), "{address}: {answer:?}");
            }
        }
    }
    // The secrets came as far as these.
    for path in [
        "/",
        "/doubt",
        "/failures",
        "/effects",
        "/effects/{id}",
        "/effects/{id}/{verb}",
        "/bulk",
        "/bulk/{id}",
        "/downstreams",
        "/audit",
        "/api/v1/effects",
        "/api/v1/effects/{id}",
        "/api/v1/effects/{id}/attempts",
        "/api/v1/causes",
        "/api/v1/bulk",
        "/api/v1/bulk/{id}",
        "/api/v1/downstreams",
        "/api/v1/downstreams/{name}/endpoints",
        "/api/v1/audit",
        "/api/v1/about",
    ] {
        assert!(hiding.contains(path), "nothing was hidden at {path}; it was at {hiding:?}");
    }
    nothing_is_shown_by_what_is_done_or_refused(&site, &planted).await;
}

/// Answers of writes, and refusals, which quote.
async fn nothing_is_shown_by_what_is_done_or_refused(site: &Site, planted: &Planted) {
    let bodies = [
        json!({ "state": "failed", "token": 0, "reason": "x" }),
        json!({ "state": "in_doubt", "token": 0, "as": "applied", "reason": "x" }),
        json!({ "reason": "x" }),
        json!({ "verb": "retry", "filter": {}, "dry_run": true }),
        json!({ "downstream": "pay", "idempotency_key": "failed", "payload": 1 }),
    ];
    let form = "state=failed&token=0&seen_at=1&as=applied&reason=x&q=state:failed&verb=retry&shown=9";
    let mut hiding = BTreeSet::new();
    let table = site.dashboard.table();
    for route in table.iter().filter(|route| route.method == "POST" && route.right != Right::Public) {
        for address in addresses(&route.path, planted) {
            let ask = site.ask("POST", &address).bearer(&token(Role::Admin));
            let asks = if route.path.starts_with("/api/") {
                bodies.iter().map(|body| ask.clone().json(&body.to_string())).collect()
            } else {
                vec![ask.shown().form(form)]
            };
            for ask in asks {
                if hides(&format!("POST {address}"), &ask.send().await) {
                    hiding.insert(route.path.clone());
                }
            }
        }
    }
    // A pause that is there already is told with its reason, and a stale page with what happened since.
    for path in ["/api/v1/downstreams/{name}/pause", "/effects/{id}/{verb}"] {
        assert!(hiding.contains(path), "nothing was hidden at {path}; it was at {hiding:?}");
    }
}

/// What a viewer finds with this query: which effects, and how the page ends.
async fn found(site: &Site, query: &str) -> (Vec<i64>, Value, Value) {
    let answer = by(site, Role::Viewer, "GET", &format!("effects?{query}")).send().await;
    assert_eq!(answer.status, 200, "{query}: {answer:?}");
    let page = body(&answer);
    let effects = page["effects"].as_array().expect("a list");
    let ids = effects.iter().map(|effect| effect["id"].as_i64().expect("a number")).collect();
    (ids, page["next"].clone(), page["searched"].clone())
}

async fn no_search_finds_an_effect_by_what_is_hidden_in_it(db: &TestDatabase) {
    let worker = Worker::start(&db.store, "w1", vec![registered("pay", key_terms())]).await;
    let hidden = secret("Search");
    let mut all = Vec::new();
    for n in 0..4 {
        let why = if n == 1 { "it is none".to_owned() } else { hidden.clone() };
        let metadata = "'{\"pin\":1234,\"order\":\"A-17\"}'";
        all.push(db.insert_with("pay", &format!("k{n}"), &[("metadata", metadata)]).await.get());
        let claim = worker.claim_one("pay").await;
        worker.settle(Settling::of(&claim).fail(&why)).await;
    }
    all.reverse();
    let (_clock, mut settings) = settings(everybody());
    settings.redact.pointers.push(Pointer::parse("/pin").expect("a pointer"));
    let site = Site::open(&db.store, settings).await;
    // All that can be seen is found, also by words on either side.
    assert_eq!(found(&site, "error=it+is").await.0, all);
    assert_eq!(found(&site, "metadata=%7B%22order%22%3A%22A-17%22%7D").await.0, all);
    let one = all[0];
    for (guess, nothing) in [
        ("error=sk_live_", "error=never-said"),
        ("error=sk_live_S&limit=1", "error=never-said&limit=1"),
        ("error=is+sk_live_S&limit=2&state=failed", "error=never-said&limit=2&state=failed"),
        (&format!("error=sk_live_S&id={one}"), &format!("error=never-said&id={one}")),
        ("error=sk_live_S&key=k0", "error=never-said&key=k0"),
        ("metadata=%7B%22pin%22%3A1234%7D", "metadata=%7B%22pin%22%3A1235%7D"),
    ] {
        let (guessed, nothing) = (found(&site, guess).await, found(&site, nothing).await);
        assert_eq!(guessed.0, [0_i64; 0], "{guess}");
        if guess.starts_with("error") {
            assert_eq!(guessed, nothing, "{guess}: a page that ends otherwise tells it too");
        }
    }
    let page =
        site.ask("GET", "/effects?q=error:sk_live_S").bearer(&token(Role::Viewer)).shown().send().await;
    assert!(page.status == 200 && page.body.contains("No effect matches"), "{page:?}");
    let wish = json!({ "verb": "retry", "filter": { "error": "sk_live_S" }, "dry_run": true });
    let dry = by(&site, Role::Operator, "POST", "bulk").json(&wish.to_string()).send().await;
    assert_eq!((dry.status, &body(&dry)["effects"]), (200, &0.into()), "{dry:?}");
}
