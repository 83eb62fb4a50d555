//! What identifies a mail: its `Message-ID`, made of the key, the same on every attempt.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// A longer left side is hashed: a `Message-ID` cannot be folded, and a line has at most 998 bytes.
const LEFT_MAX: usize = 200;

/// `<KEY$DOWNSTREAM@DOMAIN>`. The downstream stands in it, since two downstreams may hold the same key for different mails and a
/// mailbox may drop the second of two mails with one id; the domain is the sender's.
pub(super) fn message_id(key: &str, downstream: &str, domain: &str) -> String {
    let left = format!("{}${}", encode(key), encode(downstream));
    if left.len() <= LEFT_MAX {
        return format!("<{left}@{domain}>");
    }
    // No encoded text begins so: "=" is followed by two digits there.
    format!("<=sha256-{}@{domain}>", hex::encode(Sha256::digest(left.as_bytes())))
}

/// Two different texts never give the same one. What may stand in an id (RFC 5322 §3.2.3) and is not used here for anything
/// else stays; the rest is `=` and two hexadecimal digits. A dot stays only where dots may stand: between two others.
fn encode(text: &str) -> String {
    let bytes = text.as_bytes();
    let mut encoded = String::with_capacity(bytes.len());
    for (at, byte) in bytes.iter().enumerate() {
        let inside = at > 0 && at + 1 < bytes.len() && bytes[at - 1] != b'.';
        if byte.is_ascii_alphanumeric() || b"-_+/~".contains(byte) || (*byte == b'.' && inside) {
            encoded.push(char::from(*byte));
        } else {
            write!(encoded, "={byte:02X}").expect("a String takes whatever is written");
        }
    }
    encoded
}

/// The boundary between a message's parts: no part can hold it, since nobody can write a text that holds its own hash.
pub(super) fn boundary(message_id: &str, payload: &str, level: &str) -> String {
    let mut hash = Sha256::new();
    for part in [message_id, payload, level] {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part.as_bytes());
    }
    hex::encode(&hash.finalize()[..20])
}
