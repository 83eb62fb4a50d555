//! Reads JSON without reading its numbers, and without recursion: what lies nested ten thousand deep is read like anything else.

use std::fmt;

use serde::{Deserialize, Deserializer, de};

/// Where a value stands in what is around it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Step {
    Member(String),
    Item(usize),
}

impl Step {
    pub(super) fn is(&self, part: &str) -> bool {
        match self {
            Self::Member(name) => name == part,
            Self::Item(index) => part.parse() == Ok(*index),
        }
    }
}

/// Reads JSON by its marks. Every method gives `None` where the text is none.
pub(super) struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    pub(super) fn of(text: &'a str) -> Self {
        Self { text, at: 0 }
    }

    pub(super) fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    pub(super) fn take(&mut self) -> Option<u8> {
        let byte = self.peek().filter(u8::is_ascii)?;
        self.at += 1;
        Some(byte)
    }

    pub(super) fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    fn while_(&mut self, is: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&is) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    pub(super) fn blank(&mut self) -> &'a str {
        self.while_(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
    }

    /// A string with its quotes, a number, or a word.
    pub(super) fn scalar(&mut self) -> Option<&'a str> {
        let start = self.at;
        if self.peek()? != b'"' {
            let word = self.while_(|byte| byte.is_ascii_alphanumeric() || b"+-.".contains(&byte));
            return (!word.is_empty()).then_some(word);
        }
        self.at += 1;
        loop {
            match self.peek()? {
                b'"' => break,
                b'\\' => self.at += 2,
                _ => self.at += 1,
            }
        }
        self.at += 1;
        self.text.get(start..self.at)
    }

    /// A value with all that is in it.
    pub(super) fn skip(&mut self) -> Option<()> {
        let mut depth = 0_usize;
        loop {
            match self.peek()? {
                b'{' | b'[' => {
                    depth += 1;
                    self.at += 1;
                }
                b'}' | b']' => {
                    depth = depth.checked_sub(1)?;
                    self.at += 1;
                }
                b',' | b':' | b' ' | b'\t' | b'\n' | b'\r' => self.at += 1,
                _ => {
                    self.scalar()?;
                }
            }
            if depth == 0 {
                return Some(());
            }
        }
    }
}

/// What a JSON string says. Half a character (`\ud800`), which JSON can write and no text can hold, is one that nobody knows: the rest
/// is read all the same.
pub(super) fn meant(token: &str) -> Option<String> {
    struct Lossy;
    impl de::Visitor<'_> for Lossy {
        type Value = String;

        fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
            f.write_str("a string")
        }

        fn visit_bytes<E: de::Error>(self, bytes: &[u8]) -> Result<String, E> {
            Ok(String::from_utf8_lossy(bytes).into_owned())
        }
    }
    struct Meant(String);
    impl<'de> Deserialize<'de> for Meant {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            deserializer.deserialize_bytes(Lossy).map(Self)
        }
    }
    serde_json::from_str::<Meant>(token).ok().map(|Meant(text)| text)
}
