//! `[dashboard]` is refused where it would let in whom nobody meant.

use aftercommit::{
    clock::Timestamp,
    effect::{Effect, EffectId},
};
use aftercommit_dashboard::Role;

use crate::config::{
    Settings,
    tests::{HEAD, load, load_with, refused},
};

fn table(lines: &str) -> String {
    format!("{HEAD}[dashboard]\n{lines}\n")
}

const OPS: &str = r#"{ name = "ops", role = "operator", secret = { env = "OPS_TOKEN" } }"#;

fn resolved(lines: &str, env: &[(&str, &str)]) -> Result<aftercommit_dashboard::Settings, String> {
    let settings: Settings = load_with(&table(lines), env, &[]).unwrap();
    settings
        .dashboard()
        .map_err(|problems| problems.iter().map(ToString::to_string).collect::<Vec<_>>().join("\n"))
}

#[test]
fn whoever_can_be_reached_from_other_machines_asks_who_comes() {
    for listen in ["0.0.0.0:7799", "10.0.0.5:7799", "[::]:7799"] {
        let problem = refused(&table(&format!("listen = {listen:?}")));
        for word in ["dashboard.listen", listen, "auth = { tokens", "loopback"] {
            assert!(problem.contains(word), "{word} in {problem}");
        }
        load(&table(&format!("listen = {listen:?}\nauth = {{ tokens = [{OPS}] }}"))).unwrap();
    }
    for listen in ["127.0.0.1:0", "127.8.8.8:1", "[::1]:7799"] {
        assert!(load(&table(&format!("listen = {listen:?}"))).unwrap().dashboard.auth.is_empty());
    }
}

#[test]
fn what_would_let_in_the_wrong_one_is_refused() {
    for (lines, words) in [
        ("auth = {}".to_owned(), vec!["dashboard.auth", "lets nobody in"]),
        ("auth = { tokens = [] }".to_owned(), vec!["dashboard.auth", "lets nobody in"]),
        (format!("auth = {{ tokens = [{OPS}, {OPS}] }}"), vec!["tokens[1].name", "\"ops\"", "twice"]),
        (format!("auth = {{ tokens = [{OPS}], basic = [{OPS}] }}"), vec!["basic[0].name", "twice"]),
        (
            "auth = { tokens = [{ name = \"x\", role = \"operater\", secret = { env = \"A\" } }] }"
                .to_owned(),
            vec!["tokens[0].role", "did you mean \"operator\""],
        ),
        (
            "auth = { tokens = [{ name = \"x\", role = \"root\", secret = { env = \"A\" } }] }".to_owned(),
            vec!["tokens[0].role", "\"viewer\""],
        ),
        (
            "auth = { tokens = [{ name = \"x\", role = \"admin\", secret = \"hush\" }] }".to_owned(),
            vec!["secret", "reference"],
        ),
        (
            "auth = { tokens = [{ name = \"x\", role = \"admin\" }] }".to_owned(),
            vec!["tokens[0].secret", "missing"],
        ),
        (
            "auth = { tokens = [{ role = \"admin\", secret = { env = \"A\" } }] }".to_owned(),
            vec!["tokens[0].name", "missing"],
        ),
        (
            "auth = { basic = [{ name = \"a:b\", role = \"admin\", secret = { env = \"A\" } }] }".to_owned(),
            vec!["name", "colon"],
        ),
        ("auth = { token = [] }".to_owned(), vec!["auth.token", "did you mean `tokens`"]),
        ("auth = { proxy = { role = \"viewer\" } }".to_owned(), vec!["proxy.from", "missing"]),
        (
            "auth = { proxy = { from = [\"0.0.0.0/0\"], role = \"viewer\" } }".to_owned(),
            vec!["proxy.from", "everybody"],
        ),
        ("auth = { proxy = { from = [\"10.0.0.7\"] } }".to_owned(), vec!["proxy.role", "missing"]),
        (
            "auth = { proxy = { from = [\"10.0.0.7\"], roles = { a = \"viewer\" } } }".to_owned(),
            vec!["proxy.roles", "groups"],
        ),
        (
            "auth = { proxy = { from = [\"10.0.0.7\"], groups = \"G\", roles = { a = \"boss\" } } }"
                .to_owned(),
            vec!["proxy.roles", "the role of a"],
        ),
        (
            "auth = { proxy = { from = [\"10.0.0.7\"], user = \"a b\", role = \"viewer\" } }".to_owned(),
            vec!["proxy.user", "header"],
        ),
        ("proxies = [\"::/0\"]".to_owned(), vec!["dashboard.proxies", "everybody"]),
        ("proxies = [\"proxy.internal\"]".to_owned(), vec!["dashboard.proxies", "no network"]),
        ("hosts = [\"https://ops.example.com\"]".to_owned(), vec!["dashboard.hosts", "without scheme"]),
        ("hosts = [\"ops.example.com:8443\"]".to_owned(), vec!["dashboard.hosts", "without scheme, port"]),
        ("redact = { pointers = [\"card\"] }".to_owned(), vec!["redact.pointers", "begins with /"]),
        ("redact = { patterns = [\"(\"] }".to_owned(), vec!["redact.patterns"]),
        ("bulk = { max = 0 }".to_owned(), vec!["bulk.max", "100000"]),
        ("bulk = { rate = \"10/m\" }".to_owned(), vec!["bulk.rate", "a second"]),
    ] {
        let problem = refused(&table(&lines));
        for word in words {
            assert!(problem.contains(word), "{word} in {problem}");
        }
    }
}

#[test]
fn secrets_that_are_none_are_refused_by_the_name_of_their_place() {
    let lines = format!("auth = {{ tokens = [{OPS}] }}");
    for (env, word) in [
        (vec![], "OPS_TOKEN is not set"),
        (vec![("OPS_TOKEN", "")], "is empty"),
        (vec![("OPS_TOKEN", "   ")], "blank"),
        (vec![("OPS_TOKEN", "x ")], "blank"),
    ] {
        let problem = resolved(&lines, &env).map(drop).unwrap_err();
        assert!(problem.contains("dashboard.auth.tokens[0].secret") && problem.contains(word), "{problem}");
    }
    let two = r#"auth = { tokens = [{ name = "a", role = "admin", secret = { env = "A" } }, { name = "b", role = "viewer", secret = { env = "B" } }] }"#;
    let problem = resolved(two, &[("A", "the-same-secret"), ("B", "the-same-secret")]).map(drop).unwrap_err();
    assert!(
        problem.contains("tokens[1].secret")
            && problem.contains("another one's")
            && !problem.contains("the-same"),
        "{problem}"
    );
    assert_eq!(resolved(two, &[]).map(drop).unwrap_err().lines().count(), 2);
}

#[test]
fn a_secret_that_can_be_guessed_is_told() {
    let lines = format!("auth = {{ tokens = [{OPS}] }}");
    let findings = |secret: &str| load_with(&table(&lines), &[("OPS_TOKEN", secret)], &[]).unwrap().check();
    assert!(findings("0123456789abcdef").is_empty());
    let findings = findings("hush");
    assert_eq!(findings[0].key, "dashboard.auth.tokens[0].secret");
    assert!(
        findings[0].message.contains("guessed") && !findings[0].message.contains("hush"),
        "{}",
        findings[0].message
    );
}

#[test]
fn a_password_that_other_machines_can_guess_is_refused() {
    let basic = r#"auth = { basic = [{ name = "ann", role = "admin", secret = { env = "ANN" } }] }"#;
    let (open, local) = (format!("listen = \"10.0.0.5:7799\"\n{basic}"), basic.to_owned());
    let short = [("ANN", "fifteen-letters")];
    let problem = resolved(&open, &short).map(drop).unwrap_err();
    assert_eq!(problem.lines().count(), 1, "{problem}");
    assert!(problem.contains("basic[0].secret") && problem.contains("16 characters"), "{problem}");
    assert!(!problem.contains("fifteen"), "{problem}");
    resolved(&open, &[("ANN", "sixteen-letters-")]).unwrap();
    // At this machine alone it is remarkable, and no more; so is a token, which a program makes.
    resolved(&local, &short).unwrap();
    assert_eq!(load_with(&table(&local), &short, &[]).unwrap().check().len(), 1);
    let token = format!("listen = \"10.0.0.5:7799\"\nauth = {{ tokens = [{OPS}] }}");
    resolved(&token, &[("OPS_TOKEN", "hush")]).unwrap();
}

#[test]
fn all_of_it_is_read() {
    let lines = r#"
listen = "10.0.0.5:80"
hosts = ["ops.example.com"]
proxies = ["10.0.0.9"]
read_only = true
title = "Shop"
redact = { headers = ["X-Secret"], pointers = ["/card/number"], patterns = ["\\d{16}"] }
bulk = { max = 500, rate = "25/s" }
[dashboard.auth]
tokens = [{ name = "ci", role = "viewer", secret = { env = "CI_TOKEN" } }]
[[dashboard.auth.basic]]
name = "ann"
role = "admin"
secret = { env = "ANN" }
[dashboard.auth.proxy]
from = ["10.0.0.0/8"]
groups = "X-Forwarded-Groups"
roles = { sre = "admin", "dev team" = "viewer" }
"#;
    let settings =
        resolved(lines, &[("CI_TOKEN", "a-token-of-ci-000"), ("ANN", "a-password-of-ann")]).unwrap();
    assert_eq!(settings.hosts, ["ops.example.com", "10.0.0.5"]);
    assert_eq!(
        (settings.title.as_str(), settings.environment.as_str(), settings.read_only),
        ("Shop", "test", true)
    );
    assert_eq!((settings.bulk.max, settings.bulk.rate), (500, 25));
    assert_eq!(settings.proxies.len(), 1);
    let access = &settings.access;
    assert_eq!((access.tokens[0].name.as_str(), access.tokens[0].role), ("ci", Role::Viewer));
    assert_eq!((access.basic[0].name.as_str(), access.basic[0].role), ("ann", Role::Admin));
    let proxy = access.proxy.as_ref().unwrap();
    assert_eq!(
        (proxy.user.as_str(), proxy.roles["dev team"], proxy.role),
        ("X-Forwarded-User", Role::Viewer, None)
    );
    assert!(
        settings.redact.headers.iter().any(|name| name == "X-Secret") && settings.redact.headers.len() > 1
    );
    assert_eq!(settings.redact.pointers.len(), 1);
}

/// The pages tell what the worker sends, made by the same code.
#[test]
fn a_mail_is_known_by_the_message_id_that_its_worker_gives_it() {
    let mail = "[downstream.mail]\nkind = \"smtp\"\nserver = \"smtp://127.0.0.1:2525\"\nkey_prefix = \"eu-\"\n\
                contract = { dedupe = \"none\", on_unknown = \"hold\" }\n";
    let shown = load(&format!("{HEAD}{mail}")).unwrap().dashboard().map_err(|_problems| ()).unwrap();
    let effect = |downstream: &str| Effect {
        payload: Some(r#"{"from":"shop@shop.test","to":"ann@post.test","text":"hi"}"#.to_owned()),
        ..Effect::new(EffectId::new(1), downstream, "k1", Timestamp::from_micros(0))
    };
    let known = (shown.known_as)(&effect("mail"));
    assert_eq!(known, Some(("Message-ID", "<eu-k1$mail@shop.test>".to_owned())));
    assert_eq!((shown.known_as)(&effect("nowhere")), None);
}
