//! DASH-12: wherever the browser, the server and the database are, a time says its zone, and a range of times is exact to the second.

use std::{sync::Arc, time::Duration};

use aftercommit::{EffectId, clock::Timestamp, store::Database};
use aftercommit_dashboard::{Role, Settings};
use serde_json::Value;

use super::{
    super::{
        Site,
        api::{get, worker},
        everybody, forms, token,
    },
    SOON,
};
use crate::{
    e2e::processes::{aftercommit, run_ok},
    support::{Engine, TestDatabase, on_every_database},
};

on_every_database! {
    a_range_of_times_is_exact_to_the_second_in_every_notation,
    every_time_that_is_told_says_its_zone,
    the_zone_of_whoever_runs_a_command_changes_nothing,
}

/// The end of the summer in Berlin: 02:30 came twice that night, at 00:30 and at 01:30 UTC.
pub(crate) const FOLD: &str = "2025-10-26T01:00:00Z";
/// The same two years later, for what is still to be done.
const NEXT_FOLD: [&str; 2] = ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"];

pub(crate) fn at(text: &str) -> Timestamp {
    Timestamp::parse(text).expect("a time")
}

/// A dashboard whose database lives in Tokyo.
pub(crate) async fn in_tokyo(db: &TestDatabase, settings: Settings) -> Site {
    if db.engine == Engine::Postgres {
        let zone = "DO $$ BEGIN EXECUTE format('ALTER DATABASE %I SET timezone TO ''Asia/Tokyo''', current_database()); END $$";
        db.sql.execute(zone).await;
    }
    let store: Arc<dyn Database> = db.another_store().await;
    if db.engine == Engine::Postgres {
        // Our own client says UTC at every start, so that the database is asked what it would say to others.
        let told = "SELECT count(*) FROM pg_db_role_setting AS s JOIN pg_database AS d ON d.oid = s.setdatabase
            WHERE d.datname = current_database() AND array_to_string(s.setconfig, ',') ILIKE '%timezone=Asia/Tokyo%'";
        assert_eq!(db.sql.number(told).await, 1);
    }
    Site::open(&store, settings).await
}

/// A time as the database writes it.
fn stored(db: &TestDatabase, at: Timestamp) -> String {
    match db.engine {
        Engine::Postgres => {
            format!("(timestamptz '1970-01-01 00:00:00+00' + {} * interval '1 microsecond')", at.micros())
        }
        Engine::Sqlite => at.micros().to_string(),
    }
}

/// Effects that were written around the second at which the clocks were set back, oldest first; and two that are due in the hour that
/// comes twice.
pub(crate) async fn around_the_fold(db: &TestDatabase) -> (Vec<EffectId>, Vec<EffectId>) {
    let (fold, second) = (at(FOLD), Duration::from_secs(1));
    let micro = Duration::from_micros(1);
    let mut written = Vec::new();
    for (n, at) in [
        fold.minus(Duration::from_secs(1_800)),
        fold.minus(micro),
        fold,
        fold.plus(second).minus(micro),
        fold.plus(second),
        fold.plus(Duration::from_secs(1_800)),
    ]
    .into_iter()
    .enumerate()
    {
        let id = db.insert("pay", &format!("written-{n}")).await;
        let sql = format!("UPDATE aftercommit.effects SET created_at = {} WHERE id = {id}", stored(db, at));
        assert_eq!(db.sql.execute(&sql).await, 1);
        written.push(id);
    }
    let mut due = Vec::new();
    for (n, text) in NEXT_FOLD.iter().enumerate() {
        due.push(db.insert_with("pay", &format!("due-{n}"), &[("due_at", &stored(db, at(text)))]).await);
    }
    (written, due)
}

fn ids(page: &Value) -> Vec<i64> {
    let effects = page["effects"].as_array().unwrap_or_else(|| panic!("no list: {page}"));
    effects.iter().map(|effect| effect["id"].as_i64().expect("a number")).collect()
}

async fn a_range_of_times_is_exact_to_the_second_in_every_notation(db: &TestDatabase) {
    worker(db).await;
    let (written, due) = around_the_fold(db).await;
    let site = in_tokyo(db, Settings { access: everybody(), ..Settings::default() }).await;
    let wanted =
        |range: std::ops::Range<usize>| written[range].iter().rev().map(|id| id.get()).collect::<Vec<_>>();
    // One second, as people in four places write it: the one that begins when the clocks were set back.
    for (from, to) in [
        ("2025-10-26T01:00:00Z", "2025-10-26T01:00:01Z"),
        ("2025-10-26T06:30:00%2B05:30", "2025-10-26T06:30:01%2B05:30"),
        ("2025-10-26T10:00:00%2B09:00", "2025-10-26T10:00:01%2B09:00"),
        ("2025-10-26T02:00:00%2B01:00", "2025-10-26T03:00:01%2B02:00"),
        ("2025-10-25T22:30:00-02:30", "2025-10-25T22:30:01-02:30"),
    ] {
        let page = get(&site, &format!("effects?created_after={from}&created_before={to}")).await;
        assert_eq!((ids(&page), &page["next"]), (wanted(2..4), &Value::Null), "{from} to {to}");
        let list = forms::page(&site, &format!("effects?q=created:%3E{from}+created:%3C{to}")).await;
        for (n, id) in written.iter().enumerate() {
            let is_there = list.body.contains(&format!("href=\"./effects/{id}\""));
            assert_eq!(is_there, (2..4).contains(&n), "{n} of {from} to {to}");
        }
    }
    // The hour that came twice is two hours.
    for (from, to, range) in [
        ("2025-10-26T02:30:00%2B02:00", "2025-10-26T02:30:00%2B01:00", 0..5),
        ("2025-10-26T02:30:00%2B01:00", "2025-10-26T02:30:01%2B01:00", 5..6),
        ("2025-10-26T02:30:00%2B02:00", "2025-10-26T02:30:01%2B02:00", 0..1),
    ] {
        let page = get(&site, &format!("effects?created_after={from}&created_before={to}")).await;
        assert_eq!(ids(&page), wanted(range), "{from} to {to}");
    }
    for (id, text) in due.iter().zip(NEXT_FOLD) {
        let effect = get(&site, &format!("effects/{id}")).await;
        let due = effect["due_at"].as_str().and_then(Timestamp::parse);
        assert_eq!(due, Some(at(text)), "{effect}");
    }
}

/// Times without a zone in a text: hours and minutes that neither `Z`, `UTC` nor an offset follows.
fn without_zone(text: &str) -> Vec<String> {
    let bytes = text.as_bytes();
    let digit = |at: usize| bytes.get(at).is_some_and(u8::is_ascii_digit);
    let mut found = Vec::new();
    for (at, _) in text.match_indices(':') {
        let Some(start) = at.checked_sub(2) else { continue };
        let is_time = digit(start) && digit(at - 1) && digit(at + 1) && digit(at + 2) && !digit(at + 3);
        let apart =
            start == 0 || !(digit(start - 1) || matches!(bytes[start - 1], b'.' | b':' | b'+' | b'-'));
        // The day before, in `2026-01-31T12:00`, is no digit; and what is an offset is no time.
        if !is_time || !apart {
            continue;
        }
        let rest = text[at + 3..].trim_start_matches(|c: char| c.is_ascii_digit() || c == ':' || c == '.');
        let zoned = ["Z", " UTC", "+", "-", " +", " -"].iter().any(|zone| rest.starts_with(zone));
        if !zoned {
            let from = text[..start].char_indices().rev().nth(30).map_or(0, |(from, _)| from);
            found.push(text[from..].chars().take(60).collect());
        }
    }
    found
}

#[test]
fn a_time_without_a_zone_is_noticed() {
    for fine in [
        "2026-01-31T12:00:00Z",
        "2026-01-31 12:00:00 UTC",
        "12:00 UTC",
        "2026-01-31T12:00:00.5+05:30",
        "2026-01-31 12:00:00 +05:30",
        "http://127.0.0.1:4711/",
        "1:2",
    ] {
        assert!(without_zone(fine).is_empty(), "{fine}");
    }
    for bare in ["at 12:00", "2026-01-31 12:00:00", "12:00:00, and so on", "2026-01-31T12:00:00"] {
        assert_eq!(without_zone(bare).len(), 1, "{bare}");
    }
}

async fn every_time_that_is_told_says_its_zone(db: &TestDatabase) {
    let worker = worker(db).await;
    let (_written, due) = around_the_fold(db).await;
    super::super::api::in_doubt(db, &worker, "mail", "m").await;
    let site = in_tokyo(db, Settings { access: everybody(), ..Settings::default() }).await;
    let pause = serde_json::json!({ "reason": "the relay is being moved" });
    super::super::api::post(&site, "downstreams/mail/pause", &pause).await;
    let mut looked = 0;
    let table = site.dashboard.table().iter();
    for route in table.filter(|route| route.method == "GET" && !route.path.ends_with("/events")) {
        // What is ours and no page: a script, a sheet, a description with examples.
        if route.path.contains("{file}") || route.path.ends_with("openapi.json") {
            continue;
        }
        let path = route
            .path
            .replace("{id}", &due[0].to_string())
            .replace("{name}", "pay")
            .replace("{verb}", "cancel");
        let query = if path.ends_with("/traffic") { "?since=2025-01-01T00:00:00Z&per=hour" } else { "" };
        let answer =
            site.ask("GET", &format!("{path}{query}")).bearer(&token(Role::Admin)).shown().send().await;
        let bare = without_zone(&answer.body);
        assert!(bare.is_empty(), "{path}: {bare:?}");
        looked += answer.body.matches("UTC").count() + answer.body.matches("Z\"").count();
    }
    assert!(looked > 100, "{looked} times were told");
}

/// The command line prints what the database says, wherever somebody runs it.
async fn the_zone_of_whoever_runs_a_command_changes_nothing(db: &TestDatabase) {
    worker(db).await;
    let (written, due) = around_the_fold(db).await;
    in_tokyo(db, Settings::default()).await;
    for id in [written[2], due[0], due[1]] {
        let id = id.to_string();
        for words in [&["effects", "show", &id][..], &["effects", "show", &id, "--json"]] {
            let mut said = Vec::new();
            for zone in ["UTC", "Asia/Kolkata", "Europe/Berlin"] {
                let mut command = aftercommit();
                command
                    .args(words)
                    .env("DATABASE_URL", &db.url)
                    .env("TZ", zone)
                    .current_dir(std::env::temp_dir());
                said.push(run_ok(&mut command, SOON).await);
            }
            assert_eq!(exact(&said[0]), exact(&said[1]), "{words:?}");
            assert_eq!(exact(&said[0]), exact(&said[2]), "{words:?}");
            assert!(without_zone(&said[0]).is_empty(), "{words:?}: {:?}", without_zone(&said[0]));
        }
    }
}

/// Without how far away times are: that goes on meanwhile.
fn exact(text: &str) -> Vec<&str> {
    text.lines().map(without_distance).collect()
}

/// A line up to the distance that stands in brackets at its end.
fn without_distance(line: &str) -> &str {
    line.split_once(" (").map_or(line, |(exact, _)| exact)
}
