//! What a probe asks, and what it makes of the answer: only recognised bodies are *found* or *absent*, and a list counts only
//! whole.

use std::{
    collections::VecDeque,
    sync::{Arc, Mutex},
    time::Duration,
};

use aftercommit::{
    downstream::{Closed, Probe, Served},
    effect::Effect,
    outcome::{Contact, Probed, Sighting},
};

use super::{
    Fixed, effect, served,
    server::{Server, answer},
    settings,
};
use crate::config::{Settings, Sources};

const LEGACY: &str = r#"
contract = { dedupe = "lookup" }
auth = { bearer = { env = "TOKEN" } }
[downstream.shop.probe]
method = "GET"
path = "/notes?ref={key}"
found = { status = 200, pointer = "/data/0/ref", equals = "{key}" }
absent = { status = 200, pointer = "/data", equals = [] }
absent_after = "10m"
"#;

const LIST: &str = r#"
contract = { dedupe = "lookup" }
[downstream.shop.probe]
path = "/v1/charges?limit=2"
any = "/data"
where = { "/metadata/order" = "{metadata:/order}" }
found = { pointer = "/status", equals = "succeeded" }
pages = { more = "/has_more", next = "starting_after={last:/data:/id}", max = 3 }
absent_after = "5s"
"#;

fn at(server: &Server, toml: &str) -> Served {
    served(&format!("base_url = \"{}/api\"\n{toml}", server.url))
}

fn order(metadata: &str) -> Effect {
    Effect { metadata: Some(metadata.to_owned()), ..effect() }
}

async fn ask_through(served: &Served, effect: Effect, gate: Result<(), Closed>) -> Probed {
    let key = effect.key.clone();
    let timeout = Duration::from_secs(10);
    let probe = Probe { effect: Arc::new(effect), key, timeout, gate: Arc::new(Fixed(gate)) };
    tokio::time::timeout(timeout, served.downstream.probe(&probe)).await.expect("it keeps its deadline")
}

async fn ask(served: &Served, effect: Effect) -> Probed {
    ask_through(served, effect, Ok(())).await
}

/// What the legacy probe makes of one answer.
async fn legacy(status: u16, body: &str) -> Probed {
    let server = Server::answering(answer(status, "", body)).await;
    ask(&at(&server, LEGACY), effect()).await
}

/// What the list probe makes of these pages, and what it asked for.
async fn pages(metadata: &str, pages: &[Vec<u8>]) -> (Probed, Vec<String>) {
    let left: Arc<Mutex<VecDeque<Vec<u8>>>> = Arc::new(Mutex::new(pages.iter().cloned().collect()));
    let server = Server::start(move |mut connection| {
        let left = Arc::clone(&left);
        async move {
            while connection.read().await {
                let page = left.lock().unwrap().pop_front();
                let Some(page) = page else { return };
                if !connection.write(&page).await {
                    return;
                }
            }
        }
    })
    .await;
    let probed = ask(&at(&server, LIST), order(metadata)).await;
    let first_line = |request: String| request.lines().next().unwrap_or_default().to_owned();
    (probed, server.seen.requests().into_iter().map(first_line).collect())
}

fn page(items: &[(&str, &str, &str)], more: bool) -> Vec<u8> {
    let items: Vec<String> = items
        .iter()
        .map(|(id, order, status)| {
            format!(r#"{{"id":"{id}","status":"{status}","metadata":{{"order":"{order}"}}}}"#)
        })
        .collect();
    answer(200, "", &format!(r#"{{"data":[{}],"has_more":{more}}}"#, items.join(",")))
}

#[tokio::test]
async fn it_asks_its_own_origin_with_its_credentials_and_the_effects_values_encoded() {
    let server = Server::answering(answer(200, "", r#"{"data":[]}"#)).await;
    ask(&at(&server, LEGACY), effect()).await;
    let requests = server.seen.requests();
    assert_eq!(requests.len(), 1);
    assert!(requests[0].starts_with("GET /api/notes?ref=order-17%2Fcharge HTTP/1.1\r\n"), "{requests:?}");
    assert!(requests[0].to_lowercase().contains("authorization: bearer sekret-token"), "{requests:?}");
    assert!(!requests[0].to_lowercase().contains("idempotency-key"), "{requests:?}");
}

#[tokio::test]
async fn found_and_absent_are_recognised_bodies_and_all_else_is_not() {
    let found = legacy(200, r#"{"data":[{"ref":"order-17/charge","n":1.0}]}"#).await;
    assert_eq!(found.sighting, Sighting::Applied, "{}", found.reason);
    let response = found.response.expect("what was found");
    assert_eq!(response.body, br#"{"data":[{"ref":"order-17/charge","n":1.0}]}"#);
    assert_eq!(legacy(200, r#"{"data":[]}"#).await.sighting, Sighting::Absent);
    // Another's object, or none of the two shapes: it undoes an absence, and proves nothing.
    for body in [r#"{"data":[{"ref":"another"}]}"#, "{}", r#"{"data":null}"#, r#"{"data":{}}"#, "[]"] {
        assert_eq!(legacy(200, body).await.sighting, Sighting::Unproven, "{body}");
    }
    for (status, body) in [
        (404, r#"{"data":[]}"#),
        (500, r#"{"data":[]}"#),
        (401, "{}"),
        (302, r#"{"data":[]}"#),
        (200, "<html>"),
        (200, ""),
        (200, "{\"data\":[]"),
    ] {
        let probed = legacy(status, body).await;
        assert_eq!(probed.sighting, Sighting::Unknown, "{status} {body}: {}", probed.reason);
        assert!(probed.response.is_none());
    }
}

#[tokio::test]
async fn an_answer_that_is_cut_or_lost_is_unknown() {
    let cut = answer(200, "", r#"{"data":[]}"#);
    let cut = Server::answering(cut[..cut.len() - 1].to_vec()).await;
    let toml = LEGACY.replacen("contract", "timeout = \"300ms\"\ncontract", 1);
    let gone = Server::start(|mut connection| async move {
        connection.read().await;
        connection.reset();
    })
    .await;
    let long = answer(200, "", &format!(r#"{{"data":[]{}}}"#, " ".repeat(2000)));
    let long = Server::answering(long).await;
    let limited = LEGACY.replacen("contract", "max_response = \"1KiB\"\ncontract", 1);
    for (server, toml) in [(&cut, &toml), (&gone, &toml), (&long, &limited)] {
        let probed = ask(&at(server, toml), effect()).await;
        assert_eq!(probed.sighting, Sighting::Unknown, "{}", probed.reason);
    }
}

#[tokio::test]
async fn a_closed_gate_asks_nothing() {
    let server = Server::answering(answer(200, "", r#"{"data":[]}"#)).await;
    let probed = ask_through(&at(&server, LEGACY), effect(), Err(Closed::Stopping)).await;
    assert_eq!((probed.sighting, server.seen.requests().len()), (Sighting::Unknown, 0));
}

#[tokio::test]
async fn a_value_that_the_effect_does_not_have_cannot_be_asked_about() {
    let server = Server::answering(page(&[], false)).await;
    for effect in [effect(), order("{}"), order(r#"{"order":null}"#), order(r#"{"order":""}"#)] {
        let probed = ask(&at(&server, LIST), effect).await;
        assert_eq!(probed.sighting, Sighting::Impossible, "{}", probed.reason);
    }
    assert!(server.seen.requests().is_empty());
}

#[tokio::test]
async fn a_list_is_read_page_by_page_to_its_end() {
    let two = [
        page(&[("a", "1", "succeeded"), ("b/2", "2", "succeeded")], true),
        page(&[("c", "3", "succeeded")], false),
    ];
    let (probed, asked) = pages(r#"{"order":"A-17"}"#, &two).await;
    assert_eq!(probed.sighting, Sighting::Absent, "{}", probed.reason);
    assert_eq!(
        asked,
        ["GET /api/v1/charges?limit=2 HTTP/1.1", "GET /api/v1/charges?limit=2&starting_after=b%2F2 HTTP/1.1"]
    );
    let (probed, _) = pages(r#"{"order":3}"#, &two).await;
    assert_eq!(probed.sighting, Sighting::Applied, "an order 3 and an order \"3\" are the same");
    let item = br#"{"id":"c","status":"succeeded","metadata":{"order":"3"}}"#;
    assert_eq!(probed.response.expect("the item").body, item);
}

#[tokio::test]
async fn an_item_that_is_pending_or_failed_is_found_and_not_as_applied() {
    for status in ["pending", "failed"] {
        let (probed, _) = pages(r#"{"order":"1"}"#, &[page(&[("a", "1", status)], false)]).await;
        assert_eq!(probed.sighting, Sighting::Unproven, "{}", probed.reason);
    }
    let both = [page(&[("a", "1", "failed"), ("b", "1", "succeeded")], false)];
    assert_eq!(pages(r#"{"order":"1"}"#, &both).await.0.sighting, Sighting::Applied);
}

#[tokio::test]
async fn a_list_that_is_not_read_whole_is_unknown() {
    let full = |id: &str| page(&[(id, "1", "succeeded")], true);
    let cases: [(&str, Vec<Vec<u8>>); 9] = [
        ("more pages than max", vec![full("a"), full("b"), full("c"), full("d")]),
        ("an item comes twice", vec![full("a"), full("a")]),
        ("a page fails", vec![full("a"), answer(500, "", "{}")]),
        ("a page is no list", vec![full("a"), answer(200, "", r#"{"data":{},"has_more":false}"#)]),
        ("a page is empty, and it goes on", vec![full("a"), page(&[], true)]),
        ("a page does not say whether it goes on", vec![answer(200, "", r#"{"data":[]}"#)]),
        ("a page says it in another way", vec![answer(200, "", r#"{"data":[],"has_more":"false"}"#)]),
        ("an item has no mark", vec![answer(200, "", r#"{"data":[{"x":1}],"has_more":false}"#)]),
        ("the connection ends", vec![full("a")]),
    ];
    for (what, answers) in cases {
        let (probed, asked) = pages(r#"{"order":"A-17"}"#, &answers).await;
        assert_eq!(probed.sighting, Sighting::Unknown, "{what}: {}", probed.reason);
        assert!(asked.len() <= 3, "{what}: {asked:?}");
    }
}

fn refused(toml: &str) -> String {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aftercommit.toml");
    let text = format!(
        "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.shop]\nkind = \"http\"\nbase_url = \"http://x\"\n{toml}"
    );
    std::fs::write(&file, text).unwrap();
    match Settings::load(&Sources { file: Some(file), ..Sources::default() }) {
        Ok(_) => panic!("this was taken:\n{toml}"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_probe_makes_the_contract_one_that_can_be_asked() {
    let of = |toml: &str| {
        settings(&format!("base_url = \"http://x\"\n{toml}")).downstreams["shop"].default.contract.clone()
    };
    let lookup = of(&LEGACY.replace("auth = { bearer = { env = \"TOKEN\" } }", ""));
    assert!(lookup.can_probe);
    assert_eq!(lookup.absent_after, Duration::from_secs(600));
    let key = of(&LIST.replace("dedupe = \"lookup\"", "dedupe = \"key\", window = \"24h\""));
    assert!(key.can_probe, "probed past its window");
}

#[test]
fn an_operation_refines_its_downstreams_probe() {
    let text = format!(
        "base_url = \"http://x\"\n{LIST}[downstream.shop.operations.pay]\nprobe = {{ absent_after = \"1h\" }}\n\
         [downstream.shop.operations.ping]\ncontract = {{ dedupe = \"none\", on_unknown = \"retry\" }}\n"
    );
    let shop = &settings(&text).downstreams["shop"];
    let pay = &shop.operations["pay"].contract;
    assert_eq!((pay.can_probe, pay.absent_after), (true, Duration::from_secs(3600)));
    assert!(!shop.operations["ping"].contract.can_probe, "what is retried is not asked about");
}

#[test]
fn a_probe_that_could_lie_is_refused() {
    let legacy = LEGACY.replace("auth = { bearer = { env = \"TOKEN\" } }", "");
    let cases = [
        ("contract = { dedupe = \"lookup\" }".to_owned(), "needs a probe"),
        (legacy.replace("absent_after = \"10m\"", ""), "absent_after: is missing"),
        (legacy.replace("\"10m\"", "\"0s\""), "more than zero"),
        (legacy.replace("path = ", "paht = "), "did you mean `path`"),
        (legacy.replace("equals = []", "eqals = []"), "eqals"),
        (legacy.replace("method = \"GET\"", "method = \"DELETE\""), "\"GET\" or \"POST\""),
        (
            legacy.replace("{ status = 200, pointer = \"/data\", equals = [] }", "{ status = 404 }"),
            "a status alone",
        ),
        (legacy.replace("equals = []", "exists = true"), "could both hold"),
        (legacy.replace("\"/data\", equals = []", "\"/total\", equals = 0"), "could both hold"),
        (legacy.replace("{key}\" }", "{kee}\" }"), "a placeholder is"),
        (legacy.replace("dedupe = \"lookup\"", "dedupe = \"none\""), "is never made"),
        (
            LIST.replace(
                "pages = { more = \"/has_more\", next = \"starting_after={last:/data:/id}\", max = 3 }",
                "",
            ),
            "counts only whole",
        ),
        (LIST.replace("{last:/data:/id}", "x"), "{last:LIST:ITEM}"),
        (LIST.replace("max = 3", "max = 0"), "max = 50"),
        (LIST.replace("any = \"/data\"", ""), "where the list stands"),
        (
            LIST.replace(
                "found = { pointer = \"/status\", equals = \"succeeded\" }",
                "found = { status = 200 }",
            ),
            "a status alone",
        ),
        (format!("{LIST}absent = {{ pointer = \"/data\", equals = [] }}\n"), "leave it out beside any"),
    ];
    for (toml, why) in cases {
        let error = refused(&toml);
        assert!(error.contains(why), "{why:?} was expected of:\n{toml}\nand it said: {error}");
    }
}

/// Told to the fleet like what a call shows.
#[tokio::test]
async fn an_answer_tells_of_its_origin_what_a_calls_would() {
    for (status, body, contact) in [
        (200, r#"{"data":[]}"#, Contact::Answered),
        (404, "", Contact::Answered),
        (429, "", Contact::Answered),
        (401, "", Contact::Refused),
        (403, "", Contact::Refused),
        (408, "", Contact::Failed),
        (503, "", Contact::Failed),
    ] {
        assert_eq!(legacy(status, body).await.contact, contact, "HTTP {status}");
    }
    let silent = Server::start(|_connection| async {}).await;
    assert_eq!(ask(&at(&silent, LEGACY), effect()).await.contact, Contact::Failed);
}
