//! Whatever is sent to the API or stands in an effect: refused or shown, never our failure, and no secret of a known form is shown.

use aftercommit::effect::EffectId;
use aftercommit_dashboard::Role;
use serde_json::json;

use super::{
    Site,
    api::{by, failed, post, site, worker},
    token,
};
use crate::support::{Settling, TestDatabase, on_every_database};

on_every_database! {
    hostile_words_are_never_our_failure,
    hostile_words_at_every_route_are_never_our_failure,
    secrets_are_hidden_from_everybody,
}

/// Words as they stand in an address.
const WORDS: [&str; 20] = [
    "%00",
    "%C3%28",
    "%F0%9F%92%A9",
    "';DROP%20TABLE%20effects;--",
    "%25_%25",
    "%3Cscript%3Ealert(1)%3C/script%3E",
    "%0d%0aSet-Cookie:x",
    "9223372036854775808",
    "-9223372036854775809",
    "1e9",
    "NaN",
    "%E2%80%AE",
    "..%2f..%2fetc",
    "{}",
    "%7B%22a%22:%22%5Cu0000%22%7D",
    "99999-99-99T99:99:99Z",
    "infinity",
    "a,b,,c",
    "%",
    "%7F",
];
/// What is filtered by.
const NAMES: [&str; 11] = [
    "state",
    "downstream",
    "operation",
    "key",
    "metadata",
    "error",
    "created_before",
    "created_after",
    "id",
    "before",
    "limit",
];
/// Names of parameters and of fields, of pages and of the API.
const FIELDS: [&str; 16] = [
    "q",
    "state",
    "downstream",
    "token",
    "seen_at",
    "as",
    "reason",
    "response",
    "confirmation",
    "before",
    "after",
    "id",
    "effect",
    "who",
    "scope",
    "verb",
];
/// What else has a word in its address.
const OTHERS: [&str; 8] = [
    "audit?who=",
    "requests?scope=",
    "requests?before=",
    "requests?state=",
    "causes?state=failed&downstream=",
    "traffic?per=hour&since=",
    "latencies?per=hour&since=",
    "effects/",
];

/// Words in every parameter and every member: refused or served, never our failure, never markup.
async fn hostile_words_are_never_our_failure(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    let paths = NAMES.iter().map(|name| format!("effects?{name}="));
    let ways: Vec<String> =
        paths.chain(OTHERS.map(str::to_owned)).chain(["downstreams/".to_owned()]).collect();
    for way in &ways {
        for word in WORDS {
            let tail = if way == "downstreams/" { "/endpoints" } else { "" };
            let answer = by(&site, Role::Viewer, "GET", &format!("{way}{word}{tail}")).send().await;
            assert!(matches!(answer.status, 200 | 400 | 404 | 422), "{way}{word}: {answer:?}");
            assert!(
                answer.header("content-type").is_some_and(|kind| kind.contains("json")),
                "{way}{word}: {answer:?}"
            );
            assert!(
                answer.header("set-cookie").is_none() && answer.header("x").is_none(),
                "{way}{word}: {answer:?}"
            );
        }
    }
    hostile_bodies_are_refused(db, &site, id).await;
}

async fn hostile_bodies_are_refused(db: &TestDatabase, site: &Site, id: EffectId) {
    let deep = format!("{}{}", "[".repeat(10_000), "]".repeat(10_000));
    for text in ["\0", "\u{202e}", "\u{fffe}", "'", "\\", &"x".repeat(20_000)] {
        for sent in [
            json!({ "state": "failed", "token": 1, "reason": text }),
            json!({ "downstream": text }),
            json!({ "downstream": "pay", "idempotency_key": text, "target": text, "operation": text }),
            json!({ "downstream": "pay", "headers": { text: text }, "trace_context": text }),
            json!({ "downstream": "pay", "metadata": { text: text }, "payload": { text: text } }),
            json!({ "verb": "retry", "filter": { "downstream": text, "error": text, "key": text }, "reason": text }),
            json!({ "verb": text, "filter": {} }),
        ] {
            for path in [format!("effects/{id}/retry"), "effects".to_owned(), "bulk".to_owned()] {
                let answer = post(site, &path, &sent).await;
                assert!(answer.status < 500, "{path} {sent}: {answer:?}");
            }
        }
    }
    for sent in [
        format!("{{\"downstream\":\"pay\",\"payload\":{deep}}}"),
        format!("{{\"a\":{deep}}}"),
        deep.clone(),
        String::new(),
    ] {
        let answer = by(site, Role::Operator, "POST", "effects").json(&sent).send().await;
        assert!(matches!(answer.status, 400 | 422), "{:.60}: {answer:?}", sent);
    }
    // What is nested deeper than anybody reads can be written by a plain INSERT, and shown.
    let nested = format!("'{}{}'", "[".repeat(900), "]".repeat(900));
    let nested = db.insert_with("pay", "deep", &[("payload", &nested)]).await;
    let shown = by(site, Role::Operator, "GET", &format!("effects/{nested}?payload=true")).send().await;
    assert!(shown.status == 200 && shown.body.contains("[[[["), "{:.200}", shown.body);
}

/// Every route of the router's own table, the pages' too: hostile words where a path varies, in every parameter, and in every field.
async fn hostile_words_at_every_route_are_never_our_failure(db: &TestDatabase) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "k").await;
    let site = site(db).await;
    let cookie = site.log_in(&token(Role::Admin)).await;
    let mut asked = 0;
    for route in site.dashboard.table().iter().filter(|route| !route.path.ends_with("/events")) {
        for word in WORDS {
            let varies = |part: &str| if part.starts_with('{') { word.to_owned() } else { part.to_owned() };
            let path = route.path.split('/').map(varies).collect::<Vec<_>>().join("/");
            let fields: String = FIELDS.iter().map(|name| format!("{name}={word}&")).collect();
            let right = route.path.replace("{id}", "1").replace("{name}", "pay").replace("{verb}", "retry");
            let mut paths = vec![path, right];
            paths.dedup();
            for path in paths.iter().map(String::as_str) {
                let ask = |path: &str| site.ask(route.method.as_str(), path).shown().ours().cookie(&cookie);
                let sent = if route.method == "GET" {
                    vec![ask(path), ask(&format!("{path}?{fields}"))]
                } else {
                    vec![
                        ask(path).form(&fields),
                        ask(path).form(word),
                        ask(path).json(&format!("\"{word}\"")),
                    ]
                };
                for ask in sent.iter().filter(|_| route.path != "/logout" && route.path != "/login") {
                    let answer = ask.send().await;
                    asked += 1;
                    assert!(answer.status < 500, "{ask:?}: {answer:?}");
                    assert!(!answer.body.contains("<script>alert"), "{ask:?}: {answer:?}");
                    let forged = ["set-cookie", "x"].iter().any(|name| answer.header(name).is_some());
                    assert!(!forged, "{ask:?}: {answer:?}");
                }
            }
        }
    }
    println!("{asked} requests");
    assert!(asked > 2_000, "{asked}");
}

async fn secrets_are_hidden_from_everybody(db: &TestDatabase) {
    let worker = worker(db).await;
    let secret = "sk_live_0123456789abcdef";
    let payload = format!("'{{\"n\":9007199254740993,\"key\":\"{secret}\"}}'");
    let headers = "'{\"X-Api-Key\":\"hush\",\"X-Plain\":\"shown\"}'";
    let metadata = format!("'{{\"note\":\"{secret}\",\"n\":9007199254740993}}'");
    let columns = [("payload", payload.as_str()), ("headers", headers), ("metadata", &metadata)];
    let id = db.insert_with("pay", "k", &columns).await;
    let claim = worker.claim_one("pay").await;
    worker.settle(Settling::of(&claim).fail(&format!("no such key: {secret}"))).await;
    let site = site(db).await;
    let shown = by(&site, Role::Admin, "GET", &format!("effects/{id}?payload=true")).send().await;
    assert!(!shown.body.contains(secret) && !shown.body.contains("hush"), "{}", shown.body);
    assert!(shown.body.contains("9007199254740993") && shown.body.contains("shown"), "{}", shown.body);
    for path in ["effects", "causes?state=failed"] {
        assert!(!by(&site, Role::Admin, "GET", path).send().await.body.contains(secret), "{path}");
    }
    for path in ["/", "/effects", "/failures"]
        .map(str::to_owned)
        .into_iter()
        .chain([format!("/effects/{id}"), format!("/effects/{id}/retry")])
    {
        let page = site.ask("GET", &path).bearer(&token(Role::Admin)).shown().send().await;
        assert!(page.status == 200 && page.body.contains("•••") == (path != "/"), "{path}: {page:?}");
        assert!(!page.body.contains(secret), "{path}: {}", page.body);
    }
}
