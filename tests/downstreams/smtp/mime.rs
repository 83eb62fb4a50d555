//! SMTP-11, trap T17: what was meant arrives, as a reader that nobody here wrote reads it.

use aftercommit::outcome::Finding;
use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde_json::json;

use super::{
    receiver::{Receiver, bytes},
    send, served,
};
use crate::support::Chance;

/// Lines as mail has them, the last one ended.
fn normal(text: &str) -> String {
    let lines = text.replace("\r\n", "\n").replace('\r', "\n");
    lines.strip_suffix('\n').unwrap_or(&lines).replace('\n', "\r\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_part_of_a_mail_arrives_as_it_was_meant() {
    let mut receiver = Receiver::start(&[], &[]);
    let served = served(&format!("server = \"smtp://127.0.0.1:{}\"\n", receiver.port));
    let file: Vec<u8> = (0..=255).cycle().take(5000).collect();
    let long = "x".repeat(2000);
    let extra = "ü ".repeat(100).trim_end().to_owned();
    let text =
        format!(".\r\n..\n. dot\n\r\n.\r\nMAIL FROM:<x@y>\r{long}\nFrom me\n= equals =3D\n trailing \t\nend");
    let mail = json!({
        "from": "Jürgen \"J\" Müller <jm@shop.test>", "to": ["\"Ann, of sales\" <ann@shop.test>"],
        "cc": [{"name": "日本語の名前がとても長い場合はどうなりますか", "address": "cc@bücher.test"}], "bcc": "hidden@shop.test", "reply_to": "help@shop.test",
        "subject": "Über =?utf-8?Q?alles?=  ☃ and so on, longer than a line can be, with  two spaces", "text": text, "html": "<p>ü</p><img src=\"cid:logo\">",
        "headers": {"X-Extra": extra},
        "attachments": [
            {"filename": "tür & \"tor\"; a=b.bin", "content": STANDARD.encode(&file)},
            {"filename": "list.csv", "content_type": "text/csv; charset=utf-8", "text": "a;b\n1;2"},
            {"filename": "logo.png", "content_type": "image/png", "content": STANDARD.encode([1, 2, 3]), "inline": "logo"},
        ],
    });
    let outcome = send(&served, "order 17:mail", &mail, Some("ann@shop.test")).await;
    assert_eq!(outcome.finding, Finding::Applied, "{outcome:?}");
    let got = receiver.next();
    assert_eq!((&got["sender"], &got["recipients"]), (&json!("jm@shop.test"), &json!(["ann@shop.test"])));
    assert_eq!(got["id"], "<order=2017=3Amail$mail@shop.test>");
    assert_eq!(got["from"], json!([["Jürgen \"J\" Müller", "jm@shop.test"]]));
    assert_eq!(got["to"], json!([["Ann, of sales", "ann@shop.test"]]));
    assert_eq!(got["cc"], json!([["日本語の名前がとても長い場合はどうなりますか", "cc@xn--bcher-kva.test"]]));
    assert_eq!((&got["subject"], &got["extra"]), (&mail["subject"], &mail["headers"]["X-Extra"]));
    assert_eq!(String::from_utf8(bytes(&got["text"])).unwrap(), normal(&text));
    assert_eq!(String::from_utf8(bytes(&got["html"])).unwrap(), "<p>ü</p><img src=\"cid:logo\">");
    let files: Vec<_> = got["files"]
        .as_array()
        .unwrap()
        .iter()
        .map(|file| (file[0].as_str(), file[1].as_str(), bytes(&file[2])))
        .collect();
    assert_eq!(files.len(), 3);
    for expected in [
        (Some("tür & \"tor\"; a=b.bin"), Some("application/octet-stream"), file),
        (Some("list.csv"), Some("text/csv"), b"a;b\n1;2".to_vec()),
        (Some("logo.png"), Some("image/png"), vec![1, 2, 3]),
    ] {
        assert!(files.contains(&expected), "{:?}", expected.0);
    }
    assert_eq!(got["defects"], json!([]));
    assert!(got["longest"].as_u64().unwrap() <= 998);
    let raw = String::from_utf8(bytes(&got["raw"])).unwrap();
    assert!(!raw.contains("hidden@shop.test") && raw.is_ascii());
    // The same bytes on every attempt.
    send(&served, "order 17:mail", &mail, Some("ann@shop.test")).await;
    assert_eq!(receiver.next()["raw"], got["raw"]);
}

/// What a text is made of.
const LINES: &[&str] = &[
    "\r\n",
    "\n",
    "\r",
    ".",
    "..",
    "\r\n.\r\n",
    " ",
    "\t",
    "=",
    "=0D",
    "a",
    "Ünï",
    "日本",
    "☃️",
    "\u{1f600}",
    "-",
    "--",
    "From ",
    "word ",
    "averyveryveryveryveryveryveryverylongword",
    "\u{7f}",
    "é\u{301}",
];

/// What a subject and a name are made of.
const WORDS: &[&str] = &[
    " ",
    "a",
    "word ",
    "Ü",
    "日本語",
    "\"",
    "\\",
    "(",
    ")",
    "<",
    ">",
    ",",
    ";",
    ":",
    "@",
    "=?utf-8?B?",
    "?=",
    "=?",
    "_",
    ".",
    "\u{1f600}",
    "averyveryveryveryveryveryveryveryveryveryveryveryveryveryveryveryveryveryverylongword",
    "'",
    "e\u{301}",
];

fn random_text(chance: &mut Chance, pieces: &[&str], longest: u64) -> String {
    let mut text = String::new();
    for _ in 0..chance.below(longest) {
        text.push_str(pieces[usize::try_from(chance.below(pieces.len() as u64)).unwrap()]);
    }
    text
}

/// A property test with one server: the seed is printed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_mails_arrive_equal() {
    let mut chance = Chance::seeded();
    let mut receiver = Receiver::start(&[], &[]);
    let served = served(&format!("server = \"smtp://127.0.0.1:{}\"\n", receiver.port));
    for round in 0..150 {
        let (text, html) = (random_text(&mut chance, LINES, 60), random_text(&mut chance, LINES, 20));
        let (subject, name) = (random_text(&mut chance, WORDS, 30), random_text(&mut chance, WORDS, 12));
        let mut mail = json!({
            "from": "shop@shop.test", "to": {"name": name, "address": "ann@shop.test"}, "subject": subject, "text": text,
        });
        if round % 2 == 0 {
            mail["html"] = json!(html);
        }
        let outcome = send(&served, &format!("key-{round}"), &mail, None).await;
        assert_eq!(outcome.finding, Finding::Applied, "{mail}\n{outcome:?}");
        let got = receiver.next();
        // White space at the ends and in a row is a reader's to show: RFC 5322 §2.2.3 folds it.
        let words = |text: &str| text.split_whitespace().collect::<Vec<_>>().join(" ");
        assert_eq!(words(got["subject"].as_str().unwrap()), words(&subject), "{mail}\n{got}");
        assert_eq!(words(got["to"][0][0].as_str().unwrap()), words(&name), "{mail}\n{got}");
        assert_eq!(got["to"][0][1], "ann@shop.test", "{mail}\n{got}");
        let arrived = |field: &str| String::from_utf8(bytes(&got[field])).unwrap();
        assert_eq!(normal(&arrived("text")), normal(&text), "{mail}\n{got}");
        if round % 2 == 0 {
            assert_eq!(normal(&arrived("html")), normal(&html), "{mail}\n{got}");
        }
        assert_eq!(got["defects"], json!([]), "{mail}");
    }
}
