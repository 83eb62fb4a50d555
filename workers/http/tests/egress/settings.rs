//! The `egress` table: what it refuses, and that it is never ignored.

use crate::config::{Settings, Sources};

fn load(toml: &str) -> Result<Settings, String> {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("aftercommit.toml");
    let head = "database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.shop]\nkind = \"http\"\n";
    std::fs::write(&file, format!("{head}{toml}")).unwrap();
    let sources = Sources { file: Some(file), ..Sources::default() };
    Settings::load(&sources).map_err(|error| error.to_string())
}

#[test]
fn what_the_guard_cannot_hold_is_refused() {
    let url = "dynamic_target = \"url\"\n";
    let auth = "auth = { bearer = { env = \"TOKEN\" } }\n";
    for (toml, problem) in [
        ("base_url = \"https://a.example\"\negress.http = true".to_owned(), "dynamic_target = \"url\""),
        ("base_url = \"https://a.example\"\ndynamic_target = \"any\"".to_owned(), "\"url\""),
        (format!("base_url = \"\"\n{url}"), "base_url"),
        ("dynamic_target = \"path\"".to_owned(), "base_url"),
        (format!("{url}{auth}"), "auth_origins"),
        (format!("{url}{auth}egress.http = true"), "auth_origins"),
        (format!("{url}egress.auth_origins = [\"https://a.example/path\"]"), "without a path"),
        (format!("{url}egress.auth_origins = [\"https://u:p@a.example\"]"), "without a path"),
        (format!("{url}egress.auth_origins = [\"a.example\"]"), "without a path"),
        (format!("{url}egress.allow = [\"10.1.2.3/16\"]"), "10.1.2.3/16"),
        (format!("{url}egress.allow = [\"10.1\"]"), "10.1"),
        (format!("{url}egress.allow = [\"*.internal\"]"), "*.internal"),
        (format!("{url}egress.allow = [\"hooks.internal.\"]"), "hooks.internal."),
        (format!("{url}egress.allow = [\"https://hooks.internal\"]"), "host name"),
        (format!("{url}egress.allow = [\"\"]"), "host name"),
        (format!("{url}egress.ports = [0]"), "1 to 65535"),
        (format!("{url}egress.ports = [70000]"), "numbers"),
        (format!("{url}egress.ports = [\"8443\"]"), "numbers"),
        (format!("{url}egress.alow = []"), "allow"),
        (format!("{url}egress = true"), "table"),
    ] {
        let error = load(&toml).expect_err(&toml);
        assert!(error.contains(problem), "{toml}\n{problem:?} in {error}");
    }
}

#[test]
fn what_it_can_hold_is_shown_and_warned_of() {
    let toml = "dynamic_target = \"url\"\nauth = { bearer = { env = \"TOKEN\" } }\n\
                egress = { allow = [\"0.0.0.0/0\", \"192.0.2.7\", \"fd00::/8\", \"hooks.internal\"], ports = [8443], \
                http = true, auth_origins = [\"http://api.example.com\"] }\nheaders = { X-Shop = \"1\" }";
    let settings = load(toml).unwrap();
    let shown = settings.show();
    for line in
        ["ports = [8443]", "http = true", "\"fd00::/8\"", "auth_origins = [\"http://api.example.com\"]"]
    {
        assert!(shown.contains(line), "{line:?} in {shown}");
    }
    let warned: String = settings.check().into_iter().map(|finding| finding.message).collect();
    for words in ["refuses none", "in the clear", "headers go to every URL that an effect names"] {
        assert!(warned.contains(words), "{words:?} in {warned}");
    }
    let bare = load("dynamic_target = \"url\"").unwrap().check();
    assert!(bare.iter().all(|finding| !finding.message.contains("headers")), "{bare:?}");
    assert!(
        load("dynamic_target = \"url\"\nauth = { bearer = { env = \"T\" } }\negress.auth_origins = []")
            .is_ok()
    );
}
