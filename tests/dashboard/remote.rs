//! The command line through a dashboard (`--server`): it prints the same, does the same, ends with the same codes, and says what to
//! set where it is not let in.

use std::time::Duration;

use aftercommit::{EffectId, decision::Decision, state::State};
use aftercommit_dashboard::Role;
use serde_json::Value;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    process::Command,
};

use super::{
    Reach,
    api::{failed, in_doubt, worker},
    reach::here_and_there,
    token,
};
use crate::{
    e2e::processes::{aftercommit, run},
    support::{Settling, TestDatabase, answer, on_every_database, on_sqlite},
};

here_and_there! {
    verbs_do_what_they_say_and_end_with_the_documented_codes,
    a_reissue_is_confirmed_and_named,
    effects_are_written_listed_and_watched,
    downstreams_are_paused_and_resumed,
}
on_every_database! {
    what_is_printed_is_the_same_through_a_dashboard,
}
on_sqlite! {
    whoever_is_not_let_in_is_told_what_to_set,
    what_needs_the_database_itself_is_refused_in_a_sentence,
    no_proxy_is_asked_and_no_redirect_followed,
}

const SOON: Duration = Duration::from_secs(60);

/// Its last request has arrived, or never will.
async fn quiet(db: &TestDatabase, id: EffectId) {
    db.shift_back("queue", "quiet_at", id, Duration::from_secs(3_600)).await;
}

async fn verbs_do_what_they_say_and_end_with_the_documented_codes(db: &TestDatabase, reach: &Reach) {
    let worker = worker(db).await;
    let refused = failed(db, &worker, "pay", "f").await;
    let (a, b) = (in_doubt(db, &worker, "mail", "a").await, in_doubt(db, &worker, "mail", "b").await);
    quiet(db, a).await;
    quiet(db, b).await;
    let c = db.insert("pay", "c").await;
    let id = |id: EffectId| id.to_string();
    let (refused_id, a_id, b_id, c_id) = (id(refused), id(a), id(b), id(c));
    for (words, code, says) in [
        (
            &["effects", "retry", &refused_id, "--reason", "again"][..],
            0,
            "back in the queue, with a new history",
        ),
        (&["effects", "retry", &refused_id], 4, "It is due already"),
        (&["effects", "retry", "999"], 3, "there is no effect 999"),
        (&["effects", "retry", &refused_id, "999"], 4, "0 of 2 done"),
        (
            &[
                "effects",
                "resolve",
                &a_id,
                "--as",
                "applied",
                "--reason",
                "seen",
                "--response",
                "{\"n\":9007199254740993}",
            ],
            0,
            "succeeded now",
        ),
        (
            &["effects", "resolve", &a_id, "--as", "applied", "--reason", "seen"],
            4,
            "Nothing about it is in doubt now",
        ),
        (&["effects", "resend", &b_id, "--yes"], 2, "resend needs a reason"),
        (&["effects", "resend", &b_id, "--reason", "two do no harm"], 2, "add --yes"),
        (&["effects", "resend", &b_id, "--reason", "two do no harm", "--yes"], 0, "sent once more"),
        (&["effects", "cancel", &c_id, "--reason", "withdrawn"], 0, "cancelled now"),
        (&["effects", "cancel", &c_id], 4, "It has ended"),
        (&["effects", "redact", &c_id, "--reason", "erasure request 7"], 0, "redacted"),
        (&["effects", "redact", &c_id, "--reason", " "], 2, "needs a reason"),
        (&["effects", "show", "999"], 3, "there is no effect 999"),
        (&["audit", "--effect", "999"], 3, "there is no effect 999"),
    ] {
        let (ended, said) = reach.ends(words).await;
        assert!(ended == Some(code) && said.contains(says), "{words:?}: {ended:?} {said}");
    }
    assert_eq!(db.state(b).await, State::Ready);
    let response = db.status(a).await.response.expect("it was given");
    assert_eq!(response.get(), "{\"n\":9007199254740993}");
    let verbs = db.sql.number("SELECT count(*) FROM aftercommit.audit").await;
    assert_eq!(verbs, 5, "a row for each that was done");
    let json = reach.out(&["effects", "retry", &id(failed(db, &worker, "pay", "g").await), "--json"]).await;
    let told: Value = serde_json::from_str(&json).expect("one object");
    assert_eq!(told["state"], "ready", "{told}");
}

async fn a_reissue_is_confirmed_and_named(db: &TestDatabase, reach: &Reach) {
    let worker = worker(db).await;
    let old = failed(db, &worker, "pay", "order-17").await;
    let id = old.to_string();
    let words = ["effects", "reissue", &id, "--reason", "the bank forgot it"];
    let (code, said) = reach.ends(&words).await;
    assert!(code == Some(2) && said.contains("add --yes"), "{said}");
    let said = reach.out(&[&words[..], &["--yes"]].concat()).await;
    let by = db.status(old).await.superseded_by.expect("a new one");
    assert!(said.contains(&format!("superseded by effect {by}")), "{said}");
    assert_eq!(db.state(by).await, State::Ready);
    let (code, said) = reach.ends(&[&words[..], &["--yes"]].concat()).await;
    assert!(code == Some(4) && said.contains("superseded"), "{said}");
    let doubtful = in_doubt(db, &worker, "mail", "m").await;
    quiet(db, doubtful).await;
    let id = doubtful.to_string();
    let words = ["effects", "reissue", &id, "--reason", "not there", "--yes"];
    let (code, said) = reach.ends(&words).await;
    assert!(code == Some(4) && said.contains("Say with it whether it was applied"), "{said}");
    reach.out(&[&words[..], &["--as", "not-applied"]].concat()).await;
    assert_eq!(db.state(doubtful).await, State::Failed);
    failed(db, &worker, "pay", "again").await;
    let all = [
        "effects",
        "reissue",
        "--all",
        "--state",
        "failed",
        "--downstream",
        "pay",
        "--reason",
        "all of them",
        "--json",
    ];
    let (code, said) = reach.ends(&[&all[..], &["--confirm", "7"]].concat()).await;
    assert!(code == Some(1) && said.contains("there are 1 now"), "the other one is left alone: {said}");
    let (code, said) = reach.ends(&[&all[..], &["--confirm", "1"]].concat()).await;
    assert!(code == Some(5) && said.contains("\"done\":1"), "one was reissued before: {said}");
}

async fn effects_are_written_listed_and_watched(db: &TestDatabase, reach: &Reach) {
    worker(db).await;
    let payload = r#"{"amount":1234567890123456789012345}"#;
    let words = [
        "enqueue",
        "pay",
        "--key",
        "order-17",
        "--payload",
        payload,
        "--metadata",
        r#"{"order":"A-17"}"#,
        "--json",
    ];
    let written: Value = serde_json::from_str(&reach.out(&words).await).expect("one object");
    assert_eq!((&written["inserted"], &written["state"]), (&true.into(), &"ready".into()), "{written}");
    let (code, said) = reach.ends(&words).await;
    assert!(
        code == Some(0) && said.contains("exists already") && said.contains("\"inserted\":false"),
        "{said}"
    );
    let (code, said) = reach.ends(&["enqueue", "pay", "--key", "order-17", "--payload", "{}"]).await;
    assert!(code == Some(4) && said.contains("another request"), "{said}");
    let (code, said) = reach.ends(&["enqueue", "pay", "--key", " x"]).await;
    assert!(code == Some(2) && said.contains("idempotency_key"), "{said}");
    let id = written["id"].as_i64().expect("a number").to_string();
    let shown = reach.out(&["effects", "show", &id, "--payload"]).await;
    assert!(shown.contains(payload), "{shown}");
    db.insert_many("pay", "more", 3).await;
    for (words, n) in [
        (&["--metadata", "order=A-17"][..], 1),
        (&["--metadata", r#"{"order":"A-18"}"#], 0),
        (&["--state", "ready,failed"], 4),
        (&["--state", "failed"], 0),
        (&["--operation", "charge"], 0),
        (&["--error", "declined"], 0),
        (&["--older-than", "1h"], 0),
        (&["--newer-than", "1h", "--limit", "2"], 2),
        (&["--key", "more-1"], 1),
    ] {
        let out = reach.out(&[&["effects", "list", "--json"][..], words].concat()).await;
        assert_eq!(out.lines().count(), n, "{words:?}: {out}");
    }
    let (code, said) = reach.ends(&["effects", "list", "--downstream", "payy"]).await;
    assert!(code == Some(3) && said.contains("did you mean pay"), "{said}");
    let watched = reach.out(&["effects", "watch", "--for", "100ms", "--json"]).await;
    assert_eq!(watched.lines().count(), 4, "{watched}");
}

async fn downstreams_are_paused_and_resumed(db: &TestDatabase, reach: &Reach) {
    worker(db).await;
    for (words, code, says) in [
        (&["downstreams", "pause", "pay", "--reason", "they asked"][..], 0, "pay is paused"),
        (&["downstreams", "pause", "pay", "--reason", "again"], 4, "pay is paused already, by "),
        (&["downstreams", "pause", "nobody", "--reason", "x"], 3, "nobody"),
        (&["downstreams", "resume", "pay"], 0, "pay is resumed"),
        (&["downstreams", "resume", "pay"], 4, "pay is not paused"),
        (&["downstreams", "list"], 0, "deduplicates by key"),
        (&["workers"], 0, "w1"),
        (&["audit", "--downstream", "pay"], 0, "they asked"),
        (&["endpoints", "list", "pay"], 0, "has no endpoints"),
        (&["endpoints", "disable", "pay", "acme", "--reason", "x"], 3, "has no endpoint acme"),
    ] {
        let (ended, said) = reach.ends(words).await;
        assert!(ended == Some(code) && said.contains(says), "{words:?}: {ended:?} {said}");
    }
}

async fn what_is_printed_is_the_same_through_a_dashboard(db: &TestDatabase) {
    let worker = worker(db).await;
    let columns = [
        ("payload", "'{ \"n\":9007199254740993 }'"),
        ("metadata", "'{\"order\":\"A-17\"}'"),
        ("headers", "'{\"X-A\":\"1\"}'"),
    ];
    let done = db.insert_with("pay", "done", &columns).await;
    let claim = worker.claim_one("pay").await;
    let answered = answer(200, r#"{"id":"ch_1","n":1234567890123456789012345}"#);
    worker.settle(Settling::of(&claim).decided(Decision::Succeed, &answered)).await;
    let doubtful = in_doubt(db, &worker, "mail", "d").await;
    failed(db, &worker, "pay", "f").await;
    db.insert_with(
        "pay",
        "body",
        &[
            ("body", if db.engine == crate::support::Engine::Postgres { "'\\x6869'" } else { "X'6869'" }),
            ("content_type", "'text/plain'"),
        ],
    )
    .await;
    let request = crate::support::request("tenant-7", "k9", "body");
    let mut tx = db.sql.begin().await;
    tx.begin_request(&request).await.expect("it begins");
    tx.finish_request(&request, &crate::support::answered(201, "ok")).await.expect("it is finished");
    tx.commit().await;
    let (here, there) = (Reach::here(db).await, Reach::there(db).await);
    here.out(&["downstreams", "pause", "mail", "--reason", "quiet"]).await;
    let (done, doubtful) = (done.to_string(), doubtful.to_string());
    for words in [
        &["effects", "list", "--json"][..],
        &["effects", "list", "--state", "failed", "--json"],
        &["effects", "show", &done, "--json"],
        &["effects", "show", &done, "--payload", "--json"],
        &["effects", "show", &doubtful, "--json"],
        &["downstreams", "list", "--json"],
        &["requests", "--json"],
        &["audit", "--json"],
        &["effects", "retry", "--all", "--state", "failed", "--dry-run", "--json"],
    ] {
        let lines = |out: String| -> Vec<Value> {
            let read = |line: &str| {
                let mut line: Value = serde_json::from_str(line).expect("an object per line");
                // The commands that it names lead to where it was asked; a database keeps its clock going.
                line.as_object_mut().expect("an object").remove("what_follows");
                line
            };
            out.lines().map(read).collect()
        };
        assert_eq!(lines(here.out(words).await), lines(there.out(words).await), "{words:?}");
    }
    // Parsed, numbers with many digits look alike: what is printed is compared as it stands, too.
    for words in [&["effects", "show", &done, "--json"][..], &["effects", "list", "--json"]] {
        for out in [here.out(words).await, there.out(words).await] {
            assert!(out.contains(r#""response":{"id":"ch_1","n":1234567890123456789012345}"#), "{out}");
        }
    }
    for reach in [&here, &there] {
        let out = reach.out(&["effects", "show", &done, "--payload", "--json"]).await;
        assert!(out.contains(r#""payload":"{ \"n\":9007199254740993 }""#), "{out}");
    }
    for words in [&["effects", "show", &done, "--payload"][..], &["effects", "show", &done]] {
        let text = |out: String| {
            // How long ago it was depends on when it is asked.
            let moves = |line: &&str| line.contains(" ago)") || line.contains("(now)");
            out.lines().filter(|line| !moves(line)).map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(text(here.out(words).await), text(there.out(words).await), "{words:?}");
    }
    let follows = there.out(&["effects", "show", &doubtful]).await;
    assert!(!follows.contains("postgres://") && follows.contains("effects resolve"), "{follows}");
}

async fn whoever_is_not_let_in_is_told_what_to_set(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await.to_string();
    let Reach::There(site) = Reach::there(db).await else { unreachable!("it is a dashboard") };
    let server = format!("http://{}", site.address);
    let folder = tempfile::tempdir().expect("a folder");
    let file = folder.path().join("token");
    std::fs::write(&file, format!("{}\n", token(Role::Operator))).expect("it is written");
    let run_with = async |words: &[&str], token: Option<&str>| {
        let mut command = aftercommit();
        command
            .args(["--server", &server])
            .args(words)
            .current_dir(folder.path())
            .env_remove("AFTERCOMMIT_TOKEN");
        command.envs(token.map(|token| ("AFTERCOMMIT_TOKEN", token)));
        let (status, out, err) = run(&mut command, SOON).await;
        (status.code(), out + &err)
    };
    let (code, said) = run_with(&["effects", "list"], None).await;
    assert!(code == Some(1) && said.contains("AFTERCOMMIT_TOKEN") && said.contains("--token-file"), "{said}");
    let (code, said) = run_with(&["effects", "list"], Some("wrong-token-that-is-long")).await;
    assert!(code == Some(1) && said.contains("AFTERCOMMIT_TOKEN") && !said.contains("wrong-token"), "{said}");
    let viewer = token(Role::Viewer);
    assert_eq!(run_with(&["effects", "list"], Some(&viewer)).await.0, Some(0));
    let (code, said) = run_with(&["effects", "retry", &id], Some(&viewer)).await;
    assert!(code == Some(1) && said.contains("role"), "{said}");
    let (code, said) = run_with(&["effects", "show", &id, "--payload"], Some(&viewer)).await;
    assert!(code == Some(1) && said.contains("may not read what effects carry"), "{said}");
    let file = file.to_str().expect("plain");
    let (code, said) = run_with(&["--token-file", file, "effects", "retry", &id, "--json"], None).await;
    assert!(code == Some(0) && !said.contains("a-long-token"), "{said}");
    let (code, said) = run_with(&["--token-file", "nowhere", "effects", "list"], None).await;
    assert!(code == Some(2) && said.contains("nowhere"), "{said}");
    let gone =
        TcpListener::bind("127.0.0.1:0").await.expect("a free port").local_addr().expect("it is bound");
    let mut command = aftercommit();
    let (status, _, err) =
        run(command.args(["--server", &format!("http://{gone}"), "effects", "list"]), SOON).await;
    assert!(
        status.code() == Some(69) && err.contains("did not answer") && err.contains(&gone.to_string()),
        "{err}"
    );
    let mut command = aftercommit();
    let (status, _, err) =
        run(command.args(["--server", &format!("{server}/elsewhere"), "effects", "list"]), SOON).await;
    assert!(status.code() != Some(0) && !err.is_empty(), "{err}");
}

async fn what_needs_the_database_itself_is_refused_in_a_sentence(db: &TestDatabase) {
    let reach = Reach::there(db).await;
    for words in [
        &["migrate"][..],
        &["doctor"],
        &["work", "--once"],
        &["purge", "--dry-run"],
        &["hold", "show"],
        &["demo"],
        &["dev"],
        &["dashboard"],
        &["bench", "drain"],
        &["downstreams", "test", "pay"],
        &["endpoints", "test", "pay", "acme"],
    ] {
        let (code, said) = reach.ends(words).await;
        assert!(code == Some(2) && said.contains("unset AFTERCOMMIT_SERVER"), "{words:?}: {code:?} {said}");
    }
    // Whoever names a database means that.
    let (code, said) = reach.ends(&["--database", &db.url, "doctor", "--json"]).await;
    assert!(code != Some(2) && said.contains("\"check\""), "{said}");
    let (code, said) =
        reach.ends(&["--database", &db.url, "--server", "http://localhost", "effects", "list"]).await;
    assert!(code == Some(2) && said.contains("cannot be used with"), "{said}");
    for words in [&["profiles", "list"][..], &["completions", "bash"]] {
        assert_eq!(reach.ends(words).await.0, Some(0), "{words:?} asks nobody");
    }
}

async fn no_proxy_is_asked_and_no_redirect_followed(db: &TestDatabase) {
    worker(db).await;
    let reach = Reach::there(db).await;
    let mut command: Command = reach.command(&["downstreams", "list", "--json"]);
    for variable in ["http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY", "https_proxy"] {
        command.env(variable, "http://127.0.0.1:1");
    }
    let (status, out, err) = run(&mut command, SOON).await;
    assert!(status.success() && out.contains("\"pay\""), "{err}");
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let Reach::There(site) = &reach else { unreachable!("it is a dashboard") };
    let elsewhere = format!("http://{}/api/v1/about", site.address);
    let answering = tokio::task::JoinSet::from_iter([async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            _ = stream.read(&mut head).await;
            let answer = format!(
                "HTTP/1.1 307 Temporary Redirect\r\nLocation: {elsewhere}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
            stream.write_all(answer.as_bytes()).await.ok();
        }
    }]);
    let mut command = aftercommit();
    command
        .args(["--server", &format!("http://{address}"), "workers"])
        .env("AFTERCOMMIT_TOKEN", token(Role::Operator));
    let (status, _, err) = run(&mut command, SOON).await;
    assert!(status.code() == Some(2) && err.contains("is not followed"), "{err}");
    drop(answering);
}
