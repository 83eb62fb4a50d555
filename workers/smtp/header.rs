//! Headers as they stand on the wire: ASCII, folded, no line longer than 78 bytes where it can be broken (RFC 5322 §2.1.1),
//! other text as encoded words (RFC 2047). Our own, and not a library's: what was rendered once must be rendered the same
//! by every later version.

use base64::{Engine as _, engine::general_purpose::STANDARD};

use super::address::Mailbox;

/// A line is broken before it is longer.
const LINE_MAX: usize = 76;
/// So many bytes become an encoded word that fits into a line: 48 of base64 and 12 around them (at most 75, RFC 2047 §2).
const WORD_BYTES: usize = 36;

/// The value of a header of text, as it stands after `name: `.
pub(super) fn text(name: &str, value: &str) -> String {
    let mut line = Line::after(name);
    if is_plain(value) {
        for word in value.split(' ') {
            line.word(word);
        }
    } else {
        encoded(&mut line, value);
    }
    line.written
}

/// The value of a header of addresses.
pub(super) fn mailboxes(name: &str, mailboxes: &[Mailbox]) -> String {
    let mut line = Line::after(name);
    for (at, mailbox) in mailboxes.iter().enumerate() {
        let comma = if at + 1 < mailboxes.len() { "," } else { "" };
        match &mailbox.name {
            None => line.word(&format!("{}{comma}", mailbox.address)),
            Some(name) => {
                if is_plain(name) {
                    let quoted = format!("\"{}\"", name.replace('\\', "\\\\").replace('"', "\\\""));
                    quoted.split(' ').for_each(|word| line.word(word));
                } else {
                    encoded(&mut line, name);
                }
                line.word(&format!("<{}>{comma}", mailbox.address));
            }
        }
    }
    line.written
}

/// Whether it can stand as it is: single spaces inside, no word that a line could not hold, and nothing that a reader would take
/// for an encoded word.
fn is_plain(value: &str) -> bool {
    value.bytes().all(|byte| (b' '..=b'~').contains(&byte))
        && !value.contains("=?")
        && value.split(' ').all(|word| !word.is_empty() && word.len() <= LINE_MAX - 8)
}

fn encoded(line: &mut Line, value: &str) {
    let mut rest = value;
    while !rest.is_empty() {
        let mut end = rest.len().min(WORD_BYTES);
        // An encoded word holds whole characters (RFC 2047 §5).
        while !rest.is_char_boundary(end) {
            end -= 1;
        }
        let (word, more) = rest.split_at(end);
        line.word(&format!("=?utf-8?B?{}?=", STANDARD.encode(word)));
        rest = more;
    }
}

/// A header's value being written, folded where it becomes long.
struct Line {
    written: String,
    length: usize,
    first: bool,
}

impl Line {
    fn after(name: &str) -> Self {
        Self { written: String::new(), length: name.len() + 2, first: true }
    }

    fn word(&mut self, word: &str) {
        if !self.first {
            if self.length + 1 + word.len() > LINE_MAX {
                self.written.push_str("\r\n");
                self.length = 0;
            }
            self.written.push(' ');
            self.length += 1;
        }
        self.first = false;
        self.written.push_str(word);
        self.length += word.len();
    }
}
