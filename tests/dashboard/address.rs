//! `--server` with an address where no dashboard answers: a mistake of whoever gave it, which says nothing about any effect.

use std::{net::SocketAddr, time::Duration};

use aftercommit_dashboard::Role;
use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::TcpListener,
    task::JoinSet,
};

use super::{
    Reach,
    api::{failed, worker},
    token,
};
use crate::{
    e2e::processes::{aftercommit, run},
    support::{TestDatabase, on_sqlite},
};

on_sqlite! {
    no_dashboard_at_an_address_is_no_missing_effect,
    what_stands_before_a_dashboard_is_told_as_that,
}

const SOON: Duration = Duration::from_secs(60);

/// Somebody who answers every request with this, until they are dropped.
async fn somebody(status: &str, kind: &str, body: &str) -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let address = listener.local_addr().expect("it is bound");
    let answer = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    let answering = JoinSet::from_iter([async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            let mut head = [0; 4096];
            _ = stream.read(&mut head).await;
            stream.write_all(answer.as_bytes()).await.ok();
        }
    }]);
    (address, answering)
}

/// The exit code of a command through `server`, and what it prints.
async fn through(server: &str, words: &[&str]) -> (Option<i32>, String) {
    let mut command = aftercommit();
    command.args(["--server", server]).args(words).current_dir(std::env::temp_dir());
    command.env("AFTERCOMMIT_TOKEN", token(Role::Operator));
    let (status, out, err) = run(&mut command, SOON).await;
    (status.code(), out + &err)
}

async fn no_dashboard_at_an_address_is_no_missing_effect(db: &TestDatabase) {
    let worker = worker(db).await;
    let id = failed(db, &worker, "pay", "k").await.to_string();
    let Reach::There(site) = Reach::there(db).await else { unreachable!("it is a dashboard") };
    let right = format!("http://{}", site.address);
    let problem = r#"{"type":"https://x.test/none","title":"None","status":404,"detail":"No such product."}"#;
    let others = [
        somebody("404 Not Found", "application/problem+json", problem).await,
        somebody("404 Not Found", "application/json", r#"{"error":"none"}"#).await,
        somebody("404 Not Found", "text/html", "<html>").await,
        somebody("200 OK", "text/html", "<html>").await,
        somebody("200 OK", "application/json", "{}").await,
    ];
    let mut servers = ["/api/v1", "/api/v1/", "/elsewhere"].map(|path| format!("{right}{path}")).to_vec();
    servers.extend(others.iter().map(|(address, _)| format!("http://{address}")));
    for server in &servers {
        for words in [
            &["effects", "show", &id][..],
            &["effects", "show", "no-such-key"],
            &["effects", "retry", &id],
            &["audit", "--effect", &id],
            &["enqueue", "pay", "--key", "x"],
            &["downstreams", "pause", "pay", "--reason", "x"],
        ] {
            let (code, said) = through(server, words).await;
            assert_eq!(code, Some(2), "{server} {words:?}: {said}");
            for word in
                ["no dashboard of aftercommit answers at", "GET http://", "/api/v1/about", "first page"]
            {
                assert!(said.contains(word), "{server} {words:?}: {word} in {said}");
            }
            assert!(!said.contains("there is no effect") && !said.contains("overview"), "{said}");
        }
    }
    let (code, said) = through(&right, &["effects", "show", "999"]).await;
    assert!(
        code == Some(3) && said.contains("there is no effect 999"),
        "an effect that is not there: {said}"
    );
}

async fn what_stands_before_a_dashboard_is_told_as_that(_db: &TestDatabase) {
    for (status, code, words) in [
        ("302 Found", 2, "is not followed"),
        ("403 Forbidden", 1, "credentials of its own"),
        ("502 Bad Gateway", 69, "does not reach it"),
    ] {
        let (address, _answering) = somebody(status, "text/html", "<html>").await;
        let (ended, said) = through(&format!("http://{address}"), &["effects", "show", "1"]).await;
        assert!(ended == Some(code) && said.contains(words), "{status}: {ended:?} {said}");
    }
}
