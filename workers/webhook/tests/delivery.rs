//! One effect is one signed request to one endpoint, or none; and what it showed of the endpoint is noted.

use std::time::Duration;

use aftercommit::{
    clock::Boot,
    downstream::{
        Attempt, Closed,
        endpoint::{Reading, Sign},
    },
    effect::Effect,
    outcome::{About, Finding, Outcome, Phase},
};

use super::{SECRET, attempt, deliver, disabled, effect, row, rows, served, with_acme, with_acme_unread};
use crate::{
    http::tests::server::{Server, answer},
    webhook::sign::{Key, signatures},
};

/// A header of a request that a server saw.
fn header<'a>(request: &'a str, name: &str) -> &'a str {
    let head = request.split("\r\n\r\n").next().unwrap();
    let lines = head.lines().filter_map(|line| line.split_once(": "));
    let mut found = lines.filter(|(known, _)| known.eq_ignore_ascii_case(name)).map(|(_, value)| value);
    found.next().unwrap_or_else(|| panic!("no {name} in {request}"))
}

fn noted(served: &aftercommit::downstream::Served, name: &str) -> Option<Sign> {
    let noted = served.downstream.directory().unwrap().take();
    noted.into_iter().find(|(called, _)| &*called.name == name).map(|(_, noted)| noted.last)
}

#[track_caller]
fn unsent(outcome: &Outcome, wanted: &str) {
    assert_eq!(
        (outcome.finding, outcome.phase),
        (Finding::Rejected(About::ThisAttempt), Phase::Render),
        "{outcome:?}"
    );
    assert!(outcome.reason.contains(wanted), "{}", outcome.reason);
}

/// IDEMP-OUT-10.
#[tokio::test]
async fn what_is_signed_is_what_stands_on_the_socket() {
    let server = Server::answering(answer(204, "", "")).await;
    let served = with_acme(&format!("{}/in?token=x", server.url), "headers = { X-From = \"shop\" }");
    let payload = "{\"b\":1.0,\"a\":\"é\u{2028}/\",\"n\":12345678901234567890}";
    let effect = Effect {
        payload: Some(payload.to_owned()),
        headers: Some(r#"{"X-Event":"paid"}"#.to_owned()),
        ..effect()
    };
    for _ in 0..2 {
        assert_eq!(deliver(&served, effect.clone()).await.finding, Finding::Applied);
    }
    let requests = server.seen.requests();
    for request in &requests {
        assert!(request.starts_with("POST /in?token=x HTTP/1.1\r\n"), "{request}");
        let body = request.split_once("\r\n\r\n").unwrap().1;
        assert_eq!(body, payload);
        let timestamp: i64 = header(request, "webhook-timestamp").parse().unwrap();
        let key = Key::parse(SECRET).unwrap_or_else(|problem| panic!("{problem}"));
        let signed = signatures(&[key], "order-17/paid", timestamp, body.as_bytes());
        assert_eq!(header(request, "webhook-signature"), signed);
        assert_eq!(header(request, "webhook-id"), "order-17/paid");
        assert_eq!((header(request, "x-from"), header(request, "x-event")), ("shop", "paid"));
        assert_eq!(header(request, "content-type"), "application/json");
    }
    assert_eq!(requests.len(), 2);
    assert_eq!(noted(&served, "acme"), Some(Sign::Took));
}

#[tokio::test]
async fn what_names_no_endpoint_or_cannot_be_signed_ends_unsent_and_named() {
    let server = Server::answering(answer(204, "", "")).await;
    let served = with_acme(&server.url, "");
    unsent(&deliver(&served, Effect { target: None, ..effect() }).await, "target is missing");
    unsent(
        &deliver(&served, Effect { target: Some("nobody".to_owned()), ..effect() }).await,
        "no endpoint \"nobody\"",
    );
    unsent(&deliver(&served, Effect { key: "order.17".to_owned(), ..effect() }).await, "webhook-id must not");
    for taken in ["webhook-id", "Webhook-Signature", "authorization", "host", "content-type"] {
        let effect = Effect { headers: Some(format!("{{\"{taken}\":\"x\"}}")), ..effect() };
        unsent(&deliver(&served, effect).await, "must not set");
    }
    rows(&served, vec![disabled(row("acme", "https://x.example.com/", "env:HOOK_ACME"), "HTTP 410 from x")]);
    unsent(&deliver(&served, effect()).await, "disabled since 1970-01-01T00:00:00.000000Z (HTTP 410 from x)");
    assert!(server.seen.requests().is_empty() && noted(&served, "acme").is_none());
}

#[tokio::test]
async fn a_closed_gate_sends_nothing_and_says_nothing_of_the_endpoint() {
    let server = Server::answering(answer(204, "", "")).await;
    let served = with_acme(&server.url, "");
    let outcome = served.downstream.deliver(&attempt(effect(), Err(Closed::Stopping))).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Connect));
    assert!(server.seen.requests().is_empty() && noted(&served, "acme").is_none());
}

#[tokio::test]
async fn each_answer_is_an_outcome_of_the_effect_and_a_sign_of_the_endpoint() {
    for (status, finding) in [
        (200, Finding::Applied),
        (302, Finding::NotApplied),
        (303, Finding::Unknown),
        (400, Finding::NotApplied),
        (401, Finding::NotApplied),
        (404, Finding::NotApplied),
        (408, Finding::Unknown),
        (410, Finding::Rejected(About::ThisAttempt)),
        (429, Finding::NotApplied),
        (500, Finding::Unknown),
        (502, Finding::Unknown),
        (504, Finding::Unknown),
    ] {
        let server = Server::answering(answer(status, "Retry-After: 7\r\nLocation: /x\r\n", "")).await;
        let served = with_acme(&server.url, "");
        let outcome = deliver(&served, effect()).await;
        assert_eq!(outcome.finding, finding, "{status}: {}", outcome.reason);
        assert!(!outcome.refuses_us, "{status}: one owner's refusal pauses nobody else");
        let waits = outcome.retry_after.map(|wait| wait.as_secs());
        assert_eq!(waits, (status != 200).then_some(7), "{status}");
        let sign = noted(&served, "acme").expect("it is noted");
        match status {
            200 => assert_eq!(sign, Sign::Took),
            410 => assert!(matches!(sign, Sign::Gone(why) if why.contains("410"))),
            _ => assert!(matches!(sign, Sign::Failed(_)), "{status}"),
        }
        assert_eq!(server.seen.requests().len(), 1, "{status}: no redirect is followed");
    }
}

/// HTTP-07, and what a receiver repeats.
#[tokio::test]
async fn no_outcome_shows_what_a_url_or_a_secret_holds() {
    let server = Server::start(|mut connection| async move {
        while connection.read().await {
            let said = "/hooks/T0/SECRET-PATH?token=SECRET-QUERY and C2FVsBQIhrscChlQIMV+b5sSYspob7oD";
            connection.write(&answer(500, "", said)).await;
        }
    })
    .await;
    let url = format!("{}/hooks/T0/SECRET-PATH?token=SECRET-QUERY", server.url);
    let heard = deliver(&with_acme(&url, ""), effect()).await;
    let dead = with_acme("http://127.0.0.1:1/hooks/T0/SECRET-PATH?token=SECRET-QUERY", "");
    let refused = deliver(&dead, effect()).await;
    assert_eq!((refused.finding, refused.phase), (Finding::NotApplied, Phase::Connect), "{}", refused.reason);
    let signs = format!("{:?} {:?}", noted(&dead, "acme"), dead.downstream.directory().unwrap().all());
    let body = String::from_utf8(heard.response.as_ref().unwrap().body.clone()).unwrap();
    let all = format!("{} {body} {} {signs}", heard.reason, refused.reason);
    for secret in ["SECRET-PATH", "SECRET-QUERY", "C2FVsBQIhrscChlQIMV"] {
        assert!(!all.contains(secret), "{all}");
    }
    assert!(refused.reason.contains("127.0.0.1:1"), "the host is said: {}", refused.reason);
}

#[tokio::test]
async fn a_row_is_called_and_can_read_no_secret_that_the_configuration_does_not_allow() {
    let server = Server::answering(answer(204, "", "")).await;
    let port = server.url.rsplit_once(':').unwrap().1;
    let served = served(&format!(
        "secrets_from = [\"env:HOOK_\", \"file:/run/secrets/hooks/\"]\n\
         egress = {{ allow = [\"127.0.0.1\"], http = true, ports = [{port}] }}\n"
    ));
    let acme = |secrets: &str| row("acme", &format!("{}/x", server.url), secrets);
    rows(&served, vec![acme("env:HOOK_ACME env:HOOK_NEXT")]);
    assert_eq!(deliver(&served, effect()).await.finding, Finding::Applied);
    let signed = header(&server.seen.requests()[0], "webhook-signature").to_owned();
    assert!(signed.starts_with("v1,") && signed.contains(" v1a,"), "{signed}");
    for secrets in [
        "env:PGPASSWORD",
        "env:HOOK_",
        "PGPASSWORD",
        "file:/etc/passwd",
        "file:/run/secrets/hooks/../db",
        "env:HOOK_ACME env:PGPASSWORD",
        "file:/run/secrets/hooks/",
        "env:HOOK_BROKEN",
        "env:HOOK_UNSET",
    ] {
        rows(&served, vec![acme(secrets)]);
        let outcome = deliver(&served, effect()).await;
        assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Render), "{secrets}");
        assert!(!outcome.refuses_us && !outcome.reason.contains("hunter2"), "{}", outcome.reason);
    }
    assert_eq!(server.seen.requests().len(), 1, "nothing went out unsigned");
}

/// SSRF-01: the guard itself is held to three hundred URLs by the tests of `http`; here, that every endpoint passes it.
#[tokio::test]
async fn an_endpoint_reaches_nothing_inside_whoever_wrote_it() {
    let trap = Server::answering(answer(204, "", "")).await;
    let port = trap.url.rsplit_once(':').unwrap().1;
    let served =
        served(&format!("secrets_from = [\"env:HOOK_\"]\negress = {{ http = true, ports = [{port}] }}\n"));
    for host in [
        "127.0.0.1",
        "127.1",
        "0x7f000001",
        "2130706433",
        "0177.0.0.1",
        "localhost",
        "localhost.",
        "sub.localhost",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[64:ff9b::7f00:1]",
        "[::]",
        "0.0.0.0",
        "169.254.169.254",
        "10.0.0.1",
        "user@127.0.0.1",
        "127.0.0.1#@example.com",
        "①②⑦.0.0.1",
        "[fe80::1%25lo]",
    ] {
        rows(&served, vec![row("acme", &format!("http://{host}:{port}/"), "env:HOOK_ACME")]);
        let outcome = deliver(&served, effect()).await;
        unsent(&outcome, "its URL");
        assert!(noted(&served, "acme").is_none(), "{host}");
    }
    assert!(trap.seen.requests().is_empty());
}

#[tokio::test]
async fn rows_that_were_read_long_ago_send_nothing_until_they_are_read_again() {
    let server = Server::answering(answer(204, "", "")).await;
    let served = with_acme_unread(&server.url, "");
    let directory = served.downstream.directory().unwrap();
    directory.put(Reading { asked: 0, at: Boot::default() }, vec![]);
    let short = Attempt { timeout: Duration::from_millis(20), ..attempt(effect(), Ok(())) };
    let outcome = served.downstream.deliver(&short).await;
    assert_eq!((outcome.finding, outcome.phase), (Finding::NotApplied, Phase::Render), "{outcome:?}");
    assert!(outcome.reason.contains("could not be read"), "{}", outcome.reason);
    assert!(server.seen.requests().is_empty());
    let reading = async {
        directory.wanted().await;
        directory.put(directory.begin_reading(), vec![]);
    };
    let (outcome, ()) = tokio::join!(deliver(&served, effect()), reading);
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
}
