//! What a profile's file must hold before its values are relied on.

use crate::{
    config::Written,
    profiles::{Confidence, Contents, all},
};

/// A profile without fault, to be spoilt.
const WHOLE: &str = r#"
summary = "a vendor"
date = "2026-11-29"
[contract]
dedupe = "key"
max_key_len = 40
window = "24h"
in_progress = ["409"]
mismatch = ["422"]
stores = "success"
replay_header = "Replayed=true"
[[fact]]
about = ["dedupe", "max_key_len", "window", "in_progress", "mismatch", "stores", "replay_header"]
says = "all of it"
source = "docs.vendor.example"
date = "2026-11"
confidence = "medium"
"#;

fn problems(text: &str) -> Vec<String> {
    match Contents::read("a.toml", text) {
        Ok(contents) => contents.lacks(),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn every_value_of_every_shipped_profile_stands_on_a_dated_source_of_high_or_medium_confidence() {
    for profile in all() {
        let contents = profile.contents().unwrap_or_else(|problem| panic!("{}: {problem}", profile.name));
        assert_eq!(contents.lacks(), Vec::<String>::new(), "{}", profile.name);
        assert!(contents.confidence() >= Confidence::Medium, "{}", profile.name);
        for (key, value) in contents.set() {
            let sourced = contents.about(key).any(|fact| !fact.source.is_empty() && !fact.date.is_empty());
            assert!(sourced, "{}: {key} = {value}", profile.name);
        }
    }
}

#[test]
fn an_unpublished_window_is_left_out_and_the_user_is_told_what_follows() {
    for name in ["ietf", "square-payments", "gocardless", "increase"] {
        let contents = crate::profiles::get(name).unwrap().contents().unwrap();
        assert!(!contents.set().iter().any(|(key, _)| *key == "window"), "{name}");
        let told = contents.open.iter().find(|open| open.about.iter().any(|key| key == "window"));
        assert!(
            told.is_some_and(
                |open| open.decide.contains("promises nothing") && open.decide.contains("window")
            ),
            "{name}"
        );
    }
}

#[test]
fn a_value_without_a_source_or_with_one_of_low_confidence_is_refused_by_name() {
    assert_eq!(problems(WHOLE), Vec::<String>::new());
    for (spoilt, words) in [
        (WHOLE.replace("\"medium\"", "\"low\""), "contract.window stands on a fact of low confidence"),
        (WHOLE.replace("\"window\", ", ""), "contract.window stands on nothing"),
        (WHOLE.replace("window = \"24h\"\n", ""), "the contract has no window"),
        (
            WHOLE.replace("mismatch = [\"422\"]\n", "").replace("\"mismatch\", ", ""),
            "nothing says what it answers when the key comes with another request",
        ),
        (WHOLE.replace("\"dedupe\", ", "\"dedup\", \"dedupe\", "), "about = [\"dedup\"] names no key"),
        (WHOLE.replace("source = \"docs.vendor.example\"\n", ""), "fact[0].source: is missing"),
        (WHOLE.replace("date = \"2026-11\"\n", ""), "fact[0].date: is missing"),
        (WHOLE.replace("date = \"2026-11\"\n", "date = \"last year\"\n"), "fact[0].date: must be a date"),
        (WHOLE.replace("confidence = \"medium\"\n", ""), "fact[0].confidence: is missing"),
        (WHOLE.replace("\"medium\"", "\"sure\""), "fact[0].confidence: must be \"high\""),
        (WHOLE.replace("says = ", "say = "), "fact[0].say: unknown key; did you mean `says`?"),
        (WHOLE.replace("summary = \"a vendor\"\n", ""), "summary: is missing"),
        (WHOLE.replace("\"24h\"", "\"5m\""), "window (5m) must be longer"),
        (WHOLE.replace("[\"422\"]", "[\"409\"]"), "409 stands in both"),
        (
            WHOLE.replace("\"Replayed=true\"", "\"Replayed=true\"\nreplay_status = [\"422\"]"),
            "replay_status must not hold 422",
        ),
        (
            WHOLE.replace("max_key_len = 40", "max_key_len = 40\nmethods = [\"GET\"]"),
            "contract.methods: must be a list of",
        ),
    ] {
        let problems = problems(&spoilt);
        assert!(problems.iter().any(|problem| problem.contains(words)), "{words} in {problems:#?}");
    }
}

#[test]
fn every_key_of_a_contract_can_be_named_by_a_fact() {
    let everything = r#"
dedupe = "none"
on_unknown = "hold"
key_in = "path"
key_format = "raw"
key_charset = "uuid"
min_key_len = 1
max_key_len = 2
methods = ["POST"]
scope = ["account"]
window = "24h"
margin = "1s"
in_progress = ["409"]
mismatch = ["422"]
already_done = ["410"]
not_applied = ["420"]
rejected = ["400"]
frees_key = ["5xx"]
unknown = ["424"]
stored = ["402"]
code_at = ["/code"]
success = { pointer = "/ok", exists = true }
replay_header = "R"
replay_status = ["200"]
retry_directive = "D=true"
stores = "any"
"#;
    let table = crate::config::parse_toml("test", everything).unwrap();
    let log = crate::config::Log::default();
    let written = Written::read(&crate::config::Section::root(&table, &log)).unwrap();
    let shown: Vec<&str> = written.shown().into_iter().map(|(key, _)| key).collect();
    assert_eq!(shown, Written::KEYS);
    assert!(log.into_inner().is_ok());
}
