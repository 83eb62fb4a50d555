//! One effect is one request, byte for byte: shared vectors, the key in every place, and what is refused unsent.

use aftercommit::{
    downstream::Served,
    effect::Effect,
    outcome::{About, Finding, Phase},
};
use std::time::Duration;

use super::{
    attempt, deliver, effect, served,
    server::{Server, answer},
    settings,
};
use crate::{
    http::{form, template::Template},
    json,
};

const LONG: Duration = Duration::from_secs(20);

fn vectors(text: &str) -> Vec<serde_json::Map<String, serde_json::Value>> {
    serde_json::from_str(text).unwrap()
}

#[test]
fn forms_are_stripes_and_numbers_stay_as_written() {
    for vector in vectors(include_str!("../../../tests/vectors/form.json")) {
        let payload = vector["payload"].as_str().unwrap();
        let pairs = form::pairs(json::value(payload).unwrap()).unwrap();
        assert_eq!(form::join(&pairs), vector["form"].as_str().unwrap(), "{}", vector["says"]);
    }
}

#[test]
fn a_placeholder_takes_one_encoded_segment() {
    for vector in vectors(include_str!("../../../tests/vectors/path.json")) {
        let mut effect = effect();
        effect.payload = Some(vector["payload"].as_str().unwrap().to_owned());
        effect.metadata = Some(r#"{"order":"A-17"}"#.to_owned());
        let template = Template::parse(vector["path"].as_str().unwrap()).unwrap();
        let rendered = template.render(&effect, &effect.key);
        match (vector.get("target"), rendered) {
            (Some(target), Ok((path, query))) => {
                let query = query.map(|query| format!("?{query}")).unwrap_or_default();
                assert_eq!(format!("{path}{query}"), target.as_str().unwrap());
            }
            (None, Err(problem)) => {
                assert!(problem.contains(vector["refused"].as_str().unwrap()), "{vector:?}: {problem}");
            }
            (_, rendered) => panic!("{vector:?}: {rendered:?}"),
        }
    }
    for bad in
        ["x", "/a/../b", "/a/./b", "/a/%2e%2e", "/a b", "/{x}", "/{/a", "/a#b", "/{metadata:x}", "/%zz", "/é"]
    {
        assert!(Template::parse(bad).is_err(), "{bad}");
    }
}

#[test]
fn a_key_in_the_body_moves_no_other_byte() {
    let key = "k\"1";
    for (payload, pointer, expected) in [
        (r#"{}"#, "/key", r#"{"key":"k\"1"}"#),
        (
            r#" { "b":1.0,"n":12345678901234567890 } "#,
            "/key",
            r#" {"key":"k\"1", "b":1.0,"n":12345678901234567890 } "#,
        ),
        (r#"{"a":{"x":1}}"#, "/a/key", r#"{"a":{"key":"k\"1","x":1}}"#),
        (r#"{"b":"}{"}"#, "/a/c/key", r#"{"a":{"c":{"key":"k\"1"}},"b":"}{"}"#),
        (r#"{"key":"k\u00221"}"#, "/key", r#"{"key":"k\u00221"}"#),
        (r#"{ }"#, "/a~1b", r#"{"a/b":"k\"1" }"#),
    ] {
        assert_eq!(json::splice(payload, pointer, key).unwrap(), expected);
    }
    for (payload, pointer) in [
        (r#"{"key":"other"}"#, "/key"),
        (r#"{"key":null}"#, "/key"),
        (r#"{"key":"k\"1","key":"k\"1"}"#, "/key"),
        (r#"[1]"#, "/key"),
        (r#"{"a":1}"#, "/a/key"),
        ("nonsense", "/key"),
    ] {
        assert!(json::splice(payload, pointer, key).is_err(), "{payload}");
    }
}

/// The request that `effect` becomes, as the server saw it.
async fn sent(toml: &str, effect: Effect) -> String {
    let server = Server::answering(answer(200, "", "{}")).await;
    let shop = served(&format!("base_url = \"{}/base/\"\n{toml}", server.url));
    let outcome = deliver(&shop, effect, LONG).await;
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
    server.seen.requests().remove(0)
}

/// Why `effect` is refused unsent.
async fn refused(toml: &str, effect: Effect) -> String {
    let shop = served(&format!("base_url = \"http://127.0.0.1:1\"\n{toml}"));
    let outcome = shop.downstream.deliver(&attempt(effect, LONG, Ok(()))).await;
    assert_eq!(outcome.phase, Phase::Render, "{}", outcome.reason);
    assert_eq!(outcome.finding, Finding::Rejected(About::ThisAttempt), "{}", outcome.reason);
    outcome.reason
}

#[tokio::test]
async fn a_payload_is_sent_exactly_as_written() {
    let mut exact = effect();
    let payload = "{ \"b\":1.0, \"é\":\"\\u0000\\u2028/\",\n \"n\":1234567890123456789012345 }";
    exact.payload = Some(payload.to_owned());
    exact.trace_context = Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned());
    exact.headers = Some(r#"{"X-Shop":"a b"}"#.to_owned());
    let request =
        sent("auth = { bearer = { env = \"TOKEN\" } }\nheaders = { \"X-Version\" = \"7\" }", exact).await;
    assert!(request.starts_with("POST /base/ HTTP/1.1\r\n"), "{request}");
    assert!(request.ends_with(&format!("\r\n\r\n{payload}")), "{request}");
    for header in [
        "idempotency-key: order-17/charge",
        "content-type: application/json",
        "authorization: Bearer sekret-token",
        "x-shop: a b",
        "x-version: 7",
        "user-agent: aftercommit",
        "traceparent: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01",
    ] {
        assert!(request.contains(&format!("{header}\r\n")), "{header} in {request}");
    }
}

#[tokio::test]
async fn the_key_goes_where_the_contract_says() {
    let dedupe = "dedupe = \"key\", window = \"24h\"";
    let of = |rest: &str| format!("contract = {{ {dedupe}, {rest} }}");
    let quoted = sent(&of("key_format = \"sf-string\""), effect()).await;
    assert!(quoted.contains("idempotency-key: \"order-17/charge\"\r\n"), "{quoted}");
    let query = sent(&of("key_in = \"query:ref\""), effect()).await;
    assert!(query.starts_with("POST /base/?ref=order-17%2Fcharge HTTP"), "{query}");
    let body = sent(&of("key_in = \"body:/meta/key\""), effect()).await;
    assert!(body.ends_with("{\"meta\":{\"key\":\"order-17/charge\"},\"amount\":1500}"), "{body}");
    let operation = "\n[downstream.shop.operations.charge]\n";
    let mut charge = effect();
    charge.operation = Some("charge".to_owned());
    let path = sent(
        &(of("key_in = \"path\"") + operation + "method = \"PUT\"\npath = \"/c/{key}\""),
        charge.clone(),
    )
    .await;
    assert!(path.starts_with("PUT /base/c/order-17%2Fcharge HTTP"), "{path}");
    let form = sent(&(of("key_in = \"body:/meta/key\"") + operation + "encoding = \"form\""), charge).await;
    assert!(form.ends_with("\r\n\r\namount=1500&meta[key]=order-17%2Fcharge"), "{form}");
    assert!(form.contains("content-type: application/x-www-form-urlencoded\r\n"), "{form}");
}

#[tokio::test]
async fn a_body_is_sent_with_its_type_and_a_target_is_a_path() {
    let mut raw = effect();
    raw.payload = None;
    raw.body = Some(b"<x/>".to_vec());
    raw.content_type = Some("text/xml".to_owned());
    raw.target = Some("/notes/7%20a?b=c".to_owned());
    let request = sent("dynamic_target = \"path\"", raw).await;
    assert!(request.starts_with("POST /base/notes/7%20a?b=c HTTP"), "{request}");
    assert!(request.contains("content-type: text/xml\r\n") && request.ends_with("\r\n\r\n<x/>"), "{request}");
}

#[tokio::test]
async fn what_cannot_be_rendered_is_refused_unsent_and_named() {
    let with = |change: fn(&mut Effect)| {
        let mut effect = effect();
        change(&mut effect);
        effect
    };
    let cases: [(&str, Effect, &str); 13] = [
        ("", with(|e| e.payload = Some("{".to_owned())), "payload is not JSON"),
        ("", with(|e| e.payload = Some(format!("{}{}", "[".repeat(129), "]".repeat(129)))), "128"),
        ("", with(|e| e.target = Some("x".to_owned())), "dynamic_target"),
        ("", with(|e| e.headers = Some(r#"{"Authorization":"x"}"#.to_owned())), "authorization"),
        (
            "",
            with(|e| e.headers = Some(r#"{"Idempotency-Key":"x"}"#.to_owned())),
            "another value than the key",
        ),
        ("", with(|e| e.headers = Some(r#"{"Content-Length":"1"}"#.to_owned())), "content-length"),
        ("", with(|e| e.headers = Some(r#"{"X":"a\r\nY: b"}"#.to_owned())), "line breaks"),
        ("", with(|e| e.headers = Some(r#"{"X":1}"#.to_owned())), "object of strings"),
        ("", with(|e| e.headers = Some(r#"{"x":"1","X":"2"}"#.to_owned())), "twice"),
        ("contract = { dedupe = \"none\", max_key_len = 4 }", effect(), "takes 1 to 4"),
        ("contract = { dedupe = \"none\", key_charset = \"uuid\" }", effect(), "UUID"),
        ("contract = { dedupe = \"none\", key_in = \"body:/amount\" }", effect(), "another value at /amount"),
        ("contract = { dedupe = \"none\", key_in = \"path\" }", effect(), "{key}"),
    ];
    for (toml, effect, expected) in cases {
        let reason = refused(toml, effect).await;
        assert!(reason.contains(expected), "{expected:?} in {reason:?}");
    }
    for target in [
        "//evil/x",
        "../x",
        "a/%2E%2e/b",
        "a//b",
        "a\\b",
        "a b",
        "x#y",
        "http://evil/",
        "",
        "/",
        "///evil",
        "/\\evil",
        "\\\\evil",
        "..;/x",
        "a/..;x=1/b",
        ".%2e/x",
        "%2e",
        "x\r\nHost: evil",
        "x\n",
        "\tx",
        "x\0",
        "é",
        "x/",
        "%",
        "%0",
        "a/./b",
        "https:/\\evil",
        "x?y#z",
        "x?a b",
        "x?\r\nX: y",
        "\u{202e}x",
        "[::1]",
        "{x}",
        "a|b",
        "x?'",
    ] {
        let mut effect = effect();
        effect.target = Some(target.to_owned());
        let reason = refused("dynamic_target = \"path\"", effect).await;
        assert!(reason.contains("target"), "{target:?}: {reason}");
    }
}

#[tokio::test]
async fn a_path_never_leaves_its_origin_whatever_it_looks_like() {
    for target in [
        "@evil.example/x",
        ":80@evil.example/",
        "evil.example:80",
        "http:evil.example",
        "%2f%2fevil.example",
        "%5c%5cevil.example",
        "%0d%0aHost:%20evil.example",
        "%252e%252e/x",
        "...",
        "x?http://evil.example/",
        "x?//evil.example/../",
        ";@evil.example",
    ] {
        let mut effect = effect();
        effect.target = Some(target.trim_end_matches('/').to_owned());
        let request = sent("dynamic_target = \"path\"", effect).await;
        assert!(
            request.starts_with(&format!("POST /base/{} HTTP/1.1\r\n", target.trim_end_matches('/'))),
            "{request}"
        );
        assert!(request.contains("\r\nhost: 127.0.0.1:"), "{request}");
    }
}

#[tokio::test]
async fn an_operation_that_the_configuration_lacks_is_not_applied() {
    let mut refund = effect();
    refund.operation = Some("refund".to_owned());
    let shop: Served = served("base_url = \"http://127.0.0.1:1\"");
    let outcome = shop.downstream.deliver(&attempt(refund, LONG, Ok(()))).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Render));
    assert!(outcome.reason.contains("refund"), "{}", outcome.reason);
}

#[test]
fn the_pin_covers_what_the_request_is_rendered_from_and_nothing_else() {
    let pin = |toml: &str| served_terms(&format!("{toml}\n[downstream.shop.operations.a]\npath = \"/a\"\n"));
    let base = "base_url = \"https://a.example/v1\"\nauth = { bearer = { env = \"TOKEN\" } }";
    let first = pin(base);
    assert_eq!(
        pin(&format!("{base}\ntimeout = \"9s\"\nretry = {{ max_attempts = 3 }}\nconcurrency = 2")),
        first
    );
    for other in [
        base.replace("a.example", "b.example"),
        base.replace("/v1", "/v2"),
        base.replace("TOKEN", "OTHER"),
        format!("{base}\nkey_prefix = \"x\""),
        format!("{base}\nheaders = {{ V = \"1\" }}"),
        format!("{base}\ndynamic_target = \"path\""),
        format!("{base}\ncontract = {{ dedupe = \"key\", window = \"24h\" }}"),
        format!("{base}\ncontract = {{ key_format = \"sf-string\", dedupe = \"none\" }}"),
    ] {
        let other = pin(&other);
        assert_ne!(other[0], first[0], "the default operation's pin did not change");
        assert_ne!(other[1], first[1], "the named operation's pin did not change");
    }
    let moved = served_terms(&format!("{base}\n[downstream.shop.operations.a]\npath = \"/b\"\n"));
    assert_eq!(moved[0], first[0]);
    assert_ne!(moved[1], first[1]);
}

fn served_terms(toml: &str) -> Vec<[u8; 32]> {
    settings(toml).registered().remove(0).operations.into_iter().map(|(_, _, pin)| pin).collect()
}
