//! What nobody is shown: headers with credentials, chosen members of payloads and answers, and whatever looks like a known secret. All
//! else is left as it was written, byte by byte.

#[cfg(test)]
mod tests;

use std::borrow::Cow;

use regex::Regex;

/// What stands where something was taken away.
pub(crate) const MASK: &str = "•••";

/// What nobody is shown, besides what only an operator sees.
#[derive(Clone, Debug)]
pub struct Redact {
    /// Names of headers, whatever their case.
    pub headers: Vec<String>,
    /// Members of payloads and answers.
    pub pointers: Vec<Pointer>,
    /// What they match in payloads, answers, headers and errors.
    pub patterns: Vec<Pattern>,
}

/// Headers that carry credentials wherever they occur.
const HEADERS: [&str; 8] = [
    "authorization",
    "proxy-authorization",
    "cookie",
    "set-cookie",
    "x-api-key",
    "api-key",
    "x-auth-token",
    "x-amz-security-token",
];

/// Secrets that have a form of their own: keys of payment and cloud services, webhook secrets, signed tokens, private keys.
const PATTERNS: [&str; 7] = [
    r"\b[sr]k_(?:live|test)_[0-9A-Za-z]{8,}",
    r"\bwhs(?:ec|k)_[0-9A-Za-z+/=]{16,}",
    r"\bgh[pousr]_[0-9A-Za-z]{20,}",
    r"\bxox[abprs]-[0-9A-Za-z-]{10,}",
    r"\bAKIA[0-9A-Z]{16}\b",
    r"\beyJ[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]{8,}\.[0-9A-Za-z_-]*",
    r"(?s)-----BEGIN [A-Z ]*PRIVATE KEY-----.*?-----END [A-Z ]*PRIVATE KEY-----",
];

impl Default for Redact {
    fn default() -> Self {
        let ours = "a regular expression of ours, which a test compiles";
        Self {
            headers: HEADERS.map(str::to_owned).to_vec(),
            pointers: Vec::new(),
            patterns: PATTERNS.iter().map(|text| Pattern::parse(text).expect(ours)).collect(),
        }
    }
}

/// A regular expression.
#[derive(Clone, Debug)]
pub struct Pattern(Regex);

impl Pattern {
    /// Reads one.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words; also when it would match nothing at all everywhere.
    pub fn parse(text: &str) -> Result<Self, String> {
        let regex = Regex::new(text).map_err(|error| error.to_string().replace('\n', " "))?;
        if regex.is_match("") {
            return Err("it matches the empty text, and so everywhere".to_owned());
        }
        Ok(Self(regex))
    }
}

/// A JSON pointer; a part that is `*` stands for every member or item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pointer(Vec<String>);

impl Pointer {
    /// Reads one: `/card/number`, `/items/*/secret`.
    ///
    /// # Errors
    ///
    /// What is wrong with it, in words.
    pub fn parse(text: &str) -> Result<Self, String> {
        let Some(parts) = text.strip_prefix('/') else {
            return Err("a JSON pointer begins with / (\"/card/number\")".to_owned());
        };
        Ok(Self(parts.split('/').map(|part| part.replace("~1", "/").replace("~0", "~")).collect()))
    }

    fn fits(&self, place: &[Step]) -> bool {
        self.0.len() == place.len()
            && self.0.iter().zip(place).all(|(part, step)| part == "*" || step.is(part))
    }
}

/// Takes away what nobody is shown.
#[derive(Clone, Debug)]
pub(crate) struct Redaction {
    redact: Redact,
}

impl Redaction {
    pub(crate) fn new(redact: &Redact) -> Self {
        Self { redact: redact.clone() }
    }

    /// Whether the value of this header is shown to nobody.
    pub(crate) fn hides_header(&self, name: &str) -> bool {
        self.redact.headers.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
    }

    /// A header's value.
    pub(crate) fn header<'a>(&self, name: &str, value: &'a str) -> Cow<'a, str> {
        if self.hides_header(name) { Cow::Borrowed(MASK) } else { self.words(value) }
    }

    /// Text of any kind: an error, a line of a log.
    pub(crate) fn words<'a>(&self, text: &'a str) -> Cow<'a, str> {
        let mut text = Cow::Borrowed(text);
        for Pattern(pattern) in &self.redact.patterns {
            if pattern.is_match(&text) {
                text = Cow::Owned(pattern.replace_all(&text, MASK).into_owned());
            }
        }
        text
    }

    /// A payload or an answer. JSON stays JSON, with its digits, order and spacing; what is no JSON is text.
    pub(crate) fn content<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.json(text) {
            Some(shown) if shown == text => Cow::Borrowed(text),
            Some(shown) => Cow::Owned(shown),
            None => self.words(text),
        }
    }

    /// `None` when the text is no JSON. Without recursion: what lies nested ten thousand deep is a payload like any other.
    fn json(&self, text: &str) -> Option<String> {
        let (mut reader, mut place) = (Reader { text, at: 0 }, Vec::new());
        let mut shown = String::with_capacity(text.len());
        loop {
            shown.push_str(reader.blank());
            if self.redact.pointers.iter().any(|pointer| pointer.fits(&place)) {
                reader.skip()?;
                shown.extend(["\"", MASK, "\""]);
            } else if let Some(step) = self.begin(&mut reader, &mut shown)? {
                place.push(step);
                continue;
            }
            if !self.go_on(&mut reader, &mut shown, &mut place)? {
                return Some(shown);
            }
        }
    }

    /// Copies a value, or the beginning of one that has others in it: then where the first of those stands.
    #[expect(clippy::option_option, reason = "the outer one is what `?` takes: no JSON")]
    fn begin(&self, reader: &mut Reader<'_>, shown: &mut String) -> Option<Option<Step>> {
        match reader.peek()? {
            open @ (b'{' | b'[') => {
                shown.push(char::from(reader.take()?));
                shown.push_str(reader.blank());
                let close = if open == b'{' { b'}' } else { b']' };
                if reader.peek()? == close {
                    shown.push(char::from(reader.take()?));
                    return Some(None);
                }
                let step = if open == b'{' { self.member(reader, shown)? } else { Step::Item(0) };
                Some(Some(step))
            }
            _ => {
                self.scalar(reader.scalar()?, shown)?;
                Some(None)
            }
        }
    }

    /// Copies what stands between a value and the next one: whether there is one.
    fn go_on(&self, reader: &mut Reader<'_>, shown: &mut String, place: &mut Vec<Step>) -> Option<bool> {
        loop {
            shown.push_str(reader.blank());
            let Some(last) = place.last_mut() else {
                return reader.is_at_end().then_some(false);
            };
            let mark = reader.take()?;
            shown.push(char::from(mark));
            match (mark, last) {
                (b',', Step::Item(index)) => {
                    *index += 1;
                    return Some(true);
                }
                (b',', last @ Step::Member(_)) => {
                    shown.push_str(reader.blank());
                    *last = self.member(reader, shown)?;
                    return Some(true);
                }
                (b'}', Step::Member(_)) | (b']', Step::Item(_)) => {
                    place.pop();
                }
                _ => return None,
            }
        }
    }

    /// Copies a member's name and the colon.
    fn member(&self, reader: &mut Reader<'_>, shown: &mut String) -> Option<Step> {
        let name = reader.scalar()?;
        self.scalar(name, shown)?;
        shown.push_str(reader.blank());
        let colon = reader.take().filter(|mark| *mark == b':')?;
        shown.push(char::from(colon));
        Some(Step::Member(serde_json::from_str(name).ok()?))
    }

    /// Copies a string, number or word, without what must not be shown. Patterns see a string as it is meant, whatever is escaped in it.
    fn scalar(&self, token: &str, shown: &mut String) -> Option<()> {
        if !token.starts_with('"') {
            match self.words(token) {
                Cow::Borrowed(token) => shown.push_str(token),
                Cow::Owned(_) => shown.extend(["\"", MASK, "\""]),
            }
            return Some(());
        }
        let meant: String = serde_json::from_str(token).ok()?;
        match self.words(&meant) {
            Cow::Borrowed(_) => shown.push_str(token),
            Cow::Owned(hidden) => shown.push_str(&serde_json::to_string(&hidden).ok()?),
        }
        Some(())
    }
}

/// Where a value stands in what is around it.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Step {
    Member(String),
    Item(usize),
}

impl Step {
    fn is(&self, part: &str) -> bool {
        match self {
            Self::Member(name) => name == part,
            Self::Item(index) => part.parse() == Ok(*index),
        }
    }
}

/// Reads JSON by its marks. Every method gives `None` where the text is none.
struct Reader<'a> {
    text: &'a str,
    at: usize,
}

impl<'a> Reader<'a> {
    fn peek(&self) -> Option<u8> {
        self.text.as_bytes().get(self.at).copied()
    }

    fn take(&mut self) -> Option<u8> {
        let byte = self.peek().filter(u8::is_ascii)?;
        self.at += 1;
        Some(byte)
    }

    fn is_at_end(&self) -> bool {
        self.at == self.text.len()
    }

    fn while_(&mut self, is: impl Fn(u8) -> bool) -> &'a str {
        let start = self.at;
        while self.peek().is_some_and(&is) {
            self.at += 1;
        }
        &self.text[start..self.at]
    }

    fn blank(&mut self) -> &'a str {
        self.while_(|byte| matches!(byte, b' ' | b'\t' | b'\n' | b'\r'))
    }

    /// A string with its quotes, a number, or a word.
    fn scalar(&mut self) -> Option<&'a str> {
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
    fn skip(&mut self) -> Option<()> {
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
