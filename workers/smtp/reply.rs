//! A server's reply (RFC 5321 §4.2): one or more lines, each with the same code. Whatever a server says, it is read within a
//! bound and shown as one line of text.

use std::fmt;

/// Longest line that is read. RFC 5321 §4.5.3.1.5 allows 512 bytes; some servers say more.
const LINE_MAX: usize = 4096;
/// More lines, or more bytes in all, are no reply any more. An EHLO of a rich server has some twenty lines.
const LINES_MAX: usize = 200;
const BYTES_MAX: usize = 32 * 1024;
/// As much of a reply is shown and stored.
const SHOWN_MAX: usize = 600;

/// What a server answered to a command.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Reply {
    pub(super) code: u16,
    /// Without their codes.
    pub(super) lines: Vec<String>,
}

/// What was said is no reply.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Malformed(pub(super) &'static str);

impl Reply {
    /// 2yz: done.
    pub(super) fn is_positive(&self) -> bool {
        (200..300).contains(&self.code)
    }

    /// 4yz: not now.
    pub(super) fn is_transient(&self) -> bool {
        (400..500).contains(&self.code)
    }

    /// 5yz: never.
    pub(super) fn is_permanent(&self) -> bool {
        (500..600).contains(&self.code)
    }

    /// The text without the code, as one line.
    pub(super) fn text(&self) -> String {
        let mut text = String::new();
        for word in self.lines.iter().flat_map(|line| line.split_whitespace()) {
            if text.len() + word.len() >= SHOWN_MAX {
                text.push_str(" …");
                break;
            }
            if !text.is_empty() {
                text.push(' ');
            }
            text.push_str(word);
        }
        text
    }
}

impl fmt::Display for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.code, self.text())
    }
}

/// A reply, as far as it was read.
#[derive(Debug, Default)]
pub(super) struct Gather {
    code: Option<u16>,
    lines: Vec<String>,
    bytes: usize,
}

impl Gather {
    /// Takes the next line, without its end; the reply, when that was its last line.
    pub(super) fn line(&mut self, line: &[u8]) -> Result<Option<Reply>, Malformed> {
        self.bytes += line.len();
        if self.lines.len() >= LINES_MAX || self.bytes > BYTES_MAX {
            return Err(Malformed("its reply does not end"));
        }
        let (code, rest) = line.split_at_checked(3).ok_or(Malformed("its reply has no code"))?;
        let code = std::str::from_utf8(code)
            .ok()
            .filter(|code| code.bytes().all(|byte| byte.is_ascii_digit()))
            .and_then(|code| code.parse().ok())
            .filter(|code| (200..600).contains(code))
            .ok_or(Malformed("its reply has no code"))?;
        if *self.code.get_or_insert(code) != code {
            return Err(Malformed("the lines of its reply have different codes"));
        }
        let (last, text) = match rest.split_first() {
            None => (true, rest),
            Some((b' ', text)) => (true, text),
            Some((b'-', text)) => (false, text),
            Some(_) => return Err(Malformed("its reply has no code")),
        };
        self.lines.push(clean(text));
        Ok(last.then(|| Reply { code, lines: std::mem::take(&mut self.lines) }))
    }
}

/// The first line of `bytes` and how many bytes it took, its end included; `None` when more must be read.
pub(super) fn first_line(bytes: &[u8]) -> Result<Option<(&[u8], usize)>, Malformed> {
    match bytes.iter().position(|byte| *byte == b'\n') {
        Some(end) if end <= LINE_MAX => {
            let line = &bytes[..end];
            Ok(Some((line.strip_suffix(b"\r").unwrap_or(line), end + 1)))
        }
        None if bytes.len() <= LINE_MAX => Ok(None),
        Some(_) | None => Err(Malformed("a line of its reply does not end")),
    }
}

/// As text for people: nothing in it can move a cursor, break a line, or be taken for something else.
fn clean(bytes: &[u8]) -> String {
    let harmless = |c: char| {
        !c.is_control()
            && !matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}' | '\u{feff}')
    };
    String::from_utf8_lossy(bytes)
        .chars()
        .map(|c| {
            if harmless(c) {
                c
            } else if c == '\t' {
                ' '
            } else {
                '\u{fffd}'
            }
        })
        .collect()
}
