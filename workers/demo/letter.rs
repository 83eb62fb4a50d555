//! A mail as people read it: from, to, subject, text. As much of MIME as that needs, and tolerant: what cannot be read is shown as
//! it came.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use serde::Serialize;

/// Parts within parts are followed so far.
const DEPTH_MAX: usize = 8;
/// As much of a text is kept.
const TEXT_MAX: usize = 20_000;

/// A mail that was caught.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct Letter {
    pub(super) from: String,
    /// What the header says.
    pub(super) to: String,
    /// Whom it was sent to.
    pub(super) recipients: Vec<String>,
    pub(super) subject: String,
    pub(super) message_id: String,
    pub(super) text: String,
}

impl Letter {
    /// Reads what came after DATA.
    pub(super) fn read(recipients: Vec<String>, message: &[u8]) -> Self {
        let message = String::from_utf8_lossy(message).replace("\r\n", "\n");
        let (head, body) = message.split_once("\n\n").unwrap_or((&message, ""));
        let headers = unfolded(head);
        let header = |name: &str| decoded(&value(&headers, name));
        Self {
            from: header("from"),
            to: header("to"),
            recipients,
            subject: header("subject"),
            message_id: header("message-id"),
            text: text(&headers, body, 0).unwrap_or_default().chars().take(TEXT_MAX).collect(),
        }
    }
}

fn unfolded(head: &str) -> String {
    head.replace("\n ", " ").replace("\n\t", " ")
}

fn value(headers: &str, name: &str) -> String {
    headers
        .lines()
        .filter_map(|line| line.split_once(':'))
        .find(|(found, _)| found.eq_ignore_ascii_case(name))
        .map(|(_, value)| value.trim().to_owned())
        .unwrap_or_default()
}

/// The first part that is text.
fn text(headers: &str, body: &str, depth: usize) -> Option<String> {
    let kind = value(headers, "content-type");
    let lower = kind.to_ascii_lowercase();
    if lower.starts_with("multipart/") && depth < DEPTH_MAX {
        let at = lower.find("boundary=")? + "boundary=".len();
        let boundary = kind[at..].trim_start_matches('"').split(['"', ';']).next()?;
        return body.split(&format!("--{boundary}")).skip(1).find_map(|part| {
            let (head, body) = part.strip_prefix('\n').unwrap_or(part).split_once("\n\n")?;
            text(&unfolded(head), body.strip_suffix('\n').unwrap_or(body), depth + 1)
        });
    }
    if !(lower.is_empty() || lower.starts_with("text/")) {
        return None;
    }
    Some(match value(headers, "content-transfer-encoding").to_ascii_lowercase().as_str() {
        "quoted-printable" => lossy(&quoted_printable(body.as_bytes())),
        "base64" => {
            let packed: String = body.split_ascii_whitespace().collect();
            STANDARD.decode(packed).map_or_else(|_unreadable| body.to_owned(), |bytes| lossy(&bytes))
        }
        _ => body.to_owned(),
    })
}

fn lossy(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).replace("\r\n", "\n")
}

fn quoted_printable(bytes: &[u8]) -> Vec<u8> {
    let (mut plain, mut at) = (Vec::with_capacity(bytes.len()), 0);
    while let Some(byte) = bytes.get(at) {
        let code = bytes
            .get(at + 1..at + 3)
            .and_then(|code| u8::from_str_radix(std::str::from_utf8(code).ok()?, 16).ok());
        match (byte, code) {
            (b'=', Some(code)) => {
                plain.push(code);
                at += 3;
            }
            (b'=', None) if bytes.get(at + 1) == Some(&b'\n') => at += 2,
            _ => {
                plain.push(*byte);
                at += 1;
            }
        }
    }
    plain
}

/// With its encoded words (RFC 2047) in letters; the space between two of them belongs to nobody.
fn decoded(value: &str) -> String {
    let (mut plain, mut rest, mut glued) = (String::new(), value, false);
    while let Some((before, word)) = rest.split_once("=?") {
        let mut parts = word.splitn(4, '?');
        let (charset, coding, coded, more) = (parts.next(), parts.next(), parts.next(), parts.next());
        let bytes = match (coding, coded) {
            (Some("B" | "b"), Some(coded)) => STANDARD.decode(coded).ok(),
            (Some("Q" | "q"), Some(coded)) => Some(quoted_printable(coded.replace('_', " ").as_bytes())),
            _ => None,
        };
        match (charset, bytes, more.and_then(|more| more.strip_prefix('='))) {
            (Some(_), Some(bytes), Some(more)) => {
                if !(glued && before.trim().is_empty()) {
                    plain.push_str(before);
                }
                plain.push_str(&lossy(&bytes));
                (rest, glued) = (more, true);
            }
            _ => {
                plain.push_str(before);
                plain.push_str("=?");
                (rest, glued) = (word, false);
            }
        }
    }
    plain.push_str(rest);
    plain
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mail_is_read_as_people_read_it() {
        let message = b"From: \"Shop\" <shop@shop.test>\r\nTo: ann@shop.test\r\nSubject: =?utf-8?B?w5xiZXI=?=\r\n =?utf-8?B?cmFzY2h1bmc=?= now\r\n\
            MIME-Version: 1.0\r\nContent-Type: multipart/mixed;\r\n boundary=\"xyz\"\r\n\r\n--xyz\r\nContent-Type: text/plain; charset=utf-8\r\n\
            Content-Transfer-Encoding: quoted-printable\r\n\r\none =E2=82=AC and=\r\n two\r\n--xyz--\r\n";
        let letter = Letter::read(vec!["ann@shop.test".to_owned()], message);
        assert_eq!((letter.subject.as_str(), letter.text.as_str()), ("Überraschung now", "one € and two"));
        assert_eq!(letter.from, "\"Shop\" <shop@shop.test>");
    }

    #[test]
    fn nothing_that_came_takes_it_down() {
        for message in [
            &b""[..],
            b"\r\n\r\n",
            b"\xff\xfe",
            b"Subject: =?",
            b"Subject: =?utf-8?B?%%?= x\r\n\r\nbody",
            b"Content-Type: multipart/mixed; boundary=\r\n\r\n--",
            b"Content-Type: multipart/mixed\r\n\r\nx",
            "Content-Transfer-Encoding: base64\r\n\r\nno base64 é".as_bytes(),
            b"Content-Transfer-Encoding: quoted-printable\r\n\r\n=\xe2\x82=",
        ] {
            Letter::read(Vec::new(), message);
        }
    }
}
