//! A real mail server: exim, which delivers into a Maildir. Cases SMTP-05 and SMTP-07.

use std::{path::PathBuf, time::Duration};

use aftercommit::{
    check::Level,
    outcome::{About, Finding},
};
use serde_json::json;

use super::{send, served};
use crate::support::eventually;

fn required(variable: &str) -> String {
    std::env::var(variable)
        .unwrap_or_else(|_| panic!("{variable} is not set: run the tests through ./tests/run"))
}

fn exim() -> String {
    format!("server = \"{}\"\nfrom = \"shop@shop.test\"\n", required("AFTERCOMMIT_TEST_SMTP"))
}

/// How many mails of the Maildir hold `text`.
fn delivered(text: &str) -> usize {
    let folder = PathBuf::from(required("AFTERCOMMIT_TEST_MAILDIR")).join("new");
    let files = std::fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok);
    files
        .filter(|file| {
            std::fs::read(file.path()).is_ok_and(|mail| String::from_utf8_lossy(&mail).contains(text))
        })
        .count()
}

fn unique(name: &str) -> String {
    format!("{name}-{}", uuid::Uuid::new_v4())
}

#[tokio::test]
async fn one_recipient_s_refusal_changes_nothing_for_the_others() {
    let served = served(&exim());
    let mail = json!({
        "to": ["ann@shop.test", "nobody@shop.test"], "cc": "full@shop.test", "subject": "Your order", "text": "On its way.\n",
    });
    for (recipient, finding, status) in [
        ("ann@shop.test", Finding::Applied, 250),
        ("nobody@shop.test", Finding::Rejected(About::ThisAttempt), 550),
        ("full@shop.test", Finding::NotApplied, 451),
    ] {
        let key = unique(recipient);
        let outcome = send(&served, &key, &mail, Some(recipient)).await;
        assert_eq!((outcome.finding, outcome.status()), (finding, Some(status)), "{outcome:?}");
        let id = format!("Message-ID: <{}$mail@shop.test>", key.replace('@', "=40"));
        if finding == Finding::Applied {
            eventually(Duration::from_secs(20), "exim delivers", async || (delivered(&id) > 0).then_some(()))
                .await;
        }
        assert_eq!(delivered(&id), usize::from(finding == Finding::Applied));
    }
    // Relaying is refused with the server's words.
    let outcome = send(&served, "away", &json!({"to": "ann@elsewhere.test", "text": "x"}), None).await;
    assert!(
        matches!(outcome.finding, Finding::Rejected(_)) && outcome.reason.contains("relay not permitted"),
        "{outcome:?}"
    );
}

#[tokio::test]
async fn a_local_part_beyond_ascii_and_an_international_domain_arrive() {
    let served = served(&exim());
    let key = unique("utf8");
    let outcome = send(&served, &key, &json!({"to": "jürgen@shop.test", "text": "x"}), None).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    eventually(Duration::from_secs(20), "exim delivers", async || (delivered(&key) > 0).then_some(())).await;
}

#[tokio::test]
async fn a_look_at_the_server_goes_as_far_as_a_session_and_sends_nothing() {
    let looked = served(&exim()).downstream.check(Duration::from_secs(10)).await;
    assert!(looked.len() >= 4 && looked.iter().all(|check| check.level == Level::Ok), "{looked:?}");
    assert!(looked.iter().any(|check| check.found.contains("SMTPUTF8")), "{looked:?}");
    let auth = "auth = { user = \"bob\", password = { env = \"PASSWORD\" } }\n";
    let looked = served(&format!("{}{auth}", exim())).downstream.check(Duration::from_secs(10)).await;
    let last = looked.last().expect("it looked");
    assert_eq!((last.check, last.level), ("auth", Level::Fail), "exim offers no AUTH here: {looked:?}");
    assert!(last.remedy.is_some() && !format!("{looked:?}").contains("sekret"), "{looked:?}");
}
