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
use serde_json::{Map, Value, json};

use super::{Site, play};
use crate::support::{Settling, TestDatabase, Worker, none_terms, on_postgres, registered};

on_postgres! {
    one_half_of_hostile_strings_is_text,
    the_other_half_of_hostile_strings_is_text,
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

async fn one_half_of_hostile_strings_is_text(db: &TestDatabase) {
    half(db, 0).await;
}

async fn the_other_half_of_hostile_strings_is_text(db: &TestDatabase) {
    half(db, 1).await;
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

/// Each list is shown to its end. What only the page of an effect shows, five strings share; and what is asked, which is stored nowhere,
/// comes back all the same.
async fn half(db: &TestDatabase, which: usize) {
    let strings: Vec<String> = strings().into_iter().skip(which).step_by(2).collect();
    let lists = [
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
    ];
    let mut pages: Vec<String> = lists.into_iter().chain(["about"]).map(str::to_owned).collect();
    for (chunk, five) in strings.chunks(5).enumerate() {
        let mut ids = Vec::with_capacity(five.len());
        for (place, text) in five.iter().enumerate() {
            let carried = if place == 0 { five } else { std::slice::from_ref(text) };
            ids.push(store(db, text, carried, chunk * 5 + place).await);
        }
        // One with what it carries, and one with what people did to it.
        pages.extend(ids.iter().take(2).map(|id| format!("effects/{id}")));
        let asked: Vec<String> = five.iter().map(|text| percent(text)).collect();
        let [a, b, c, d, e] = asked.as_slice() else { panic!("the strings come in fives") };
        pages.push(match chunk % 4 {
            0 => format!("effects?q={a}"),
            1 => format!("requests?scope={b}&key={c}"),
            2 => format!("audit?who={d}&downstream={e}"),
            _ => format!("bulk/new?q=state:failed+key:{a}&verb=retry&reason={c}&rate={d}&id={e}"),
        });
        pages.push(format!("effects/{}/resend?as={b}&done={e}", ids[2]));
    }
    pages.extend((1..=strings.len() / 25).map(|bulk| format!("bulk/{bulk}")));
    let settings =
        Settings { title: strings[0].clone(), environment: strings[1].clone(), ..Settings::default() };
    let site = Site::open(&db.store, settings).await;
    play("hostile", &site, &json!({ "pages": pages, "strings": strings.len() })).await;
}

fn percent(text: &str) -> String {
    text.bytes().map(|byte| format!("%{byte:02X}")).collect()
}

/// Puts `text` into every field that an effect, and what is done to it, has; `carried` into what it sends and is answered.
async fn store(db: &TestDatabase, text: &str, carried: &[String], index: usize) -> EffectId {
    let clean = storable(text);
    // A few downstreams with names of this kind; the rest share one.
    let downstream = if index.is_multiple_of(25) { printable(text, 128) } else { "payments".to_owned() };
    let mut of =
        RegisteredDownstream { kind: "http", ..registered(&downstream, none_terms(OnUnknown::Hold)) };
    of.origin = Some(clean.as_str().into());
    let worker = Worker::start(&db.store, &clean, vec![of]).await;
    let carried: Vec<String> = carried.iter().map(|text| storable(text)).collect();
    let json: Map<String, Value> = carried.iter().map(|text| (text.clone(), json!(text))).collect();
    let json = Value::Object(json).to_string();
    let headers: Map<String, Value> = (0..)
        .zip(&carried)
        .map(|(n, text): (usize, _)| (format!("x-{n}"), json!(printable(text, 60))))
        .collect();
    let columns = [
        ("operation", sql(&clean.chars().take(128).collect::<String>())),
        ("payload", sql(&json)),
        ("metadata", sql(&json!({ clean.clone(): clean.clone() }).to_string())),
        ("headers", sql(&Value::Object(headers).to_string())),
        ("target", sql(&carried.join(" ").chars().take(2_000).collect::<String>())),
    ];
    let columns: Vec<(&str, &str)> = columns.iter().map(|(name, value)| (*name, value.as_str())).collect();
    let key = format!("{}{index}", printable(text, 200));
    let id = db.insert_with(&downstream.replace('\'', "''"), &key.replace('\'', "''"), &columns).await;
    let claim = worker.claim_one(&downstream).await;
    let outcome = Outcome {
        response: Some(Response { status: Some(402), body: json.into_bytes(), truncated: false }),
        ..Outcome::new(Finding::Rejected(About::ThisAttempt), Phase::Done, clean.clone())
    };
    // In fives, the third is in doubt: what is asked of it can be asked.
    let decision = match index % 5 {
        0 | 3 => Decision::Fail(clean.clone()),
        2 | 4 => Decision::Park(clean.clone()),
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
    // The first of five keeps what it carries.
    if !index.is_multiple_of(5) {
        store.act(id, &Verb::Redact, &actor, None).await.expect("acting works");
    }
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
