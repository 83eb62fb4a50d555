//! The configuration refuses what it does not understand, and says where, what, and what to do.

mod accounts;
mod all_at_once;

use std::{path::PathBuf, time::Duration};

use aftercommit::contract::Window;

use super::*;

pub(super) const HEAD: &str = "database = \"sqlite:x.db\"\nenvironment = \"test\"\n";
const SHOP: &str = "[downstream.shop]\nkind = \"http\"\nbase_url = \"https://api.example.com\"\n";

struct File {
    _directory: tempfile::TempDir,
    path: PathBuf,
}

fn file(text: &str) -> File {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("aftercommit.toml");
    std::fs::write(&path, text).unwrap();
    File { _directory: directory, path }
}

pub(super) fn load_with(
    text: &str,
    env: &[(&str, &str)],
    flags: &[(&str, &str)],
) -> Result<Settings, ConfigError> {
    let owned = |pairs: &[(&str, &str)]| {
        pairs.iter().map(|(name, value)| ((*name).to_owned(), (*value).to_owned())).collect()
    };
    let file = file(text);
    Settings::load(&Sources {
        file: Some(file.path.clone()),
        env: owned(env),
        overrides: owned(flags),
        dev: false,
    })
}

pub(super) fn load(text: &str) -> Result<Settings, ConfigError> {
    load_with(text, &[], &[])
}

#[track_caller]
pub(super) fn refused(text: &str) -> String {
    load(text).expect_err("this configuration must be refused").to_string()
}

#[test]
fn what_init_writes_loads_and_holds_every_default() {
    let written = load(&init()).unwrap();
    let defaults = load(HEAD).unwrap();
    assert_eq!(
        (written.worker, written.retention, written.dashboard),
        (defaults.worker, defaults.retention, defaults.dashboard)
    );
    // The commented downstream loads too, once its comment signs are gone; its defaults are the code's.
    let uncommented = init().replace("#: ", "");
    let example = load_with(&uncommented, &[("EXAMPLE_TOKEN", "x")], &[]).unwrap();
    let bare = load(&format!("{HEAD}{SHOP}")).unwrap();
    let (example, bare) = (&example.downstreams["example"], &bare.downstreams["shop"]);
    assert_eq!(
        (
            example.concurrency,
            example.lease,
            &example.key_prefix,
            &example.default.policy,
            example.default.timeout
        ),
        (bare.concurrency, bare.lease, &bare.key_prefix, &bare.default.policy, bare.default.timeout)
    );
}

#[test]
fn flags_beat_the_environment_and_that_beats_the_file() {
    let text = format!("{HEAD}[worker]\npoll = \"1s\"\nconcurrency = 1\n{SHOP}timeout = \"5s\"\n");
    let env = [
        ("AFTERCOMMIT__WORKER__POLL", "2s"),
        ("AFTERCOMMIT__WORKER__CONCURRENCY", "2"),
        ("DATABASE_URL", "postgres://a:pw@h/db"),
        ("AFTERCOMMIT__DOWNSTREAM__SHOP__AUTH", "{ bearer = { env = \"T\" } }"),
        ("AFTERCOMMIT_CONFIG", "ignored"),
    ];
    let settings = load_with(&text, &env, &[("worker.poll", "\"3s\"")]).unwrap();
    assert_eq!(settings.worker.poll, Duration::from_secs(3));
    assert_eq!(settings.worker.concurrency, 2);
    assert_eq!(settings.database, "postgres://a:pw@h/db");
    let shown = settings.show();
    for line in ["flag for worker.poll", "AFTERCOMMIT__WORKER__CONCURRENCY", "# default", "aftercommit.toml:"]
    {
        assert!(shown.contains(line), "{line} in {shown}");
    }
    assert!(shown.contains("bearer = { env = \"T\" }") && !shown.contains("pw"), "{shown}");
    assert!(toml::from_str::<toml::Table>(&shown).is_ok(), "{shown}");
    let own =
        load_with(&text, &[("AFTERCOMMIT__DATABASE", "sqlite:y.db"), ("DATABASE_URL", "sqlite:z.db")], &[]);
    assert_eq!(own.unwrap().database, "sqlite:y.db");
}

#[test]
fn an_unknown_key_is_named_with_its_place_and_the_nearest_one() {
    for (text, place, hint) in [
        (format!("{HEAD}[worker]\n  pol = \"1s\"\n"), "toml:4:3: worker.pol", "`poll`"),
        (format!("{HEAD}{SHOP}time_out = \"1s\"\n"), "toml:6:1: downstream.shop.time_out", "`timeout`"),
        (
            format!("{HEAD}{SHOP}contract = {{ dedupe = \"none\", on_unknwon = \"hold\" }}\n"),
            "toml:6:31",
            "`on_unknown`",
        ),
        (format!("{HEAD}{SHOP}[downstream.shop.operations.a]\nmehtod = \"PUT\"\n"), "toml:7:1", "`method`"),
        (format!("{HEAD}{SHOP}auth = {{ baerer = {{ env = \"X\" }} }}\n"), "toml:6:10", "`bearer`"),
        (format!("{HEAD}xyz = 1\n"), "toml:3:1", "known here"),
        (format!("{HEAD}{SHOP}retry = {{ maxx = \"1s\" }}\n"), "toml:6:11", "`max`"),
    ] {
        let error = refused(&text);
        assert!(error.contains(place) && error.contains(hint), "{place}, {hint} in {error}");
    }
    let env = load_with(HEAD, &[("AFTERCOMMIT__WORKER__POL", "1s")], &[]).unwrap_err().to_string();
    assert!(env.contains("AFTERCOMMIT__WORKER__POL") && env.contains("`poll`"), "{env}");
    let syntax = refused("database = \n");
    assert!(syntax.contains("toml:1:"), "{syntax}");
}

#[test]
fn the_effective_contract_is_shown_with_what_the_profile_brought() {
    let text = format!(
        "{HEAD}{SHOP}profile = \"stripe-v1\"\ncontract = {{ margin = \"10m\" }}\n\
         [downstream.shop.operations.ping]\ncontract = {{ dedupe = \"none\" }}\n"
    );
    let settings = load(&text).unwrap();
    let shown = settings.shown();
    let source = |key: &str| {
        let all: Vec<_> = shown.iter().filter(|shown| shown.key == key).collect();
        assert_eq!(all.len(), 1, "{key}: {all:?}");
        (all[0].value.to_string(), all[0].source.clone())
    };
    let contract = "downstream.shop.contract";
    assert_eq!(source(&format!("{contract}.window")), ("\"1d\"".to_owned(), "profile stripe-v1".to_owned()));
    assert_eq!(source(&format!("{contract}.min_key_len")), ("1".to_owned(), "default".to_owned()));
    assert!(source(&format!("{contract}.margin")).1.contains("toml:"));
    let ping = "downstream.shop.operations.ping.contract";
    assert_eq!(source(&format!("{ping}.max_key_len")), ("255".to_owned(), "as in shop".to_owned()));
    assert!(!shown.iter().any(|shown| shown.key == format!("{ping}.window")), "none promises no window");
    assert!(settings.show().contains("# profile stripe-v1"));
    assert!(toml::from_str::<toml::Table>(&settings.show()).is_ok(), "{}", settings.show());
}

#[test]
fn lengths_of_time_are_printed_as_they_are_written_and_a_missing_secret_points_at_its_line() {
    let error = refused(&format!("{HEAD}{SHOP}contract = {{ dedupe = \"key\", window = \"5m\" }}\n"));
    assert!(error.contains("margin (5m)") && !error.contains("300s"), "{error}");
    let settings = load(&format!("{HEAD}{SHOP}auth = {{ bearer = {{ env = \"NOT_SET\" }} }}\n")).unwrap();
    let error = settings.serve(None).unwrap_err().to_string();
    assert!(error.contains("toml:6:1: downstream.shop.auth"), "{error}");
}

#[test]
fn a_secret_is_a_reference_and_never_shown() {
    for auth in [
        "{ bearer = \"sk_live_1\" }",
        "{ basic = { user = \"u\", password = \"sk_live_1\" } }",
        "{ header = { name = \"X-Key\", value = \"sk_live_1\" } }",
        "\"sk_live_1\"",
    ] {
        let error = refused(&format!("{HEAD}{SHOP}auth = {auth}\n"));
        assert!(!error.contains("sk_live_1"), "{error}");
    }
    let error =
        refused(&format!("{HEAD}[downstream.shop]\nkind = \"http\"\nbase_url = \"https://u:sk_live_1@h\"\n"));
    assert!(error.contains("base_url") && error.contains("auth") && !error.contains("sk_live_1"), "{error}");

    let text = format!("{HEAD}{SHOP}auth = {{ bearer = {{ env = \"STRIPE_KEY\" }} }}\n");
    let settings = load(&text).unwrap();
    assert_eq!(settings.registered().len(), 1, "registering needs no secret");
    let error = settings.serve(None).unwrap_err().to_string();
    assert!(error.contains("downstream.shop.auth") && error.contains("STRIPE_KEY"), "{error}");
    let settings = load_with(&text, &[("STRIPE_KEY", "sk_live_1")], &[]).unwrap();
    assert_eq!(settings.serve(None).unwrap().len(), 1);
    assert!(!format!("{settings:?}").contains("sk_live_1"));

    let secret = file("sk_from_file\n");
    let by_file =
        format!("{HEAD}{SHOP}auth = {{ bearer = {{ file = {} }} }}\n", quoted(secret.path.to_str().unwrap()));
    assert_eq!(load(&by_file).unwrap().serve(None).unwrap().len(), 1);
}

#[test]
fn settings_that_contradict_each_other_are_refused() {
    let payments = "[downstream.pay]\nkind = \"http\"\nbase_url = \"https://api.example.com\"\n";
    let key = "contract = { dedupe = \"key\", window = \"24h\" }\nauth = { bearer = { env = \"K\" } }\n";
    for (text, words) in [
        (format!("{SHOP}lease = \"21s\"\n"), vec!["downstream.shop.lease", "20s"]),
        (
            format!("{SHOP}contract = {{ dedupe = \"key\", window = \"5m\" }}\n"),
            vec!["contract", "window", "margin"],
        ),
        (format!("{SHOP}contract = {{ dedupe = \"none\", window = \"24h\" }}\n"), vec!["window", "dedupe"]),
        (format!("{SHOP}contract = {{ on_unknown = \"retry\" }}\n"), vec!["dedupe is missing"]),
        (
            format!("{SHOP}contract = {{ dedupe = \"none\", min_key_len = 9, max_key_len = 8 }}\n"),
            vec!["min_key_len"],
        ),
        (
            format!("{SHOP}contract = {{ dedupe = \"none\", mismatch = [\"422\"], rejected = [\"422\"] }}\n"),
            vec!["422", "both"],
        ),
        (format!("{SHOP}contract = {{ dedupe = \"none\", mismatch = [\"422:x\"] }}\n"), vec!["code_at"]),
        (format!("{SHOP}contract = {{ dedupe = \"none\", stored = [\"500\"] }}\n"), vec!["stored"]),
        (
            format!("{SHOP}contract = {{ dedupe = \"none\", key_in = \"header:Authorization\" }}\n"),
            vec!["key_in"],
        ),
        (format!("{SHOP}retry = {{ factor = 0.5 }}\n"), vec!["retry.factor", "1.0"]),
        (format!("{SHOP}timeout = \"20\"\n"), vec!["timeout", "\"30s\""]),
        (format!("{SHOP}timeout = 20\n"), vec!["timeout", "an integer"]),
        (format!("{SHOP}profile = \"stripe\"\n"), vec!["profile", "stripe-v1"]),
        (format!("{SHOP}headers = {{ Authorization = \"x\" }}\n"), vec!["headers", "auth"]),
        (format!("{SHOP}{key}{payments}{key}"), vec!["key_prefix", "downstream."]),
        (format!("{SHOP}[downstream.shop.operations.a]\nmethod = \"GET\"\n"), vec!["method", "POST"]),
        (
            format!("{SHOP}[downstream.shop.operations.a]\ntimeout = \"40s\"\n[worker]\nlease = \"1s\"\n"),
            vec!["worker.lease"],
        ),
        ("[downstream.shop]\nkind = \"http\"\n".to_owned(), vec!["base_url", "missing"]),
        ("[downstream.shop]\nkind = \"htp\"\n".to_owned(), vec!["did you mean \"http\""]),
        ("[dashboard]\nlisten = \"0.0.0.0:80\"\n".to_owned(), vec!["dashboard.listen", "loopback"]),
    ] {
        let error = refused(&format!("{HEAD}{text}"));
        for word in words {
            assert!(error.contains(word), "{word} in {error}");
        }
    }
    let distinct = format!("{HEAD}{SHOP}{key}{payments}{key}key_prefix = \"pay/\"\n");
    assert!(load(&distinct).is_ok(), "distinct prefixes are allowed");
    assert!(refused("database = \"sqlite:x\"\n").contains("environment"));
    assert!(refused("environment = \"x\"\n").contains("DATABASE_URL"));
    assert!(Settings::load(&Sources { dev: true, ..Sources::default() }).is_ok(), "dev needs nothing");
}

#[test]
fn what_is_planned_is_refused_and_not_ignored() {
    for text in [
        format!("{SHOP}on_outcome = \"billing.on_effect\"\n"),
        "[downstream.events]\nkind = \"kafka\"\n".to_owned(),
    ] {
        let error = refused(&format!("{HEAD}{text}"));
        assert!(error.contains("not supported yet"), "{error}");
    }
}

#[test]
fn a_profile_is_refined_and_an_operation_refines_further() {
    let text = format!(
        "{HEAD}{SHOP}profile = \"stripe-v1\"\ntimeout = \"20s\"\ncontract = {{ margin = \"10m\" }}\n\
         [downstream.shop.operations.slow]\ntimeout = \"40s\"\nretry = {{ max_attempts = 3 }}\n\
         [downstream.shop.operations.ping]\ncontract = {{ dedupe = \"none\", on_unknown = \"retry\" }}\n"
    );
    let served = load(&text).unwrap().serve(None).unwrap().remove(0);
    assert_eq!(served.lease, Duration::from_secs(50), "timeout + 10s of the slowest operation");
    let contract = &served.terms.contract;
    assert_eq!(contract.window, Some(Window::For(Duration::from_secs(86_400))));
    assert_eq!(contract.margin, Duration::from_secs(600));
    assert_eq!(served.operations["slow"].policy.max_attempts, 3);
    assert_eq!(served.operations["slow"].policy.max_age, served.terms.policy.max_age);
    assert_eq!(served.operations["ping"].contract.window, None);
    let registered = registered(&served);
    assert_eq!(registered.operations.len(), 3);
    assert_eq!(registered.operations[0].2, served.terms.request_sha256);
}

#[test]
fn what_is_kept_for_how_long_fits_together() {
    let retention = |lines: &str| format!("{HEAD}[retention]\n{lines}\n{SHOP}");
    for (lines, key) in [
        ("keys = \"1h\"\npayloads = \"2h\"", "retention.payloads"),
        ("keys = \"1h\"\nhistory = \"61m\"", "retention.history"),
    ] {
        let said = refused(&retention(lines));
        assert!(said.contains(key) && said.contains("retention.keys"), "{said}");
    }
    for length in ["0s", "3601d"] {
        let said = refused(&retention(&format!("requests = \"{length}\"")));
        assert!(said.contains("retention.requests") && said.contains("longer than 0"), "{said}");
    }
    assert_eq!(
        load(&retention("requests = \"1ms\"")).unwrap().retention.kept().requests,
        Duration::from_millis(1)
    );
    // Shorter keys shorten the defaults.
    let short = load(&retention("keys = \"1h\"")).unwrap();
    let hour = Duration::from_secs(3600);
    assert_eq!((short.retention.payloads, short.retention.history), (hour, hour));
    let notes: Vec<_> = short.check().into_iter().filter(|note| note.key == "retention.keys").collect();
    assert!(notes.len() == 1 && notes[0].message.contains("downstream.shop"), "{notes:?}");
    assert!(load(&format!("{HEAD}{SHOP}")).unwrap().check().iter().all(|note| note.key != "retention.keys"));
    // History may go first.
    let settings = load(&retention("history = \"1m\"")).unwrap();
    assert_eq!(settings.retention.kept().history, Duration::from_secs(60));
}

#[test]
fn a_window_shorter_than_the_retries_is_told() {
    let told = |toml: &str| {
        let findings = load(&format!("{HEAD}{SHOP}{toml}\n")).unwrap().check();
        findings
            .into_iter()
            .map(|finding| format!("{}: {}", finding.key, finding.message))
            .collect::<Vec<_>>()
    };
    assert_eq!(told(""), Vec::<String>::new());
    assert_eq!(told("profile = \"stripe-v1\""), Vec::<String>::new(), "20h of retries fit into 24h");
    let short = told("contract = { dedupe = \"key\", window = \"1h\" }");
    assert!(
        short[0].starts_with("downstream.shop.contract.window: is shorter than the retries"),
        "{short:?}"
    );
    for figure in
        ["parked in doubt 54m40s", "window 1h - margin 5m - timeout 20s", "max_attempts 100, max_age 20h"]
    {
        assert!(short[0].contains(figure), "{figure} in {short:?}");
    }
    let fitting = told("contract = { dedupe = \"key\", window = \"1h\" }\nretry = { max_age = \"54m40s\" }");
    assert_eq!(fitting, Vec::<String>::new(), "the figure that is told is one that fits");
    let few = told("contract = { dedupe = \"key\", window = \"1h\" }\nretry = { max_attempts = 4 }");
    assert_eq!(few, Vec::<String>::new(), "four tries are over in a minute or two");
    let refined = told(
        "profile = \"stripe-v1\"\n[downstream.shop.operations.payout]\ncontract = { window = \"6h\" }\n\
         [downstream.shop.operations.quick]\nretry = { max_age = \"1h\" }",
    );
    assert!(
        refined.len() == 1 && refined[0].starts_with("downstream.shop.operations.payout.contract.window"),
        "{refined:?}"
    );
    assert!(refined[0].contains("5h54m40s"), "{refined:?}");
    assert!(told("profile = \"ietf\"")[0].contains("unpublished"));
    assert_eq!(told("rate = \"25/s\""), Vec::<String>::new());
    // T27: a stop that does not wait for open calls makes unknown outcomes of them.
    assert!(told("timeout = \"40s\"")[0].contains("shutdown_grace (25s)"));
}

#[test]
fn durations_are_read_strictly_and_shown_as_they_were() {
    for (text, shown) in
        [("30s", "30s"), ("1h30m", "90m"), ("500ms", "500ms"), ("400d", "400d"), ("24h", "1d"), ("0s", "0s")]
    {
        assert_eq!(values::show_duration(values::duration(text).unwrap()), shown);
    }
    for bad in
        ["", "30", "s", "-1s", "1.5s", " 1s", "1 s", "1y", "99999999999999999999s", "9999999999d", "３０s"]
    {
        assert!(values::duration(bad).is_none(), "{bad}");
    }
}
