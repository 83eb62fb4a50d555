//! The command line follows a bulk of a dashboard: it begins what was confirmed or nothing, says what is left out and what others do to
//! it, and a stop is said until it is heard.

use std::{net::SocketAddr, time::Duration};

use aftercommit::state::State;
use aftercommit_dashboard::{BulkLimits, Role, Settings};
use rustix::process::Signal;
use serde_json::{Value, json};
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    process::Command,
};

use super::{
    Reach, Site,
    api::{failed, get, post, worker},
    bulk::failed as many,
    everybody, token,
};
use crate::{
    e2e::processes::{Process, aftercommit, run},
    support::{TestDatabase, eventually, on_every_database},
};

on_every_database! {
    what_was_confirmed_is_done_or_nothing,
    what_is_left_out_is_told_and_is_not_all,
    a_stop_is_said_until_the_dashboard_takes_it,
    what_others_do_to_a_bulk_is_told_to_whoever_follows_it,
}

const SOON: Duration = Duration::from_secs(60);

/// Stands between the command line and a dashboard, and hands on the requests that `passes`; the others are not answered.
async fn between(listener: &TcpListener, site: SocketAddr, mut passes: impl AsyncFnMut(&str) -> bool) {
    let here = listener.local_addr().expect("it is bound");
    loop {
        let (mut near, _) = listener.accept().await.expect("somebody asks");
        let mut read = Vec::new();
        while !is_whole(&read) && near.read_buf(&mut read).await.unwrap_or(0) > 0 {}
        let request = String::from_utf8(read).expect("text");
        if !is_whole(request.as_bytes()) || !passes(&request).await {
            continue;
        }
        // One request a connection, and by the dashboard's own name.
        let request = request.replacen("\r\n", "\r\nconnection: close\r\n", 1);
        let request = request.replace(&here.to_string(), &site.to_string());
        let mut far = TcpStream::connect(site).await.expect("the dashboard listens");
        far.write_all(request.as_bytes()).await.expect("it reads");
        let mut answer = Vec::new();
        far.read_to_end(&mut answer).await.expect("it answers");
        near.write_all(&answer).await.ok();
    }
}

fn is_whole(request: &[u8]) -> bool {
    let text = String::from_utf8_lossy(request);
    let Some((head, body)) = text.split_once("\r\n\r\n") else { return false };
    let length = head.lines().find_map(|line| {
        let (name, value) = line.split_once(':')?;
        name.eq_ignore_ascii_case("content-length").then(|| value.trim().parse::<usize>().ok())?
    });
    body.len() >= length.unwrap_or(0)
}

async fn site(db: &TestDatabase, bulk: BulkLimits) -> Site {
    Site::open(&db.store, Settings { access: everybody(), bulk, ..Settings::default() }).await
}

fn command(server: SocketAddr, words: &str) -> Command {
    let mut command = aftercommit();
    command
        .args(words.split_whitespace())
        .env("AFTERCOMMIT_SERVER", format!("http://{server}"))
        .env("AFTERCOMMIT_TOKEN", token(Role::Operator))
        .current_dir(std::env::temp_dir());
    command
}

async fn count(db: &TestDatabase, state: State) -> u64 {
    let counts = db.store.counts().await.expect("counting works");
    counts.iter().filter(|count| count.state == state).map(|count| count.effects).sum()
}

/// One JSON object among what was printed.
fn told(output: &str) -> Value {
    let line =
        output.lines().find(|line| line.starts_with('{')).unwrap_or_else(|| panic!("no counts: {output}"));
    serde_json::from_str(line).expect("one object")
}

/// Between the question and the answer one is retried by somebody else, and another one fails: as many, and others.
async fn what_was_confirmed_is_done_or_nothing(db: &TestDatabase) {
    let worker = worker(db).await;
    let first = failed(db, &worker, "pay", "a").await;
    let second = failed(db, &worker, "pay", "b").await;
    let site = site(db, BulkLimits::default()).await;
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let mut begun = 0;
    let passing = between(&listener, site.address, async |request: &str| {
        if request.starts_with("POST") && request.contains("\"dry_run\":false") {
            begun += 1;
            if begun == 1 {
                let token = db.status(first).await.token;
                let wish = json!({ "state": "failed", "token": token });
                assert_eq!(post(&site, &format!("effects/{first}/retry"), &wish).await.status, 200);
                failed(db, &worker, "pay", "c").await;
            }
        }
        true
    });
    let running = async {
        let words = "effects retry --all --state failed --yes --json";
        let (status, out, err) = run(&mut command(address, words), SOON).await;
        assert_eq!(status.code(), Some(4), "{out}{err}");
        assert!(err.contains("is not what you looked at any more"), "{err}");
        assert_eq!(
            (db.state(second).await, count(db, State::Failed).await),
            (State::Failed, 2),
            "nothing was done"
        );
        let (status, out, err) = run(&mut command(address, words), SOON).await;
        assert!(status.success() && told(&out)["done"] == 2, "{out}{err}");
    };
    tokio::select! {
        () = passing => unreachable!("it goes on"),
        () = running => {}
    }
}

async fn what_is_left_out_is_told_and_is_not_all(db: &TestDatabase) {
    let worker = worker(db).await;
    for key in ["a", "b", "c", "d", "e"] {
        failed(db, &worker, "pay", key).await;
    }
    let here = Reach::here(db).await;
    let there = Reach::There(site(db, BulkLimits { max: 3, ..BulkLimits::default() }).await);
    let retry = ["effects", "retry", "--all", "--state", "failed"];
    let with = |more: &[&'static str]| [&retry[..], more].concat();
    for (reach, more, n, left_out) in [
        (&here, &[][..], 5, 0),
        (&there, &[], 3, 2),
        (&here, &["--limit", "1"], 1, 4),
        (&there, &["--limit", "1"], 1, 4),
    ] {
        let dry = reach.out(&with(&[more, &["--dry-run", "--json"]].concat())).await;
        let dry = told(&dry);
        assert_eq!((&dry["effects"], &dry["left_out"]), (&n.into(), &left_out.into()), "{more:?}: {dry}");
        let words = reach.out(&with(&[more, &["--dry-run"]].concat())).await;
        assert_eq!(words.contains("more match and are left out"), left_out > 0, "{more:?}: {words}");
    }
    // Whoever asks for one gets one; whoever asks for all and gets three is told.
    let (code, said) = there.ends(&with(&["--limit", "1", "--yes", "--json"])).await;
    assert!(code == Some(0) && told(&said)["left_out"] == 4, "{code:?} {said}");
    let (code, said) = there.ends(&with(&["--yes", "--json"])).await;
    assert!(code == Some(5) && told(&said)["left_out"] == 1 && told(&said)["done"] == 3, "{code:?} {said}");
    assert!(said.contains("1 more match and are left out"), "before it was begun: {said}");
    assert_eq!(there.ends(&with(&["--yes"])).await.0, Some(0), "the last one is all");
}

/// Follows a bulk of many, two hundred seconds long, through `passes`; what `meanwhile` does to it, then its exit code and output.
async fn followed(
    site: &Site,
    passes: impl AsyncFnMut(&str) -> bool,
    meanwhile: impl AsyncFnOnce(&Process),
) -> (Option<i32>, String) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let folder = tempfile::tempdir().expect("a folder");
    let mut command = command(address, "effects retry --all --state failed --yes --json");
    let mut bulk = Process::spawn("bulk", &mut command, &folder.path().join("bulk.log"));
    let following = async {
        meanwhile(&bulk).await;
    };
    tokio::select! {
        () = between(&listener, site.address, passes) => unreachable!("it goes on"),
        () = following => {}
    }
    // Whatever was to be lost is lost by now.
    let status = tokio::select! {
        () = between(&listener, site.address, async |_: &str| true) => unreachable!("it goes on"),
        status = bulk.ended(SOON) => status,
    };
    (status.code(), bulk.output())
}

async fn a_stop_is_said_until_the_dashboard_takes_it(db: &TestDatabase) {
    many(db, 1_000).await;
    let site = site(db, BulkLimits { rate: 5, ..BulkLimits::default() }).await;
    let mut lost = 0;
    let passes = async |request: &str| {
        let cancels = request.starts_with("POST") && request.contains("/cancel");
        lost += u32::from(cancels);
        !(cancels && lost <= 2)
    };
    let (code, output) = followed(&site, passes, async |bulk: &Process| {
        eventually(SOON, "it is begun", async || (count(db, State::Ready).await > 0).then_some(())).await;
        bulk.signal(Signal::INT);
        eventually(SOON, "it is called off", async || {
            (get(&site, "bulk/1").await["state"] == "cancelled").then_some(())
        })
        .await;
    })
    .await;
    assert_eq!(code, Some(5), "{output}");
    assert!(output.contains("did not take the word to stop"), "{output}");
    assert!(told(&output)["interrupted"] == true && count(db, State::Failed).await > 500, "{output}");
}

async fn what_others_do_to_a_bulk_is_told_to_whoever_follows_it(db: &TestDatabase) {
    many(db, 1_000).await;
    let site = site(db, BulkLimits { rate: 5, ..BulkLimits::default() }).await;
    let (code, output) = followed(
        &site,
        async |_: &str| true,
        async |bulk: &Process| {
            eventually(SOON, "it is begun", async || (count(db, State::Ready).await > 0).then_some(())).await;
            for (verb, says) in
                [("pause", "Bulk 1 was paused at the dashboard"), ("resume", "Bulk 1 goes on")]
            {
                assert_eq!(post(&site, &format!("bulk/1/{verb}"), &json!({})).await.status, 200);
                eventually(SOON, says, async || bulk.output().contains(says).then_some(())).await;
            }
            assert_eq!(post(&site, "bulk/1/cancel", &json!({})).await.status, 200);
        },
    )
    .await;
    assert_eq!(code, Some(5), "{output}");
    let told = told(&output);
    assert!(told["interrupted"] == false && told["not_begun"].as_u64() > Some(0), "{output}");
}
