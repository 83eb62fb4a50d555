//! An answer as it is stored, and sent again.

use std::ops::Range;

use bytes::Bytes;
use http::{HeaderName, HeaderValue, StatusCode, header, response};

use crate::guard::Answer;

/// Says that an answer is a stored one.
pub(super) const REPLAYED: &str = "idempotent-replayed";

/// Not stored, because they are the server's own business with this very connection: it writes them itself, for the replay
/// as for the first answer (the length and the framing follow from the body, the date is that of the sending). The others
/// would be wrong on another connection. Trailers are not stored either, nor is whether the handler got its answer from
/// somewhere that replayed it.
const SERVERS_OWN: [&str; 11] = [
    "content-length",
    "transfer-encoding",
    "connection",
    "keep-alive",
    "proxy-connection",
    "te",
    "trailer",
    "upgrade",
    "proxy-authenticate",
    "date",
    REPLAYED,
];

/// 1xx is no answer yet, and above 599 no number is one: neither can be sent again.
const FINAL: Range<u16> = 200..600;

/// Set on an answer by [`Remember`](super::Remember).
#[derive(Clone, Copy, Debug)]
pub(super) struct Remembered;

/// What becomes of the transaction behind an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Verdict {
    /// The answer and the handler's rows are committed.
    Keep,
    /// The answer is committed, the handler's rows are not.
    Remember,
    /// Nothing is committed, and the key is free.
    Undo,
}

impl Verdict {
    pub(super) fn of(answer: &response::Parts) -> Self {
        let storable = FINAL.contains(&answer.status.as_u16());
        if answer.status.is_success() || answer.status.is_redirection() {
            Self::Keep
        } else if storable && answer.extensions.get::<Remembered>().is_some() {
            Self::Remember
        } else {
            Self::Undo
        }
    }
}

/// The answer in the form in which it is stored.
pub(super) fn stored(head: &response::Parts, body: &Bytes) -> Answer {
    let lines = head
        .headers
        .iter()
        .filter(|(name, _)| !SERVERS_OWN.contains(&name.as_str()) && !is_hop(head, name))
        .map(|(name, value)| (name.as_str(), value.as_bytes()));
    Answer { status: head.status.as_u16(), headers: Answer::lines(lines), body: body.to_vec() }
}

/// Whether `Connection` names this header: it is for the next hop only.
fn is_hop(head: &response::Parts, name: &HeaderName) -> bool {
    let named = head
        .headers
        .get_all(header::CONNECTION)
        .iter()
        .flat_map(|line| line.as_bytes().split(|byte| *byte == b','));
    named.into_iter().any(|word| word.trim_ascii().eq_ignore_ascii_case(name.as_str().as_bytes()))
}

/// The stored answer as it is sent again; `None` where it cannot be read: something else wrote it.
pub(super) fn replayed(answer: Answer) -> Option<http::Response<Bytes>> {
    // SQL may have stored a status that is no answer yet.
    if !FINAL.contains(&answer.status) {
        return None;
    }
    let mut response = http::Response::new(Bytes::new());
    *response.status_mut() = StatusCode::from_u16(answer.status).ok()?;
    for (name, value) in answer.header_lines().ok()? {
        let name = HeaderName::from_bytes(name.as_bytes()).ok()?;
        // Whoever stored the answer by SQL may have stored these lines too.
        if !SERVERS_OWN.contains(&name.as_str()) {
            response.headers_mut().append(name, HeaderValue::from_bytes(value).ok()?);
        }
    }
    response.headers_mut().insert(REPLAYED, HeaderValue::from_static("true"));
    *response.body_mut() = Bytes::from(answer.body);
    Some(response)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn head(status: u16) -> response::Parts {
        http::Response::builder().status(status).body(()).unwrap().into_parts().0
    }

    #[test]
    fn what_is_kept_follows_from_the_status_and_the_wish() {
        for (status, verdict, wished) in [
            (101, Verdict::Undo, Verdict::Undo),
            (200, Verdict::Keep, Verdict::Keep),
            (201, Verdict::Keep, Verdict::Keep),
            (303, Verdict::Keep, Verdict::Keep),
            (402, Verdict::Undo, Verdict::Remember),
            (500, Verdict::Undo, Verdict::Remember),
            (600, Verdict::Undo, Verdict::Undo),
        ] {
            let mut head = head(status);
            assert_eq!(Verdict::of(&head), verdict, "{status}");
            head.extensions.insert(Remembered);
            assert_eq!(Verdict::of(&head), wished, "{status} remembered");
        }
    }

    #[test]
    fn a_replay_has_the_same_lines_and_says_that_it_is_one() {
        let mut head = head(201);
        for (name, value) in [
            ("link", &b"<a>; rel=x, <b>; rel=y"[..]),
            ("content-length", b"2"),
            ("location", b"/orders/17"),
            ("link", b"<c>"),
            ("content-disposition", b"attachment; filename=\"a,b\xe9.txt\""),
            ("date", b"Sun, 29 Nov 2026 12:00:00 GMT"),
            ("connection", b"close, X-Hop"),
            ("x-hop", b"1"),
            ("upgrade", b"h2c"),
            ("proxy-authenticate", b"Basic"),
            ("idempotent-replayed", b"true"),
        ] {
            head.headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        let again = replayed(stored(&head, &Bytes::from_static(b"{}"))).unwrap();
        assert_eq!((again.status().as_u16(), again.body().as_ref()), (201, &b"{}"[..]));
        let lines: Vec<_> =
            again.headers().iter().map(|(name, value)| (name.as_str(), value.as_bytes())).collect();
        let mut expected: Vec<_> = head.headers.iter().map(|(n, v)| (n.as_str(), v.as_bytes())).collect();
        let dropped =
            ["content-length", "date", "connection", "x-hop", "upgrade", "proxy-authenticate", REPLAYED];
        expected.retain(|(name, _)| !dropped.contains(name));
        expected.push((REPLAYED, b"true"));
        assert_eq!(lines, expected);
    }

    #[test]
    fn what_cannot_be_read_is_no_answer() {
        for (status, headers) in [
            (200, &b"no colon\r\n"[..]),
            (200, b"bad name: x\r\n"),
            (200, b"a: \0\r\n"),
            (99, b""),
            (101, b""),
        ] {
            assert!(replayed(Answer { status, headers: headers.to_vec(), body: Vec::new() }).is_none());
        }
    }
}
