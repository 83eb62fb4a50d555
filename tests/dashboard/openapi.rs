//! The description of the API is what is served: checked in, in step with the routes, and nothing comes back that it does not have.

use std::{collections::BTreeSet, path::PathBuf, time::Duration};

use aftercommit_dashboard::{Role, api};
use serde_json::Value;
use tokio::process::Command;

use super::{
    Site,
    api::{failed, get, in_doubt, site, worker},
    token,
};
use crate::{
    e2e::{environment, processes::run},
    support::{Chance, TestDatabase, on_every_database, on_sqlite},
};

on_every_database! {
    a_fuzzer_that_looks_finds_nothing_that_the_description_does_not_have,
    a_fuzzer_that_acts_finds_nothing_that_the_description_does_not_have,
}
on_sqlite! {
    every_route_is_described_and_nothing_else,
    the_description_is_valid,
    prometheus_own_tool_accepts_the_metrics,
}

/// With `AFTERCOMMIT_WRITE=1` it is written instead of compared.
#[test]
fn what_is_checked_in_is_what_the_handlers_say() {
    let path = environment::file("dashboard/openapi.json");
    let said = api::openapi();
    if std::env::var_os("AFTERCOMMIT_WRITE").is_some() {
        std::fs::write(&path, &said).expect("the file can be written");
    }
    let checked_in = std::fs::read_to_string(&path).expect("it is checked in");
    let same = checked_in == said;
    assert!(
        same,
        "dashboard/openapi.json is not what the handlers say: AFTERCOMMIT_WRITE=1 ./tests/run what_is_checked_in writes it"
    );
}

fn described() -> Value {
    serde_json::from_str(&api::openapi()).expect("it is JSON")
}

async fn every_route_is_described_and_nothing_else(db: &TestDatabase) {
    let site = site(db).await;
    let routes: BTreeSet<String> = site
        .dashboard
        .table()
        .iter()
        .filter_map(|route| Some(format!("{} {}", route.method, route.path.strip_prefix("/api/v1")?)))
        .collect();
    let document = described();
    let paths = document["paths"].as_object().expect("paths");
    let operations = paths.iter().flat_map(|(path, item)| {
        let methods = item.as_object().expect("methods").keys();
        methods.map(move |method| format!("{} {path}", method.to_uppercase()))
    });
    assert_eq!(operations.collect::<BTreeSet<_>>(), routes);
    assert!(
        document["openapi"].as_str().is_some_and(|version| version.starts_with("3.1")),
        "{}",
        document["openapi"]
    );
    assert_eq!(get(&site, "openapi.json").await, document, "it is served");
    for (path, item) in paths {
        for (method, operation) in item.as_object().expect("methods") {
            let responses = operation["responses"].as_object().expect("responses");
            for (status, response) in responses.iter().filter(|(status, _)| status.as_str() >= "400") {
                let schema = &response["content"]["application/problem+json"]["schema"]["$ref"];
                assert_eq!(schema, "#/components/schemas/ProblemJson", "{method} {path} {status}");
            }
            let named = responses.contains_key("404");
            assert_eq!(
                named,
                path.contains('{') && !path.ends_with("/endpoints") || path == "/bulk" && method == "post",
                "{method} {path}"
            );
        }
    }
}

/// Judged by a validator that nobody here wrote, and one that can find something.
async fn the_description_is_valid(_: &TestDatabase) {
    let folder = tempfile::tempdir().expect("a folder");
    let (good, bad) = (folder.path().join("good.json"), folder.path().join("bad.json"));
    std::fs::write(&good, api::openapi()).expect("it is written");
    let mut broken = described();
    broken["paths"]["/effects"]["get"]["responses"] = Value::Null;
    std::fs::write(&bad, broken.to_string()).expect("it is written");
    for (file, valid) in [(good, true), (bad, false)] {
        let program = PathBuf::from(environment::python()).with_file_name("openapi-spec-validator");
        let (status, out, err) = run(Command::new(program).arg(file), Duration::from_secs(60)).await;
        assert_eq!(status.success(), valid, "{out}{err}");
        assert!(!valid || out.contains("OK"), "{out}{err}");
    }
}

const CHECKS: &str = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance,response_headers_conformance";

/// No 5xx, no status and no body that the description does not have; whatever is sent.
async fn fuzzed(db: &TestDatabase, tag: &str) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "f").await;
    in_doubt(db, &worker, "mail", "d").await;
    db.insert_many("pay", "r", 5).await;
    let site = Site::open(&db.store, aftercommit_dashboard::Settings::default()).await;
    let seed = Chance::seeded().seed() % 1_000_000;
    let folder = tempfile::tempdir().expect("a folder");
    let mut schemathesis = Command::new(PathBuf::from(environment::python()).with_file_name("schemathesis"));
    schemathesis
        .args(["run", &format!("http://{}/api/v1/openapi.json", site.address)])
        .args(["--url", &format!("http://{}/api/v1", site.address)])
        // As a person's own tool says it: not from somebody else's page.
        .args(["--header", "Sec-Fetch-Site: none"])
        // A stream that does not end is another test's.
        .args(["--exclude-path", "/events", "--include-tag", tag])
        .args(["--no-color", "--max-examples", "15", "--checks", CHECKS, "--seed", &seed.to_string()])
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(folder.path());
    let (status, out, err) = run(&mut schemathesis, Duration::from_secs(160)).await;
    let end: Vec<&str> = out.lines().rev().take(15).collect();
    println!("{}", end.into_iter().rev().collect::<Vec<_>>().join("\n"));
    assert!(status.success(), "{out}\n{err}");
}

async fn a_fuzzer_that_looks_finds_nothing_that_the_description_does_not_have(db: &TestDatabase) {
    fuzzed(db, "look").await;
}

async fn a_fuzzer_that_acts_finds_nothing_that_the_description_does_not_have(db: &TestDatabase) {
    fuzzed(db, "act").await;
}

async fn prometheus_own_tool_accepts_the_metrics(db: &TestDatabase) {
    let worker = worker(db).await;
    failed(db, &worker, "pay", "f").await;
    in_doubt(db, &worker, "mail", "d").await;
    let site = site(db).await;
    let metrics = site.ask("GET", "/metrics").bearer(&token(Role::Viewer)).send().await;
    assert_eq!(metrics.status, 200, "{metrics:?}");
    assert!(metrics.body.contains("aftercommit_effects_in_doubt{downstream=\"mail\"} 1"), "{}", metrics.body);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("metrics");
    std::fs::write(&file, &metrics.body).expect("it is written");
    let mut promtool = Command::new("sh");
    promtool.args(["-c", "promtool check metrics < \"$0\""]).arg(&file);
    let (status, out, err) = run(&mut promtool, Duration::from_secs(30)).await;
    assert!(status.success(), "promtool (of Debian's prometheus): {out}{err}\n{}", metrics.body);
}
