//! DASH-02, ENCODING: strings that would run, close or turn around what is around them, in every field that is stored. Chromium
//! shows every page of them: no script runs, no dialog opens, nothing violates the policy.

use std::time::Duration;

use aftercommit::{
    EffectId,
    contract::OnUnknown,
    decision::Decision,
    outcome::{About, Finding, Outcome, Phase, Response},
    state::State,
    store::{ItemOutcome, NewBulk, RegisteredDownstream, Report, Sign},
    verb::{Actor, Seen, Verb},
};
use aftercommit_dashboard::Settings;
use serde_json::json;

use super::{Site, play};
use crate::support::{Settling, TestDatabase, Worker, none_terms, on_postgres, registered};

on_postgres! {
    first_quarter_of_hostile_strings_is_text,
    second_quarter_of_hostile_strings_is_text,
    third_quarter_of_hostile_strings_is_text,
    last_quarter_of_hostile_strings_is_text,
}

/// What would run.
const RUNS: [&str; 25] = [
    "<script>window.ran=1</script>",
    "<img src=x onerror=window.ran=1>",
    "<svg onload=window.ran=1>",
    "<svg><script>window.ran=1</script></svg>",
    "<body onload=window.ran=1>",
    "<iframe srcdoc='<script>parent.window.ran=1</script>'></iframe>",
    "<details open ontoggle=window.ran=1>",
    "<input autofocus onfocus=window.ran=1>",
    "<a href='javascript:window.ran=1'>x</a>",
    "javascript:window.ran=1",
    "<math><mtext><img src=x onerror=window.ran=1></mtext></math>",
    "<style>@import '//evil.test/x.css';*{display:none}</style>",
    "<link rel=stylesheet href=//evil.test/x.css>",
    "<base href=//evil.test/>",
    "<meta http-equiv=refresh content='0;url=//evil.test'>",
    "<form action=//evil.test><button>Log in</button></form>",
    "<object data=//evil.test></object>",
    "<template><script>window.ran=1</script></template>",
    "<img src='//evil.test/beacon'>",
    "alert(window.ran=1)",
    "{{ 7*7 }}{% include 'x' %}${window.ran=1}",
    "' OR 1=1; DROP TABLE effects; --",
    "<!--<script>window.ran=1//-->",
    "\\u003cscript\\u003ewindow.ran=1\\u003c/script\\u003e",
    "&lt;script&gt;window.ran=1&lt;/script&gt;&#60;script&#62;",
];

/// What it may have to get out of first.
const AROUND: [(&str, &str); 20] = [
    ("", ""),
    ("\">", ""),
    ("'>", ""),
    ("\" onmouseover=window.ran=1 x=\"", ""),
    ("' autofocus onfocus=window.ran=1 x='", ""),
    ("</title>", ""),
    ("</script>", ""),
    ("</style>", ""),
    ("</textarea>", ""),
    ("</pre>", "<pre>"),
    ("</option></select>", ""),
    ("-->", "<!--"),
    ("]]>", ""),
    ("</blockquote></li></ol>", ""),
    ("`}", ""),
    ("//", ""),
    ("x y=1 ", ">"),
    ("%0d%0aSet-Cookie: a=b%0d%0a%0d%0a", ""),
    ("\u{202e}", "\u{2066}\u{feff}"),
    ("\r\n\u{1b}[2J", "\u{0}\u{7f}\u{9b}\u{2028}"),
];

async fn first_quarter_of_hostile_strings_is_text(db: &TestDatabase) {
    quarter(db, 0).await;
}

async fn second_quarter_of_hostile_strings_is_text(db: &TestDatabase) {
    quarter(db, 1).await;
}

async fn third_quarter_of_hostile_strings_is_text(db: &TestDatabase) {
    quarter(db, 2).await;
}

async fn last_quarter_of_hostile_strings_is_text(db: &TestDatabase) {
    quarter(db, 3).await;
}

fn strings() -> Vec<String> {
    let all: Vec<String> =
        AROUND.iter().flat_map(|(before, after)| RUNS.map(|runs| format!("{before}{runs}{after}"))).collect();
    assert!(all.len() >= 500, "{}", all.len());
    all
}

/// As it may stand where only printable ASCII may.
fn printable(text: &str, longest: usize) -> String {
    let ascii: String = text.chars().map(|c| if matches!(c, '!'..='~') { c } else { '.' }).collect();
    ascii.chars().take(longest).collect()
}

/// Without what PostgreSQL's text cannot hold.
fn storable(text: &str) -> String {
    text.replace('\0', "")
}

fn sql(text: &str) -> String {
    format!("'{}'", storable(text).replace('\'', "''"))
}

async fn quarter(db: &TestDatabase, which: usize) {
    let strings: Vec<String> = strings().into_iter().skip(which).step_by(4).collect();
    let mut pages: Vec<String> = [
        "",
        "doubt",
        "failures",
        "failures?state=in_doubt",
        "effects",
        "downstreams",
        "workers",
        "requests",
        "audit",
        "bulk",
        "about",
    ]
    .map(str::to_owned)
    .to_vec();
    for (index, text) in strings.iter().enumerate() {
        let id = store(db, text, index).await;
        pages.push(format!("effects/{id}"));
        let quoted: String = percent(text);
        // What is asked is stored nowhere and comes back all the same.
        match index % 5 {
            0 => pages.push(format!("effects?q={quoted}")),
            1 => pages.push(format!("requests?scope={quoted}&key={quoted}")),
            2 => pages.push(format!("audit?who={quoted}&downstream={quoted}")),
            3 => pages.push(format!("bulk/new?q={quoted}&verb={quoted}&reason={quoted}")),
            _ => pages.push(format!("effects/{id}/resend?as={quoted}&done={quoted}")),
        }
    }
    let newest = db.sql.number("SELECT max(id) FROM aftercommit.effects").await;
    pages.extend([60, 120].map(|back| format!("effects?before={}", newest - back)));
    pages.extend((1..=i64::try_from(strings.len() / 25).expect("a few")).map(|bulk| format!("bulk/{bulk}")));
    let settings =
        Settings { title: strings[0].clone(), environment: strings[1].clone(), ..Settings::default() };
    let site = Site::open(&db.store, settings).await;
    play("hostile", &site, &json!({ "pages": pages })).await;
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Puts `text` into every field that an effect, and what is done to it, has.
async fn store(db: &TestDatabase, text: &str, index: usize) -> EffectId {
    let clean = storable(text);
    // A few downstreams with names of this kind; the rest share one.
    let downstream = if index.is_multiple_of(25) { printable(text, 128) } else { "payments".to_owned() };
    let mut of =
        RegisteredDownstream { kind: "http", ..registered(&downstream, none_terms(OnUnknown::Hold)) };
    of.origin = Some(clean.as_str().into());
    let worker = if index.is_multiple_of(25) { clean.clone() } else { "w1".to_owned() };
    let worker = Worker::start(&db.store, &worker, vec![of]).await;
    let json = json!({ clean.clone(): clean.clone(), "plain": clean }).to_string();
    let headers = json!({ "x-a": printable(text, 60) }).to_string();
    let columns = [
        ("operation", sql(&clean.chars().take(128).collect::<String>())),
        ("payload", sql(&json)),
        ("metadata", sql(&json)),
        ("headers", sql(&headers)),
        ("target", sql(&clean.chars().take(2_000).collect::<String>())),
    ];
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let key = format!("{}{index}", printable(text, 200));
    let id = db.insert_with(&downstream.replace('\'', "''"), &key.replace('\'', "''"), &columns).await;
    let claim = worker.claim_one(&downstream).await;
    let outcome = Outcome {
        response: Some(Response { status: Some(402), body: json.into_bytes(), truncated: false }),
        ..Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, clean.clone())
    };
    let decision = match index % 3 {
        0 => Decision::Fail(clean.clone()),
        1 => Decision::Park(clean.clone()),
        _ => Decision::Succeed,
    };
    worker.settle(Settling::of(&claim).decided(decision, &outcome)).await;
    people(db, id, &clean, index).await;
    id
}

/// What people do, and why, in the same words.
async fn people(db: &TestDatabase, id: EffectId, clean: &str, index: usize) {
    let store = &db.store;
    let some = Some(clean.to_owned());
    let actor = Actor { who: clean.to_owned(), reason: some.clone(), from: some, ..Actor::default() };
    store.act(id, &Verb::Redact, &actor, None).await.expect("acting works");
    if index.is_multiple_of(25) {
        let downstream = db.status(id).await.downstream;
        store.pause(&downstream, &actor).await.expect("pausing works");
        let pause = Some(Duration::from_secs(300));
        let report = Report { origin: clean.into(), sign: Sign::Failed, pause, reason: clean.to_owned() };
        store.report(&[report]).await.expect("reporting works");
        let bulk = NewBulk { verb: "retry".to_owned(), what: clean.to_owned(), rate: 0, actor };
        let seen = Seen { state: State::Failed, token: 0 };
        let number = store.start_bulk(&bulk, &[(id, seen)]).await.expect("a bulk starts");
        store.bulk_refused(number, 1, ItemOutcome::Refused, clean).await.expect("an item is refused");
        let request = format!(
            "INSERT INTO aftercommit.requests (scope, key, fingerprint, response_status, response_body, expires_at)
             VALUES ({}, {}, '\\x00', 201, '', clock_timestamp() + interval '1 day')",
            sql(clean),
            sql(&printable(clean, 100))
        );
        db.sql.try_execute(&request).await.ok();
    }
}
