//! HTTP-07: what a URL holds that lets anybody call on our behalf stands on no page and in no answer, whoever looks and whatever went
//! wrong: it could not be reached, spoke no TLS, refused the password, or was refused by us.

use std::{fmt::Write as _, net::SocketAddr, path::Path};

use aftercommit::{EffectId, store::Filter};
use aftercommit_dashboard::{Right, Role};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    process::Command,
    task::JoinSet,
};

use super::{
    super::{Site, token},
    SOON, site, unescaped,
};
use crate::{
    e2e::processes::{Process, aftercommit, run},
    support::{TestDatabase, eventually, on_every_database},
};

on_every_database! {
    no_page_shows_what_a_url_or_a_password_holds,
}

const USER: &str = "userInfoCanary1";
const PASSWORD: &str = "passwordCanary2";
const PATH: &str = "pathCanary3";
const QUERY: &str = "queryCanary4";
const BROKER: &str = "brokerCanary5";
const MAIL: &str = "mailCanary6";
const CANARIES: [&str; 6] = [USER, PASSWORD, PATH, QUERY, BROKER, MAIL];

/// A mail server that refuses every password, and repeats it.
async fn refusing() -> (SocketAddr, JoinSet<()>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a free port");
    let (address, mut task) = (listener.local_addr().expect("it is bound"), JoinSet::new());
    task.spawn(async move {
        let mut sessions = JoinSet::new();
        while let Ok((stream, _)) = listener.accept().await {
            sessions.spawn(session(stream));
        }
    });
    (address, task)
}

async fn session(stream: TcpStream) {
    let (read, mut write) = stream.into_split();
    let mut lines = BufReader::new(read).lines();
    write.write_all(b"220 relay.test ESMTP\r\n").await.ok();
    while let Ok(Some(line)) = lines.next_line().await {
        let reply = match line.split(' ').next().unwrap_or_default() {
            "EHLO" => "250-relay.test\r\n250 AUTH PLAIN\r\n".to_owned(),
            "AUTH" => format!("535 5.7.8 these are not right: {line} {MAIL}\r\n"),
            _ => "250 ok\r\n".to_owned(),
        };
        write.write_all(reply.as_bytes()).await.ok();
    }
}

/// Downstreams that all go wrong.
fn configuration(url: &str, mail: SocketAddr) -> String {
    let port = mail.port();
    let common = "timeout = \"2s\"\nretry = { initial = \"20ms\", max = \"100ms\", max_attempts = 2, max_age = \"3s\" }\n";
    let repeats = "contract = { dedupe = \"none\", on_unknown = \"retry\" }\n";
    format!(
        "database = {url:?}\nenvironment = \"test\"\n[worker]\nlease = \"5s\"\npoll = \"100ms\"\n
[downstream.hooks]\nkind = \"http\"\ndynamic_target = \"url\"\negress = {{ allow = [\"127.0.0.1\"], ports = [1, {port}] }}\n{common}{repeats}
[downstream.closed]\nkind = \"http\"\nbase_url = \"http://127.0.0.1:1/{PATH}?token={QUERY}\"\n{common}{repeats}\
auth = {{ basic = {{ user = \"me\", password = {{ env = \"PASSWORD\" }} }} }}
[downstream.queue]\nkind = \"amqp\"\nurl = {{ env = \"AMQP_URL\" }}\nexchange = \"\"\nrouting_key = \"orders\"\n{common}{repeats}
[downstream.stream]\nkind = \"redis\"\nurl = {{ env = \"REDIS_URL\" }}\nstream = \"orders\"\n{common}contract = {{ dedupe = \"key\", window = \"24h\" }}
[downstream.mail]\nkind = \"smtp\"\nserver = \"smtp://{mail}\"\nfrom = \"shop@shop.test\"\ndata_timeout = \"500ms\"\n{common}\
auth = {{ user = \"shop\", password = {{ env = \"MAIL_PASSWORD\" }} }}\n"
    )
}

fn command(folder: &Path, words: &[&str]) -> Command {
    let mut command = aftercommit();
    command
        .current_dir(folder)
        .args(words)
        .env("PASSWORD", PASSWORD)
        .env("MAIL_PASSWORD", MAIL)
        .env("AMQP_URL", format!("amqp://shop:{BROKER}@127.0.0.1:1/%2f"))
        .env("REDIS_URL", format!("redis://shop:{BROKER}@127.0.0.1:1/0"))
        .env("RUST_LOG", "trace");
    command
}

async fn planted(db: &TestDatabase, mail: SocketAddr) -> Vec<EffectId> {
    let hook = |place: &str| format!("'https://{place}/hooks/T0/{PATH}?token={QUERY}'");
    let mut ids = Vec::new();
    for (key, target) in [
        ("userinfo", hook(&format!("{USER}:{PASSWORD}@127.0.0.1:1"))),
        ("refused", hook("127.0.0.1:1")),
        ("tls", hook(&mail.to_string())),
    ] {
        ids.push(db.insert_with("hooks", key, &[("target", &target), ("payload", "'{}'")]).await);
    }
    for name in ["closed", "queue", "stream"] {
        ids.push(db.insert_with(name, "k", &[("payload", "'{\"amount\": 1}'")]).await);
    }
    let letter = "'{\"to\": \"ann@shop.test\", \"subject\": \"s\", \"text\": \"t\"}'";
    ids.push(db.insert_with("mail", "k", &[("payload", letter)]).await);
    ids
}

async fn no_page_shows_what_a_url_or_a_password_holds(db: &TestDatabase) {
    let (mail, _server) = refusing().await;
    let folder = tempfile::Builder::new().prefix("aftercommit-urls.").tempdir().expect("a scratch folder");
    let folder = folder.path();
    std::fs::write(folder.join("aftercommit.toml"), configuration(&db.url, mail)).expect("it is written");
    let ids = planted(db, mail).await;
    let log = folder.join("worker.log");
    let mut worker = Process::spawn("worker", &mut command(folder, &["work"]), &log);
    eventually(SOON, &format!("each of {ids:?} went wrong: see {}", log.display()), async || {
        let all = db.store.effects(&Filter { limit: 100, ..Filter::default() }).await.expect("a page");
        all.effects.iter().all(|effect| effect.last_error.is_some()).then_some(())
    })
    .await;
    worker.kill().await;
    let mut shown = worker.output();
    let site = site(db).await;
    for role in [Role::Viewer, Role::Admin] {
        shown.push_str(&pages(&site, role, &ids).await);
    }
    for words in [
        &["effects", "list"][..],
        &["effects", "list", "--json"],
        &["downstreams", "list", "--json"],
        &["audit", "--json"],
        &["doctor"],
    ] {
        let (_status, out, err) = run(&mut command(folder, words), SOON).await;
        write!(shown, "== {words:?}\n{out}{err}").expect("writing into a String cannot fail");
    }
    // What went wrong is told all the same, and where.
    for says in ["refused", "https://127.0.0.1:1", "these are not right"] {
        assert!(shown.contains(says), "{says}");
    }
    for canary in CANARIES {
        let leaks: Vec<&str> = shown.lines().filter(|line| line.contains(canary)).take(3).collect();
        assert!(leaks.is_empty(), "{canary}: {leaks:#?}");
    }
}

/// What somebody reads at every address that can be looked at; what an effect carries is not asked for.
async fn pages(site: &Site, role: Role, ids: &[EffectId]) -> String {
    let mut shown = String::new();
    let table = site.dashboard.table().iter();
    for route in table.filter(|route| route.method == "GET" && route.right != Right::Public) {
        if route.path.ends_with("/events") {
            continue;
        }
        for id in ids {
            let path = route
                .path
                .replace("{id}", &id.to_string())
                .replace("{name}", "mail")
                .replace("{verb}", "retry");
            let answer = site.ask("GET", &path).bearer(&token(role)).shown().send().await;
            assert!(answer.status < 500, "{path}: {answer:?}");
            write!(shown, "== {path} as {role:?}\n{}", unescaped(&answer.body))
                .expect("writing into a String cannot fail");
            if !route.path.contains("{id}") {
                break;
            }
        }
    }
    shown
}
