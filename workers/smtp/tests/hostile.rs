//! Servers that mean harm, and ours: nothing they say takes the worker down, fills its memory, holds it, or reaches a log.
//! HTTP-07 for mail.

use aftercommit::outcome::Finding;

use super::{
    MAIL, deliver, deliver_to, effect, served_at,
    server::{Say, Script, Server, say},
};

#[tokio::test]
async fn replies_without_an_end_are_given_up_within_the_time_and_the_bound() {
    for bytes in [
        vec![b'2'; 10_000_000],
        b"250-more\r\n".repeat(100_000),
        [b"250-".to_vec(), vec![b'x'; 5000], b"\r\n".to_vec()].concat(),
        vec![0xff; 10_000],
        b"\r\n\r\n\r\n".to_vec(),
        b"250 one\r\n250 two\r\n250 three\r\n".to_vec(),
    ] {
        for part in ["greeting", "ehlo", "rcpt"] {
            let mut script = Script::default();
            match part {
                "greeting" => script.greeting = Say::Bytes(bytes.clone()),
                "ehlo" => script.ehlo = Say::Bytes(bytes.clone()),
                _ => script.rcpt = Say::Bytes(bytes.clone()),
            }
            let outcome = deliver_to(&Server::start([script]).await, MAIL).await;
            let shown =
                format!("{part} {:?}: {outcome:?}", String::from_utf8_lossy(&bytes[..20.min(bytes.len())]));
            assert_eq!(outcome.finding, Finding::NotApplied, "{shown}");
            assert!(outcome.reason.len() < 2000, "{shown}");
        }
    }
}

#[tokio::test]
async fn a_reply_is_shown_as_one_harmless_line() {
    let reply = Say::Bytes(b"550-\x1b[2Jgo\x07 away\r\n550 \xff\xfe\xe2\x80\xaenow\r\n".to_vec());
    let outcome = deliver_to(&Server::start([Script { rcpt: reply, ..Script::default() }]).await, MAIL).await;
    assert!(outcome.reason.chars().all(|c| !c.is_control() && c != '\u{202e}'), "{outcome:?}");
    assert!(outcome.reason.contains("go\u{fffd} away"), "{outcome:?}");
}

#[tokio::test]
async fn a_password_is_in_no_reason_although_the_server_repeats_it() {
    let auth = "auth = { user = \"bob\", password = { env = \"PASSWORD\" } }\n";
    let encoded = "c2VrcmV0LXdvcmQtMTc=";
    for (refusal, refuses_us) in [
        (
            "535 5.7.8 sekret-word-17 is wrong, AGJvYgBzZWtyZXQtd29yZC0xNw== too, and c2VrcmV0LXdvcmQtMTc=",
            true,
        ),
        ("534 mechanism too weak", true),
        ("530 must issue STARTTLS first", true),
        ("454 temporarily", false),
        ("421 closing", false),
    ] {
        for ehlo in ["250 AUTH PLAIN LOGIN", "250 AUTH LOGIN"] {
            let ehlo = say(&format!("250-x\r\n{ehlo}"));
            let server = Server::start([Script { auth: say(refusal), ehlo, ..Script::default() }]).await;
            let outcome = deliver(&served_at(server.port, auth), effect(MAIL)).await;
            assert_eq!(
                (outcome.finding, outcome.refuses_us),
                (Finding::NotApplied, refuses_us),
                "{outcome:?}"
            );
            let shown = format!(
                "{outcome:?} {}",
                String::from_utf8_lossy(&outcome.response.clone().unwrap_or_default().body)
            );
            for secret in ["sekret-word-17", encoded, "AGJvYgBzZWtyZXQtd29yZC0xNw"] {
                assert!(!shown.contains(secret), "{shown}");
            }
        }
    }
}

#[tokio::test]
async fn credentials_do_not_travel_in_the_clear_unless_that_was_said() {
    let auth = "auth = { user = \"bob\", password = { env = \"PASSWORD\" } }\n";
    let server = Server::start([Script::default()]).await;
    // Required by name, although it is this machine: the server offers no TLS.
    for (tls, finding) in [("required", Finding::NotApplied), ("none", Finding::Applied)] {
        let served = served_at(server.port, &format!("{auth}tls = \"{tls}\"\n"));
        let outcome = deliver(&served, effect(MAIL)).await;
        assert_eq!(outcome.finding, finding, "{outcome:?}");
        assert_eq!(outcome.refuses_us, finding == Finding::NotApplied, "{outcome:?}");
    }
    let auths = server.commands().into_iter().filter(|command| command.starts_with("AUTH")).count();
    assert_eq!(auths, 1, "only where it was said");
}

/// CVE-2011-0411.
#[tokio::test]
async fn what_was_said_before_tls_is_not_taken_for_said_within() {
    for (starttls, why) in
        [(say("220 go on\r\n250 injected"), "out of turn"), (say("454 no TLS now"), "refused STARTTLS")]
    {
        let ehlo = say("250-shop.test\r\n250 STARTTLS");
        let server = Server::start([Script { ehlo, starttls, ..Script::default() }]).await;
        let outcome = deliver(&served_at(server.port, "tls = \"opportunistic\"\n"), effect(MAIL)).await;
        assert_eq!((outcome.finding, outcome.refuses_us), (Finding::NotApplied, false), "{outcome:?}");
        assert!(outcome.reason.contains(why), "{outcome:?}");
        assert!(server.messages().is_empty());
    }
}
