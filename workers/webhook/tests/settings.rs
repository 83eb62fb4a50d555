//! A configuration that could not sign, or would call what it should not, is refused; and none shows a URL's tokens.

use std::time::Duration;

use aftercommit::check::Level;

use super::{load, row, rows, served};

const ACME: &str = "[downstream.hooks.endpoints.acme]\n";
const SIGNED: &str = "secret = { env = \"HOOK_ACME\" }\n";

#[test]
fn what_cannot_be_a_webhook_is_refused_and_named() {
    let endpoint = |text: &str| format!("{ACME}{text}");
    for (toml, wanted) in [
        (endpoint(SIGNED), "endpoints.acme.url"),
        (endpoint("url = \"https://hooks.example.com/x\"\n"), "endpoints.acme.secret"),
        (endpoint(&format!("url = \"http://hooks.example.com/x\"\n{SIGNED}")), "https://"),
        (endpoint(&format!("url = \"https://127.0.0.1/x\"\n{SIGNED}")), "loopback"),
        (endpoint(&format!("url = \"https://[::ffff:10.0.0.1]/x\"\n{SIGNED}")), "IPv4 address in IPv6"),
        (endpoint(&format!("url = \"https://a:b@hooks.example.com/\"\n{SIGNED}")), "user or password"),
        (
            endpoint(&format!("url = \"https://hooks.example.com/\"\nrate = \"5/s\"\n{SIGNED}")),
            "rate: is not supported yet",
        ),
        (
            endpoint(&format!(
                "url = \"https://hooks.example.com/\"\nheaders = {{ webhook-id = \"x\" }}\n{SIGNED}"
            )),
            "webhook-id",
        ),
        ("key_prefix = \"a.b\"\n".to_owned(), "key_prefix"),
        ("endpoint_concurrency = 0\n".to_owned(), "endpoint_concurrency"),
        ("secrets_from = [\"env:\"]\n".to_owned(), "secrets_from"),
        ("secrets_from = [\"file:/\"]\n".to_owned(), "secrets_from"),
        ("secrets_from = [\"file:/run/secrets\"]\n".to_owned(), "secrets_from"),
        ("secrets_from = [\"file:/run/../etc/\"]\n".to_owned(), "secrets_from"),
        ("secrets_from = [\"PGPASSWORD\"]\n".to_owned(), "secrets_from"),
        ("contract = { key_in = \"body:/id\" }\n".to_owned(), "webhook-id"),
        ("egress = { auth_origins = [] }\n".to_owned(), "auth_origins"),
        (
            "secrets_from = [\"env:HOOK_\"]\ncontract = { dedupe = \"key\", window = \"1d\" }\n".to_owned(),
            "does not go with secrets_from",
        ),
        (
            "secrets_from = [\"env:HOOK_\"]\n[downstream.hooks.operations.paid]\ncontract = { dedupe = \"key\", window = \"1d\" }\n"
                .to_owned(),
            "does not go with secrets_from",
        ),
        ("auth = { bearer = { env = \"X\" } }\n".to_owned(), "auth"),
    ] {
        let problem = load(&toml).expect_err(&toml).to_string();
        assert!(problem.contains(wanted), "{toml}: {problem}");
    }
}

/// IDEMP-OUT: what may have reached one receiver is never sent to another under the same key.
#[test]
fn where_an_endpoint_of_the_configuration_is_and_its_headers_are_part_of_the_pinned_request() {
    let key = "contract = { dedupe = \"key\", window = \"1d\" }\n";
    let pinned = |rest: &str| served(&format!("{key}{ACME}{SIGNED}{rest}")).terms.request_sha256;
    let all = [
        "url = \"https://hooks.example.com/x\"\n",
        "url = \"https://hooks.example.com/y\"\n",
        "url = { env = \"HOOK_ACME\" }\n",
        "url = \"https://hooks.example.com/x\"\nheaders = { X-A = \"1\" }\n",
        "url = \"https://hooks.example.com/x\"\nheaders = { X-A = \"2\" }\n",
        "url = \"https://hooks.example.com/x\"\n[downstream.hooks.endpoints.b]\nurl = \"https://b.example.com/\"\nsecret = { env = \"HOOK_ACME\" }\n",
    ];
    let different: std::collections::BTreeSet<_> = all.iter().map(|rest| pinned(rest)).collect();
    assert_eq!(different.len(), all.len());
    assert_eq!(pinned(all[0]), pinned(&format!("{}secret_next = {{ env = \"HOOK_NEXT\" }}\n", all[0])));
}

/// HTTP-07.
#[test]
fn neither_config_show_nor_debug_shows_what_a_url_holds_beside_its_host() {
    let toml =
        format!("{ACME}url = \"https://hooks.example.com/T0/SECRET-PATH?token=SECRET-QUERY\"\n{SIGNED}");
    let settings = load(&toml).unwrap();
    let shown = settings.show();
    assert!(shown.contains("https://hooks.example.com/…"), "{shown}");
    let all = format!("{shown}{settings:?}{:?}", settings.downstreams["hooks"].endpoints());
    assert!(!all.contains("SECRET-"), "{all}");
    assert!(all.contains("hooks.example.com"));
}

#[tokio::test]
async fn a_look_at_the_endpoints_says_what_keeps_each_from_being_called() {
    let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
    let place = listener.local_addr().unwrap();
    let (port, url) = (place.port(), format!("http://{place}"));
    let served = served(&format!(
        "secrets_from = [\"env:HOOK_\"]\negress = {{ allow = [\"127.0.0.1\"], http = true, ports = [{port}] }}\n\
         {ACME}url = \"https://192.0.2.1.nip.example.invalid/SECRET-PATH\"\n{SIGNED}\
         [downstream.hooks.endpoints.unset]\nurl = \"{url}/\"\nsecret = {{ env = \"NOT_SET\" }}\n\
         [downstream.hooks.endpoints.good]\nurl = \"{url}/SECRET-PATH\"\n{SIGNED}secret_next = {{ env = \"HOOK_NEXT\" }}\n"
    ));
    rows(
        &served,
        vec![
            row("inside", "https://169.254.169.254/SECRET-PATH", "env:HOOK_ACME"),
            row("greedy", &url, "env:PGPASSWORD"),
            row("broken", &url, "env:HOOK_BROKEN"),
            super::disabled(row("off", &url, "env:HOOK_ACME"), "HTTP 410"),
        ],
    );
    let good = format!("good at {place} answers in the clear, 2 signatures; verified with whpk_");
    let off = format!("off at {place} is disabled since 1970-01-01T00:00:00");
    let checks = served.downstream.check(Duration::from_secs(10)).await;
    let found: Vec<(Level, &str)> = checks.iter().map(|check| (check.level, check.found.as_str())).collect();
    let wanted = [
        (Level::Fail, "acme: the name"),
        (Level::Fail, "broken: the secret { env = \"HOOK_BROKEN\" } must begin with whsec_"),
        (Level::Ok, good.as_str()),
        (Level::Fail, "greedy: its secret is none that secrets_from allows"),
        (Level::Fail, "inside: its URL leads to 169.254.169.254, a link-local address"),
        (Level::Warn, off.as_str()),
        (Level::Fail, "unset: the environment variable NOT_SET is not set"),
    ];
    assert_eq!(found.len(), wanted.len(), "{found:#?}");
    for ((level, text), (wanted_level, begins)) in found.iter().zip(wanted) {
        assert!(*level == wanted_level && text.starts_with(begins), "{level:?} {text}\nwanted {begins}");
        assert!(!text.contains("SECRET-PATH") && !text.contains("hunter2"), "{text}");
    }
}
