//! Our own secrets in what a downstream says: an echo must not carry them into the database, a log or a page.
//!
//! A downstream may write a text in other ways than we sent it: with JSON's escapes, percent-encoded, or both. So an answer is
//! read as units, each a character in whichever way it is written, and what the units spell is compared. Later requests may be
//! made of an answer: so only a secret that stands by itself is hidden, never a part of a longer token that happens to hold it,
//! and of JSON only what its strings hold.

use aftercommit::outcome::Response;

/// Shorter texts are no secrets, and hiding them would make every second word unreadable.
const SECRET_MIN: usize = 8;
/// Replaces each byte of a secret: JSON stays JSON, and a length stays what it was.
const VEIL: u8 = b'*';

/// A downstream's secrets, in the forms in which they are sent. It never prints.
pub(crate) struct Veil(Vec<Vec<u8>>);

impl Veil {
    /// Of secrets in the forms in which they are sent.
    pub(crate) fn new(forms: impl IntoIterator<Item = String>) -> Self {
        let long = |form: &String| form.len() >= SECRET_MIN;
        Self(forms.into_iter().filter(long).map(String::into_bytes).collect())
    }

    /// Hides them in whatever will be stored or shown. Letters' case does not matter: a host repeats a secret in lower case.
    pub(crate) fn cover(&self, reason: &mut String, response: Option<&mut Response>) {
        let mut bytes = std::mem::take(reason).into_bytes();
        self.cover_bytes(&mut bytes, Cut::Whole);
        // A secret that begins or ends inside a character leaves none of it: then less is shown rather than more.
        *reason = String::from_utf8_lossy(&bytes).into_owned();
        if let Some(response) = response {
            let cut = if response.truncated { Cut::AtItsEnd } else { Cut::Whole };
            self.cover_bytes(&mut response.body, cut);
        }
    }

    fn cover_bytes(&self, bytes: &mut [u8], cut: Cut) {
        let possible: Vec<&[u8]> =
            self.0.iter().map(Vec::as_slice).filter(|secret| may_hold(bytes, secret, cut)).collect();
        if possible.is_empty() {
            return;
        }
        let readings = if serde_json::from_slice::<serde::de::IgnoredAny>(bytes).is_ok() {
            vec![Reading::Strings]
        } else {
            vec![Reading::Plain, Reading::Escaped]
        };
        for reading in readings {
            let units = units(bytes, reading);
            let decoded = percent_decoded(&units);
            for secret in &possible {
                for units in [&units, &decoded] {
                    cover(bytes, units, secret, cut);
                }
            }
        }
    }
}

/// Whether there was more of a text than we have.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Cut {
    Whole,
    AtItsEnd,
}

/// How bytes are read as characters.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Reading {
    /// Each as it stands.
    Plain,
    /// With the escapes of JSON, everywhere.
    Escaped,
    /// With the escapes of JSON, and only in its strings: the rest spells nothing.
    Strings,
}

/// A character, and the bytes that write it.
#[derive(Clone, Copy)]
struct Unit {
    /// Of ASCII. What is beyond, and what is no text, is [`OTHER`].
    spells: u8,
    from: usize,
    to: usize,
}

/// Spells nothing that a secret could hold: it is sent in a header.
const OTHER: u8 = 0;

/// A first look that is cheap: encoders leave letters and digits as they are.
fn may_hold(bytes: &[u8], secret: &[u8], cut: Cut) -> bool {
    let core =
        secret.split(|byte| !byte.is_ascii_alphanumeric()).max_by_key(|run| run.len()).unwrap_or_default();
    cut == Cut::AtItsEnd
        || core.is_empty()
        || bytes.windows(core.len()).any(|window| window.eq_ignore_ascii_case(core))
}

fn units(bytes: &[u8], reading: Reading) -> Vec<Unit> {
    let (mut units, mut at, mut inside) = (Vec::with_capacity(bytes.len()), 0, false);
    while let Some(&byte) = bytes.get(at) {
        let in_text = inside || reading != Reading::Strings;
        let (mut spells, length) = match byte {
            b'\\' if in_text && reading != Reading::Plain => escape(&bytes[at..]),
            _ => (if byte.is_ascii() { byte } else { OTHER }, 1),
        };
        if reading == Reading::Strings && byte == b'"' {
            inside = !inside;
            spells = OTHER;
        }
        units.push(Unit { spells: if in_text { spells } else { OTHER }, from: at, to: at + length });
        at += length;
    }
    units
}

/// What the escape at the beginning of `bytes` spells, and its length; a backslash that begins none spells itself.
fn escape(bytes: &[u8]) -> (u8, usize) {
    match bytes.get(1) {
        Some(b'u') => {
            let code = bytes.get(2..6).and_then(hexadecimal);
            code.map_or((b'\\', 1), |code| (u8::try_from(code).ok().filter(u8::is_ascii).unwrap_or(OTHER), 6))
        }
        Some(escaped @ (b'/' | b'"' | b'\\')) => (*escaped, 2),
        Some(b'b' | b'f' | b'n' | b'r' | b't') => (b'\n', 2),
        Some(_) | None => (b'\\', 1),
    }
}

/// `units`, with what is percent-encoded in them taken for what it spells.
fn percent_decoded(units: &[Unit]) -> Vec<Unit> {
    let (mut decoded, mut at) = (Vec::with_capacity(units.len()), 0);
    while let Some(unit) = units.get(at) {
        let code = match units.get(at..at + 3) {
            Some([percent, high, low]) if percent.spells == b'%' => hexadecimal(&[high.spells, low.spells]),
            Some(_) | None => None,
        };
        match code.and_then(|code| u8::try_from(code).ok()) {
            Some(spells) => {
                let spells = if spells.is_ascii() { spells } else { OTHER };
                decoded.push(Unit { spells, from: unit.from, to: units[at + 2].to });
                at += 3;
            }
            None => {
                decoded.push(*unit);
                at += 1;
            }
        }
    }
    decoded
}

fn hexadecimal(digits: &[u8]) -> Option<u32> {
    digits.iter().try_fold(0, |value, digit| Some(value * 16 + char::from(*digit).to_digit(16)?))
}

/// Hides `secret` in `bytes` wherever `units` spell it and no token goes on: `ch_10000001` is not the secret `10000001`.
fn cover(bytes: &mut [u8], units: &[Unit], secret: &[u8], cut: Cut) {
    let in_token = |at: usize| {
        units.get(at).is_some_and(|unit| unit.spells.is_ascii_alphanumeric() || b"_-".contains(&unit.spells))
    };
    let mut at = 0;
    while at < units.len() {
        let mut end = at;
        // One that is repeated without a gap is no other token.
        while spell(&units[end..], secret) {
            end += secret.len();
        }
        let begun = &units[end..];
        if cut == Cut::AtItsEnd && (SECRET_MIN / 2..secret.len()).contains(&begun.len()) {
            // The text was cut in the middle of it.
            end += if spell(begun, &secret[..begun.len()]) { begun.len() } else { 0 };
        }
        let goes_on = in_token(end) || at.checked_sub(1).is_some_and(in_token);
        if end > at && !goes_on {
            bytes[units[at].from..units[end - 1].to].fill(VEIL);
        }
        at = end.max(at + 1);
    }
}

fn spell(units: &[Unit], text: &[u8]) -> bool {
    units.len() >= text.len()
        && units.iter().zip(text).all(|(unit, byte)| unit.spells.eq_ignore_ascii_case(byte))
}

#[cfg(test)]
mod tests;
