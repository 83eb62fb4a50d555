//! What a table may say, and what follows from it.

use std::time::Duration;

use super::{load, settings, try_serve};

fn refused(toml: &str) -> String {
    match load(toml) {
        Err(problems) => problems.join("\n"),
        Ok(settings) => settings.serve(None).map(|_| ()).expect_err(toml).to_string(),
    }
}

#[test]
fn a_server_is_enough() {
    let served = try_serve("server = \"smtp://mail.example.com\"\n").unwrap();
    assert_eq!(served.kind, "smtp");
    // 20 s until the final dot, 10 min for the answer to it, and a lease that covers both however late the session stood.
    assert_eq!(served.terms.timeout, Duration::from_secs(620));
    assert_eq!(served.lease, Duration::from_secs(650));
    let short =
        try_serve("server = \"smtps://mail.example.com\"\ntimeout = \"5s\"\ndata_timeout = \"10s\"\n")
            .unwrap();
    assert_eq!((short.terms.timeout, short.lease), (Duration::from_secs(15), Duration::from_secs(30)));
}

#[test]
fn what_makes_no_sense_is_refused_with_its_key() {
    let server = "server = \"smtp://mail.example.com\"\n";
    for (toml, says) in [
        ("", "server"),
        ("server = \"http://x\"\n", "smtp://"),
        ("server = \"smtp://bob:sekret-word-17@x\"\n", "must not hold a password"),
        ("server = \"smtp://x/path\"\n", "no more than"),
        ("server = \"smtps://x\"\ntls = \"none\"\n", "smtps:// is TLS"),
        ("tls = \"maybe\"\n", "\"required\""),
        ("hello = \"a b\"\n", "host name"),
        ("from = \"nobody\"\n", "no mail address"),
        ("key_header = \"Message-ID\"\n", "belongs to the mail"),
        ("key_header = \"a b\"\n", "name of a header"),
        ("data_timeout = \"1ms\"\n", "10ms"),
        ("lease = \"60s\"\n", "the time for the answer"),
        ("contract = { dedupe = \"lookup\" }\n", "lookup"),
        ("contract = { dedupe = \"key\", window = \"24h\" }\n", "key_header"),
        (
            "key_header = \"X-Key\"\ncontract = { dedupe = \"key\", window = \"15m\" }\n",
            "must be longer than timeout",
        ),
        ("tls_ca = \"/nowhere.pem\"\n", "/nowhere.pem"),
        ("serverr = \"x\"\n", "unknown key"),
    ] {
        let all = if toml.contains("server =") || toml.is_empty() {
            toml.to_owned()
        } else {
            format!("{server}{toml}")
        };
        let refused = refused(&all);
        assert!(refused.contains(says), "{toml}: {refused}");
        assert!(!refused.contains("sekret"), "{refused}");
    }
}

#[test]
fn a_whole_url_may_be_a_secret_and_is_shown_nowhere() {
    let settings = settings("server = { env = \"MAIL_URL\" }\n");
    let shown = format!("{settings:?}");
    assert!(!shown.contains("sekret"), "{shown}");
    let served = settings.serve(None).unwrap().remove(0);
    assert_eq!(served.origin.as_deref().map(|origin| origin.contains("sekret")), Some(false));
}

#[test]
fn what_is_sent_is_pinned_and_how_long_is_not() {
    let hash =
        |toml: &str| try_serve(&format!("server = \"smtp://x.test\"\n{toml}")).unwrap().terms.request_sha256;
    let first = hash("");
    for other in ["from = \"a@x.test\"\n", "key_header = \"X-Key\"\n", "key_prefix = \"a\"\n"] {
        assert_ne!(hash(other), first, "{other}");
    }
    for same in
        ["timeout = \"5s\"\n", "data_timeout = \"30s\"\n", "hello = \"x.test\"\n", "concurrency = 3\n"]
    {
        assert_eq!(hash(same), first, "{same}");
    }
}
