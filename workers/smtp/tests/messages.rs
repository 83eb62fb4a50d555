//! SMTP-11 and trap T17: what a payload becomes, byte for byte, and what is refused before anybody is called.

use aftercommit::outcome::Phase;

use super::{
    super::{address::Mailbox, mail::Mail, render},
    deliver, effect, is_rejected, served_at,
    server::{Script, Server},
};

fn rendered(payload: &str) -> Result<String, String> {
    let effect = effect(payload);
    let mail = Mail::of(&effect, None)?;
    let rendered = render::render(&mail, &effect, &effect.key, Some("X-Key"))?;
    Ok(String::from_utf8(rendered).unwrap())
}

#[test]
fn a_mail_is_these_bytes() {
    let payload = r#"{"from":"Shop <shop@shop.test>","to":["Ann <ann@shop.test>"],"cc":[],"reply_to":"help@shop.test","subject":"Your order","text":"one\n.\ntwo\r\n","headers":{"X-Tenant":"blue"}}"#;
    let expected = "From: \"Shop\" <shop@shop.test>\r\nTo: \"Ann\" <ann@shop.test>\r\nReply-To: help@shop.test\r\nSubject: Your order\r\n\
        Message-ID: <order-17/mail$mail@shop.test>\r\nX-Key: order-17/mail\r\nX-Tenant: blue\r\nDate: Mon, 21 Sep 2026 14:13:20 +0000\r\n\
        MIME-Version: 1.0\r\nContent-Type: text/plain; charset=utf-8\r\nContent-Transfer-Encoding: quoted-printable\r\n\r\none\r\n.\r\ntwo\r\n";
    assert_eq!(rendered(payload).unwrap(), expected);
}

#[test]
fn a_mail_is_the_same_on_every_attempt() {
    let payload = r#"{"from":"shop@shop.test","to":"ann@shop.test","subject":"Ünïcode","text":"a","html":"<img src=\"cid:x\">",
        "attachments":[{"filename":"a b.txt","text":"x"},{"filename":"é.png","content_type":"image/png","content":"AAEC","inline":"x"}]}"#;
    let first = rendered(payload).unwrap();
    for _ in 0..5 {
        assert_eq!(rendered(payload).unwrap(), first);
    }
    let kinds: Vec<_> =
        ["mixed", "alternative", "related"].into_iter().map(|kind| first.matches(kind).count()).collect();
    assert_eq!(kinds, [1, 1, 1], "{first}");
    assert!(first.is_ascii() && first.lines().all(|line| line.len() <= 78), "{first}");
}

#[test]
fn who_gets_a_blind_copy_is_in_no_header() {
    let payload = r#"{"from":"shop@shop.test","bcc":"secret@shop.test","text":"x"}"#;
    let mail = rendered(payload).unwrap();
    assert!(!mail.contains("secret") && mail.contains("\r\nTo: undisclosed-recipients:;\r\n"), "{mail}");
}

#[test]
fn what_cannot_be_a_mail_is_refused_with_a_sentence() {
    let with = |more: &str| format!(r#"{{"from":"shop@shop.test","text":"x",{more}}}"#);
    for (payload, says) in [
        (with(r#""to":"a@x.test>\r\nRCPT TO:<b@x.test""#), "line break"),
        (with(r#""to":"a@x.test\u0000""#), "line break or a control"),
        (with(r#""to":"a b@x.test""#), "no mail address"),
        (with(r#""to":"a@x.test, b@x.test""#), "no mail address"),
        (with(r#""to":"a@x.test> SIZE=1 <b@x.test>""#), "no mail address"),
        (with(r#""to":"ann""#), "no mail address"),
        (with(r#""to":"@x.test""#), "no mail address"),
        (with(r#""to":"a@%0d%0a.test""#), "no mail address"),
        (with(r#""to":"a@1.2.3.4""#), "no mail address"),
        (with(&format!(r#""to":"{}@x.test""#, "a".repeat(320))), "no mail address"),
        (with(r#""to":17"#), "must be a string"),
        (with(r#""to":["a@x.test","b@x.test"]"#), "several recipients"),
        (with(r#""to":"a@x.test","bcc":"b@x.test""#), "several recipients"),
        (with(r#""cc":null"#), "no recipient"),
        (with(r#""to":"a@x.test","subject":"a\nBcc: b@x.test""#), "line break"),
        (with(r#""to":"a@x.test","headers":{"X-A":"b\r\nBcc: c@x.test"}"#), "line break"),
        (with(r#""to":"a@x.test","headers":{"X-A\r\nBcc":"c@x.test"}"#), "no name of a header"),
        (with(r#""to":"a@x.test","headers":{"bcc":"c@x.test"}"#), "not yours to set"),
        // A list in one string: nobody's mail may go to the last of it only.
        (with(r#""to":"\"Ann\" <a@x.test>, \"Bob\" <b@x.test>""#), "write a list of strings"),
        (with(r#""to":"\"Ann\" <a@x.test>; \"Bob\" <b@x.test>""#), "write a list of strings"),
        (with(r#""to":"Ann; Bob <b@x.test>""#), "write a list of strings"),
        (with(r#""to":"a@x.test","cc":"\"A\" <a@x.test>, \"B\" <b@x.test>""#), "write a list of strings"),
        (
            with(r#""to":"a@x.test","reply_to":"\"A\" <a@x.test>, \"B\" <b@x.test>""#),
            "write a list of strings",
        ),
        (with(r#""to":"\"Ann\" <a@x.test>, \"b\"@x.test""#), "is no mail address"),
        (with(r#""to":{"address":"\"A\" <a@x.test>, \"B\" <b@x.test>"}"#), "is no mail address"),
        (with(&format!(r#""to":[{}"a@x.test"]"#, r#""a@x.test","#.repeat(100))), "more than 100 recipients"),
        (with(r#""to":"a@x.test","headers":{"MESSAGE-ID":"<c@x.test>"}"#), "not yours to set"),
        (with(r#""to":"a@x.test","headers":{"Content-Type":"text/html"}"#), "not yours to set"),
        (with(r#""to":"a@x.test","headers":{"X-Key":"other"}"#), "carries the key"),
        (with(r#""to":"a@x.test","headers":{"X-A":"1","x-a":"2"}"#), "twice"),
        (with(r#""to":"a@x.test","headers":[]"#), "object of strings"),
        (with(r#""to":"a@x.test","subjet":"x""#), "none of from, to"),
        (with(r#""to":"a@x.test","reply_to":"x\ny@x.test""#), "line break"),
        (with(r#""to":{"name":"A\r\nB","address":"a@x.test"}"#), "line break"),
        (with(r#""to":"a@x.test","attachments":[{"filename":"a\nb","text":"x"}]"#), "line break"),
        (with(r#""to":"a@x.test","attachments":[{"filename":"a","content":"%%"}]"#), "base64"),
        (with(r#""to":"a@x.test","attachments":[{"filename":"a"}]"#), "either content"),
        (with(r#""to":"a@x.test","attachments":[{"text":"a"}]"#), "filename"),
        (
            with(
                r#""to":"a@x.test","attachments":[{"filename":"a","text":"x","content_type":"message/rfc822"}]"#,
            ),
            "octet-stream",
        ),
        (
            with(r#""to":"a@x.test","attachments":[{"filename":"a","text":"x","content_type":"pdf"}]"#),
            "application/pdf",
        ),
        (with(r#""to":"a@x.test","attachments":[{"filename":"a","text":"x","inline":"x"}]"#), "needs html"),
        (with(r#""to":"a@x.test","attachments":[{"text":"x","inline":"x>"}]"#), "inline"),
        (r#"{"from":"shop@shop.test","to":"a@x.test"}"#.to_owned(), "no text, html"),
        (r#"{"to":"a@x.test","text":"x"}"#.to_owned(), "no from"),
        (r#"{"from":["a@x.test","b@x.test"],"to":"a@x.test","text":"x"}"#.to_owned(), "one address"),
        ("[]".to_owned(), "must be an object"),
        ("{".to_owned(), "is not JSON"),
    ] {
        let refused = rendered(&payload).expect_err(&payload);
        assert!(refused.contains(says), "{payload}: {refused}");
        assert!(!refused.contains(['\r', '\n']), "{refused:?}");
    }
}

/// SMTP-11: the commands of a mail are its own.
#[tokio::test]
async fn nothing_is_said_to_a_server_that_an_address_made_up() {
    let server = Server::start([Script::default()]).await;
    let served = served_at(server.port, "");
    for to in [
        "a@x.test>\\r\\nRCPT TO:<b@x.test",
        "a@x.test\\r\\nDATA",
        "<a@x.test>\\u2028x",
        "\\\"a\\r\\nb\\\"@x.test",
    ] {
        let outcome =
            deliver(&served, effect(&format!(r#"{{"from":"a@shop.test","text":"x","to":"{to}"}}"#))).await;
        assert!(is_rejected(&outcome) && outcome.phase == Phase::Render, "{outcome:?}");
        assert!(outcome.reason.starts_with("not sent: "), "{outcome:?}");
    }
    assert_eq!(server.connections(), 0);
    // A quoted local part is legal, and stays what it is.
    let quoted = r#"{"from":"a@shop.test","text":"x","to":"\"a b> c\"@x.test"}"#;
    let outcome = deliver(&served, effect(quoted)).await;
    assert!(!is_rejected(&outcome), "{outcome:?}");
    assert!(server.commands().contains(&"RCPT TO:<\"a b> c\"@x.test>".to_owned()), "{:?}", server.commands());
}

#[test]
fn an_address_may_have_a_name_in_the_usual_forms() {
    for (text, name, address) in [
        ("ann@shop.test", None, "ann@shop.test"),
        (" <ann@shop.test>", None, "ann@shop.test"),
        ("Ann Lee <ann@shop.test>", Some("Ann Lee"), "ann@shop.test"),
        ("\"Lee, Ann \\\"A\\\"\" <ann@shop.test>", Some("Lee, Ann \"A\""), "ann@shop.test"),
        ("ann@SHOP.test", None, "ann@shop.test"),
        ("ann@bücher.test", None, "ann@xn--bcher-kva.test"),
        ("ann@[192.0.2.1]", None, "ann@[192.0.2.1]"),
    ] {
        let mailbox = Mailbox::parse(text).unwrap_or_else(|problem| panic!("{text}: {problem}"));
        assert_eq!(
            (mailbox.name.as_deref(), mailbox.address.to_string().as_str()),
            (name, address),
            "{text}"
        );
    }
}

#[test]
fn a_target_chooses_among_several_recipients() {
    let payload = r#"{"from":"shop@shop.test","to":["a@x.test","b@x.test"],"text":"x"}"#;
    let mut several = effect(payload);
    several.target = Some("b@x.test".to_owned());
    let mail = Mail::of(&several, None).unwrap();
    assert_eq!(mail.recipient.to_string(), "b@x.test");
    assert_eq!(mail.to.len(), 2, "everybody sees who else got it");
    several.target = Some("b@x.test\r\nRCPT TO:<c@x.test>".to_owned());
    assert!(Mail::of(&several, None).unwrap_err().starts_with("target: "));
}
