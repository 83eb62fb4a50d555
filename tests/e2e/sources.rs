//! Which configuration a long-running command reads, and which database it works on: nobody watches, or acts on, another one than they
//! think.

use std::{path::PathBuf, time::Duration};

use rustix::process::Signal;

use super::{
    commands::Machine,
    processes::{Process, eventually, run},
    shop::{Shop, WORKER, payments},
};

const SOON: Duration = Duration::from_secs(60);

/// A shop, its configuration, and the URL of another database of the same environment.
async fn two_databases() -> (Shop, PathBuf, String) {
    let shop = Shop::on_sqlite().await;
    let settings = format!("{WORKER}{}", payments("http://127.0.0.1:9"));
    let config = shop.configure("shop", &settings);
    let url = format!("sqlite:{}", shop.path("other.db").display());
    let other = shop.configure_at("other", &url, &settings);
    shop.migrate(&config).await;
    shop.migrate(&other).await;
    (shop, config, url)
}

/// Where `word` stands in `text`.
#[track_caller]
fn place(text: &str, word: &str) -> usize {
    text.find(word).unwrap_or_else(|| panic!("{word} is not in {text}"))
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_dashboard_names_its_configuration_and_another_database_before_it_serves() {
    let (shop, config, url) = two_databases().await;
    let read = format!("the configuration is read from {}, environment test", config.display());
    for (name, more) in [("named", &["--database", &url][..]), ("own", &[])] {
        let mut command = shop.command(&config);
        command.args(["dashboard", "--listen", "127.0.0.1:0"]).args(more);
        let mut process = Process::spawn(name, &mut command, &shop.path(&format!("{name}.log")));
        eventually("it says where it is", SOON, async || process.output().contains("Ctrl-C ends it")).await;
        let said = process.output();
        assert!(place(&said, &read) < place(&said, "Pages"), "{said}");
        let used = format!("the database is {url}, as --database says, and not the configuration's sqlite:");
        if more.is_empty() {
            assert!(!said.contains("and not the configuration's"), "{said}");
        } else {
            assert!(place(&said, &used) < place(&said, "Pages"), "{said}");
        }
        process.signal(Signal::TERM);
        process.ended(SOON).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_worker_names_its_configuration_and_another_database() {
    let (shop, config, url) = two_databases().await;
    let work = || {
        let mut command = shop.command(&config);
        command.args(["work", "--until-idle"]);
        command
    };
    let read = format!("the configuration is read from {}", config.display());
    let (status, _, said) = run(&mut work(), SOON).await;
    assert!(status.success() && said.contains(&read), "{said}");
    assert!(!said.contains("and not the configuration's"), "{said}");
    let (status, _, said) = run(work().args(["--database", &url]), SOON).await;
    assert!(
        status.success() && said.contains(&format!("the database is {url}, as --database says")),
        "{said}"
    );
    for variable in ["DATABASE_URL", "AFTERCOMMIT__DATABASE"] {
        let (status, _, said) = run(work().env(variable, &url), SOON).await;
        let used = format!("the database is {url}, as {variable} says, and not the configuration's sqlite:");
        assert!(status.success() && place(&said, &used) < place(&said, "worker started"), "{said}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_database_of_another_environment_is_refused_with_the_name_of_the_configuration() {
    let (shop, config, url) = two_databases().await;
    let text = std::fs::read_to_string(&config).expect("it was written");
    let staging = shop.path("staging.toml");
    std::fs::write(&staging, text.replace("environment = \"test\"", "environment = \"staging\""))
        .expect("the folder is writable");
    for words in [&["dashboard", "--listen", "127.0.0.1:0"][..], &["work", "--once"], &["effects", "list"]] {
        let (status, _, said) =
            run(shop.command(&staging).args(words).args(["--database", &url]), SOON).await;
        assert_eq!(status.code(), Some(2), "{words:?}: {said}");
        for word in ["belongs to the environment", "staging", "staging.toml", "--config"] {
            assert!(said.contains(word), "{words:?}: {word} in {said}");
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_playground_says_that_it_reads_no_configuration() {
    let machine = Machine::new();
    std::fs::write(machine.here().join("aftercommit.toml"), "environment = \"production\"\n")
        .expect("the folder is writable");
    let mut command = machine.command();
    command.args(["dev", "--port", "0"]).env("DATABASE_URL", "postgres://shop:hush@localhost/shop");
    let mut dev = Process::spawn("dev", &mut command, &machine.path().join("dev.log"));
    eventually("dev says where it is", SOON, async || {
        assert!(dev.has_ended().is_none(), "{}", dev.output());
        dev.output().contains("Ctrl-C drains")
    })
    .await;
    let said = dev.output();
    for word in [
        "aftercommit.toml is not read: the playground has settings of its own",
        "DATABASE_URL is not used: the playground works on sqlite:aftercommit-dev.db",
    ] {
        assert!(place(&said, word) < place(&said, "Dashboard http"), "{said}");
    }
    assert!(!said.contains("hush"), "{said}");
    dev.signal(Signal::TERM);
    assert!(dev.ended(SOON).await.success(), "{}", dev.output());
}
