//! Secrets appear in no output: more than twenty of them are planted wherever one can stand, downstreams repeat ours in every
//! part of an answer, and everything that the processes print or store is searched, with the logs at `trace`.
//!
//! Shown by design: `metadata`, a downstream's own words in the stored response, and by `effects show` an effect's path, without
//! its query. What else is sent (payload, body, headers, whole URLs) is not.

mod echo;
mod planted;

use std::{fmt::Write as _, path::PathBuf, process::Stdio, time::Duration};

use rustix::process::Signal;
use tokio::process::Command;

use self::{
    echo::Echo,
    planted::{
        ANSWER, API_KEY, BASE_PATH, BASE_QUERY, BASIC_PASSWORD, BEARER, BODY, BROKEN_URL, DATABASE_PASSWORD,
        EFFECT_HEADER, FILE_TOKEN, FORM_FIELD, METADATA, PAYLOAD, REFUSED_URL, TARGET_PATH, TARGET_QUERY,
        URL_PATH, URL_QUERY, basic_pair, canaries, plant, settings,
    },
};
use super::{
    database::Database,
    processes::{Process, aftercommit, eventually, run},
    shop::Shop,
    wire::get,
};

const SOON: Duration = Duration::from_secs(60);
const END: [&str; 4] = ["succeeded", "in_doubt", "failed", "cancelled"];

/// Fails when `shown` holds a canary, as text or as hexadecimal digits.
fn assert_none(shown: &str, canaries: &[String]) {
    let lower = shown.to_lowercase();
    for canary in canaries {
        let hexadecimal: String = canary.bytes().fold(String::new(), |mut text, byte| {
            write!(text, "{byte:02x}").expect("writing into a String cannot fail");
            text
        });
        for form in [canary.to_lowercase(), hexadecimal] {
            let leaks: Vec<&str> = lower.lines().filter(|line| line.contains(&form)).take(5).collect();
            assert!(leaks.is_empty(), "{canary} leaks: {leaks:#?}");
        }
    }
}

/// With everything that it takes from its environment, and as talkative as it can be.
fn command(shop: &Shop, config: &PathBuf) -> Command {
    let mut command = shop.command(config);
    command.env("BEARER", BEARER).env("BASIC", BASIC_PASSWORD).env("API_KEY", API_KEY);
    command.env("RUST_LOG", "trace").env("RUST_BACKTRACE", "full");
    command
}

/// What everything that may be looked at says afterwards. The second text is what must hold none but the response's words.
async fn looked_at(shop: &Shop, config: &PathBuf) -> String {
    let mut shown = String::new();
    let ids: Vec<i64> = shop.database.effects().await.iter().map(|effect| effect.id).collect();
    let mut commands: Vec<Vec<String>> = [
        &["effects", "list"][..],
        &["effects", "list", "--json"],
        &["downstreams", "list"],
        &["downstreams", "list", "--json"],
        &["workers", "--json"],
        &["audit", "--json"],
        &["config", "check"],
        &["migrate", "--dry-run"],
    ]
    .into_iter()
    .map(|words| words.iter().map(|word| (*word).to_owned()).collect())
    .collect();
    for id in ids {
        commands.push(vec!["effects".to_owned(), "show".to_owned(), id.to_string()]);
        commands.push(vec!["effects".to_owned(), "show".to_owned(), id.to_string(), "--json".to_owned()]);
    }
    for arguments in commands {
        let (_status, mut out, err) = run(command(shop, config).args(&arguments), SOON).await;
        if arguments.iter().any(|word| word == "show") {
            // A path says what the effect asks for, and this is where it may be seen.
            out = out.replace(TARGET_PATH, "…");
        }
        write!(shown, "== {arguments:?}\n{out}{err}").expect("writing into a String cannot fail");
    }
    // What base_url holds is configuration, and this is where it may be seen.
    for arguments in [&["config", "show"][..], &["config", "show", "--json"]] {
        let (_status, out, err) = run(command(shop, config).args(arguments), SOON).await;
        shown.push_str(&format!("{out}{err}").replace(BASE_PATH, "…").replace(BASE_QUERY, "…"));
    }
    shown
}

/// Every table but the effects' own rows.
async fn stored(database: &Database) -> String {
    let mut stored = String::new();
    let columns = [
        ("attempts", "error"),
        ("queue", "note"),
        ("outcomes", "note"),
        ("outcomes", "response"),
        ("outcomes", "response_raw"),
        ("audit", "reason"),
        ("terms", "downstream"),
    ];
    for (table, column) in columns {
        let sql = match database {
            Database::Postgres(_) => {
                format!("SELECT string_agg(t::text, chr(10)) FROM aftercommit.{table} t")
            }
            Database::Sqlite(_) => {
                format!("SELECT group_concat(quote({column}), char(10)) FROM aftercommit_{table}")
            }
        };
        write!(stored, "== {table}.{column}\n{}\n", database.text(&sql).await).expect("writing cannot fail");
    }
    stored
}

async fn no_output_shows_one(shop: Shop) {
    let echo = Echo::start().await;
    // Not one that was free a moment ago: another test's server may take it, and this one would hang.
    let closed = "127.0.0.1:1".to_owned();
    std::fs::write(shop.path("token"), format!("{FILE_TOKEN}\n")).expect("the folder is writable");
    let mut url = url::Url::parse(&shop.database.url()).expect("a URL");
    if matches!(shop.database, Database::Postgres(_)) && url.password().is_none() {
        url.set_password(Some(DATABASE_PASSWORD)).expect("it has a host");
    }
    let config = shop.configure_at("worker", url.as_str(), &settings(&echo.address, &closed));
    let (migrated, out, err) = run(command(&shop, &config).arg("migrate"), SOON).await;
    assert!(migrated.success(), "{out}{err}");
    plant(&shop.database, &echo.address).await;
    let log = shop.path("worker.log");
    let mut worker = Process::spawn("worker", command(&shop, &config).arg("work"), &log);
    eventually(&format!("every effect has ended; see {}", log.display()), SOON, async || {
        assert!(worker.has_ended().is_none(), "{}", worker.output());
        shop.outside(&END).await == 0
    })
    .await;
    worker.signal(Signal::TERM);
    let status = worker.ended(SOON).await;
    assert!(status.success(), "{}", worker.output());
    assert!(
        worker.output().contains("\"TRACE\"") || worker.output().contains("\"DEBUG\""),
        "the log is not talkative"
    );

    // They were in play: the downstream heard what it was to hear.
    let heard = echo.heard.lock().expect("no test panics with it").clone();
    let pair = basic_pair();
    for sent in [
        BEARER,
        &pair,
        API_KEY,
        FILE_TOKEN,
        BASE_PATH,
        BASE_QUERY,
        EFFECT_HEADER,
        TARGET_PATH,
        TARGET_QUERY,
        URL_PATH,
        URL_QUERY,
        PAYLOAD,
        FORM_FIELD,
        BODY,
    ] {
        assert!(heard.contains(sent), "{sent} was never sent");
    }
    for unsent in [REFUSED_URL, BROKEN_URL] {
        assert!(!heard.contains(unsent), "{unsent} was sent");
    }

    let doubted = shop.database.effects().await.into_iter().find(|effect| effect.state == "in_doubt");
    let id = doubted.expect("an effect is in doubt").id.to_string();
    let resolve = ["effects", "resolve", &id, "--as", "applied", "--reason", "looked it up"];
    let (_status, out, err) = run(command(&shop, &config).args(resolve), SOON).await;
    let shown = format!("{out}{err}{}{}{out}{err}", worker.output(), looked_at(&shop, &config).await);
    let stored = stored(&shop.database).await;
    // The search finds what is shown by design.
    assert!(shown.contains(METADATA) && stored.contains(ANSWER), "{stored}");
    assert_none(&shown, &canaries());
    assert_none(&stored, &canaries());
    // A downstream's own words stand in the response, not in logs.
    assert_none(&worker.output(), &[ANSWER.to_owned(), METADATA.to_owned()]);
    println!(
        "{} canaries in {} KiB of output: none found",
        canaries().len(),
        (shown.len() + stored.len()) / 1024
    );
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_shows_one_of_twenty_secrets_on_postgres() {
    no_output_shows_one(Shop::on_postgres("secrets_all").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_output_shows_one_of_twenty_secrets_on_sqlite() {
    no_output_shows_one(Shop::on_sqlite().await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_is_wrong_is_said_without_the_secret_that_is_wrong() {
    let folder = tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a temporary folder");
    let canary = "misplacedCanary30";
    let head = "environment = \"test\"\n";
    let away = format!("postgres://me:{canary}@127.0.0.1:{}/shop", super::processes::free_port());
    let shop = "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.shop]\nkind = \"http\"\n";
    let mut shown = String::new();
    for (n, (text, arguments)) in [
        (format!("database = \"{away}\"\n{head}"), &["effects", "list"][..]),
        (format!("database = \"{away}\"\n{head}"), &["config", "show", "--json"]),
        (format!("database = \"postgres://me:{canary}@[bad/shop\"\n{head}"), &["effects", "list"]),
        (format!("database = \"mysql://me:{canary}@h/shop\"\n{head}"), &["migrate"]),
        (format!("database = \"host=h user=me password={canary}\"\n{head}"), &["migrate"]),
        (format!("database = \"postgres://127.0.0.1:1/shop?password={canary}\"\n{head}"), &["migrate"]),
        (format!("database = \"postgres://me:{canary}@h/shop\n{head}"), &["config", "check"]),
        (format!("{shop}base_url = \"http://me:{canary}@a.example\"\n"), &["config", "check"]),
        (format!("{shop}base_url = \"nonsense {canary}\"\n"), &["config", "check"]),
        (format!("{shop}base_url = \"http://a.example\"\nauth = {{ bearer = \"{canary}\" }}\n"), &["config", "check"]),
        (format!("{shop}base_url = \"http://a.example\"\npasword = \"{canary}\"\n"), &["config", "check"]),
        (format!("{shop}base_url = \"http://a.example\"\nauth = {{ bearer = {{ value = \"{canary}\" }} }}\n"), &["config", "check"]),
        (format!("{shop}base_url = \"http://a.example\"\ntimeout = \"{canary}\"\n"), &["config", "check"]),
        (format!("{shop}base_url = \"http://a.example\"\ndynamic_target = \"url\"\negress = {{ auth_origins = [\"https://a:{canary}@b\"] }}\n"), &["config", "check"]),
    ]
    .into_iter()
    .enumerate()
    {
        let config = folder.path().join(format!("{n}.toml"));
        std::fs::write(&config, &text).expect("the folder is writable");
        let mut command = aftercommit();
        command.current_dir(folder.path()).env("RUST_LOG", "trace").stdin(Stdio::null());
        let (status, out, err) = run(command.arg("--config").arg(&config).args(arguments), SOON).await;
        let is_fine = arguments.contains(&"show");
        assert_eq!(status.success(), is_fine, "{n}: {text}\n{out}{err}");
        write!(shown, "== {n}\n{out}{err}").expect("writing into a String cannot fail");
    }
    assert_none(&shown, &[canary.to_owned()]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_page_and_the_log_of_dev_show_no_payload() {
    let folder = tempfile::Builder::new().prefix("aftercommit-e2e-").tempdir().expect("a temporary folder");
    let here = || {
        let mut command = aftercommit();
        command.current_dir(folder.path()).env("TMPDIR", folder.path()).env("RUST_LOG", "trace");
        command
    };
    let log = folder.path().join("dev.log");
    let dev = Process::spawn("dev", here().args(["dev", "--port", "0"]), &log);
    let mut url = String::new();
    eventually(&format!("dev prints its addresses; see {}", log.display()), SOON, async || {
        let output = dev.output();
        let found = output.split_whitespace().find_map(|word| word.strip_prefix("DATABASE_URL="));
        url = found.unwrap_or_default().trim_matches('\'').to_owned();
        !url.is_empty() && output.contains("/healthz")
    })
    .await;
    let mut shown = String::new();
    for downstream in ["payments", "mail"] {
        let payload = format!("{{\"card\":\"{PAYLOAD}\"}}");
        let header = format!("X-Signature: {EFFECT_HEADER}");
        let arguments =
            ["enqueue", downstream, "--key", "order-1", "--payload", &payload, "--header", &header];
        let (status, out, err) = run(here().env("DATABASE_URL", &url).args(arguments), SOON).await;
        assert!(status.success(), "{out}{err}");
        write!(shown, "{out}{err}").expect("writing into a String cannot fail");
    }
    let listed = async || {
        let (_status, out, err) =
            run(here().env("DATABASE_URL", &url).args(["effects", "list", "--json"]), SOON).await;
        format!("{out}{err}")
    };
    eventually("dev attempts both", SOON, async || !listed().await.contains("\"ready\"")).await;
    shown.push_str(&listed().await);
    let output = dev.output();
    let pages = output.split_whitespace().filter_map(|word| word.strip_prefix("http://"));
    for (host, path) in pages.filter_map(|page| page.split_once('/')) {
        let page = get(host, &format!("/{path}"), None).await.expect("dev answers");
        shown.push_str(&String::from_utf8_lossy(&page.raw));
    }
    assert!(shown.contains("order-1"), "the page lists the effects: {shown}");
    shown.push_str(&dev.output());
    assert_none(&shown, &[PAYLOAD.to_owned(), EFFECT_HEADER.to_owned()]);
}
