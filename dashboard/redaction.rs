//! What nobody is shown: headers with credentials, chosen members of payloads and answers, and whatever looks like a known secret. All
//! else is left as it was written, byte by byte.

mod reader;
mod rows;
#[cfg(test)]
mod tests;

use std::borrow::Cow;

use regex::Regex;

use reader::{Reader, Step, meant};

/// What stands where something was taken away.
pub(crate) const MASK: &str = "•••";

/// What nobody is shown, besides what only an operator sees.
///
/// Names, numbers and keys are what effects are found by, and are shown whole: put no secret into them.
#[derive(Clone, Debug)]
pub struct Redact {
    /// Names of headers, whatever their case.
    pub headers: Vec<String>,
    /// Members of payloads, JSON bodies, answers and metadata. They reach JSON and nothing else: a form or a text is hidden by patterns.
    pub pointers: Vec<Pointer>,
    /// What they match in payloads, bodies, answers, metadata, headers, targets, errors and reasons.
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
    fn hides_header(&self, name: &str) -> bool {
        self.redact.headers.iter().any(|hidden| hidden.eq_ignore_ascii_case(name))
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

    /// What may be JSON. JSON stays JSON, with its digits, order and spacing; what is no JSON is text.
    fn content<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.json(text) {
            Some(shown) if shown == text => Cow::Borrowed(text),
            Some(shown) => Cow::Owned(shown),
            None => self.words(text),
        }
    }

    /// What says that it is JSON: a payload, an answer, metadata. As long as members of it are hidden, nothing is shown of one that
    /// cannot be read: nobody can tell where in it they stand.
    fn document<'a>(&self, text: &'a str) -> Cow<'a, str> {
        match self.json(text) {
            Some(shown) if shown == text => Cow::Borrowed(text),
            None if self.redact.pointers.is_empty() => self.words(text),
            None => Cow::Owned(format!("\"{MASK}\"")),
            Some(shown) => Cow::Owned(shown),
        }
    }

    /// A body of this type. Also among bytes that are no text nothing is shown that a pattern matches.
    fn body<'a>(&self, kind: Option<&str>, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        let shown = match (std::str::from_utf8(bytes), kind.is_some_and(is_json)) {
            (Ok(text), true) => self.document(text),
            (Ok(text), false) => self.content(text),
            (Err(_), true) if !self.redact.pointers.is_empty() => Cow::Borrowed(MASK),
            (Err(_), _) => return Cow::Owned(self.among_bytes(bytes)),
        };
        match shown {
            Cow::Borrowed(text) => Cow::Borrowed(text.as_bytes()),
            Cow::Owned(text) => Cow::Owned(text.into_bytes()),
        }
    }

    fn among_bytes(&self, bytes: &[u8]) -> Vec<u8> {
        let mut shown = Vec::with_capacity(bytes.len());
        for chunk in bytes.utf8_chunks() {
            shown.extend_from_slice(self.words(chunk.valid()).as_bytes());
            shown.extend_from_slice(chunk.invalid());
        }
        shown
    }

    /// `None` when the text is no JSON. Without recursion: what lies nested ten thousand deep is a payload like any other.
    fn json(&self, text: &str) -> Option<String> {
        let (mut reader, mut place) = (Reader::of(text), Vec::new());
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
        Some(Step::Member(meant(name)?))
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
        match self.words(&meant(token)?) {
            Cow::Borrowed(_) => shown.push_str(token),
            Cow::Owned(hidden) => shown.push_str(&serde_json::to_string(&hidden).ok()?),
        }
        Some(())
    }
}

/// Whether a media type is JSON.
fn is_json(kind: &str) -> bool {
    let kind = kind.split(';').next().unwrap_or(kind).trim().to_ascii_lowercase();
    kind.ends_with("/json") || kind.ends_with("+json")
}
