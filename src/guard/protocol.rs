//! What a guarded request is made of: pure.

use std::fmt;

use sha2::{Digest, Sha256};

use crate::effect::IdempotencyKey;

/// In whose space a request's key is unique: a tenant, a principal. 1 to 255 characters.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Scope(String);

/// Longest scope, in characters.
pub const SCOPE_LEN_MAX: usize = 255;

/// A scope that cannot be one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a scope must be 1 to 255 characters without U+0000")]
pub struct InvalidScope;

impl Scope {
    /// Parses a scope.
    ///
    /// # Errors
    ///
    /// [`InvalidScope`] when it is empty or too long, or holds U+0000.
    pub fn parse(scope: impl Into<String>) -> Result<Self, InvalidScope> {
        let scope = scope.into();
        let length = scope.chars().count();
        if length == 0 || length > SCOPE_LEN_MAX || scope.contains('\0') {
            Err(InvalidScope)
        } else {
            Ok(Self(scope))
        }
    }

    /// The scope as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The key that a client chose for its request: 1 to 255 printable ASCII characters, no space at either end, no quote at its
/// beginning (there it would be mistaken for the header's form of another key).
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct RequestKey(IdempotencyKey);

/// Why a client's key is none.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum MalformedKey {
    /// Too short, too long, or other characters than it may have.
    #[error(
        "the key must be 1 to 255 printable ASCII characters with no space at either end and no quote at its beginning"
    )]
    Characters,
    /// Neither a quoted string nor a bare word.
    #[error(
        "the header must hold one quoted string (\"8e03978e-40d5-43e8-bc93-6894a57f9324\") or one bare word without quotes, commas and spaces"
    )]
    Syntax,
}

impl RequestKey {
    /// Parses a key as it is, outside of any header.
    ///
    /// # Errors
    ///
    /// [`MalformedKey::Characters`].
    pub fn parse(key: impl Into<String>) -> Result<Self, MalformedKey> {
        match IdempotencyKey::parse(key) {
            Ok(key) if !key.as_str().starts_with('"') => Ok(Self(key)),
            Ok(_) | Err(_) => Err(MalformedKey::Characters),
        }
    }

    /// Reads the value of an `Idempotency-Key` header: the structured string of the draft (RFC 8941 §3.3.3), or the bare word
    /// that most clients send. Both name the same key.
    ///
    /// # Errors
    ///
    /// [`MalformedKey`]. Parameters after the string are refused: no client is known that sends any, and one that does may
    /// mean something by them.
    pub fn from_header(value: &[u8]) -> Result<Self, MalformedKey> {
        let value = std::str::from_utf8(value).map_err(|_not_ascii| MalformedKey::Characters)?;
        let value = value.trim_matches([' ', '\t']);
        let Some(quoted) = value.strip_prefix('"') else {
            let bare = value.chars().all(|c| !matches!(c, '"' | ',' | ' ' | '\t'));
            return if bare { Self::parse(value) } else { Err(MalformedKey::Syntax) };
        };
        let mut key = String::with_capacity(quoted.len());
        let mut rest = quoted.chars();
        while let Some(c) = rest.next() {
            match c {
                '"' if rest.as_str().is_empty() => return Self::parse(key),
                '"' => return Err(MalformedKey::Syntax),
                '\\' => match rest.next() {
                    Some(escaped @ ('"' | '\\')) => key.push(escaped),
                    _ => return Err(MalformedKey::Syntax),
                },
                c => key.push(c),
            }
        }
        Err(MalformedKey::Syntax)
    }

    /// The key as text.
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

/// What makes two requests the same one, hashed: hexadecimal SHA-256.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Fingerprint(String);

impl Fingerprint {
    /// Of the method, the concrete path with its query (not the route's template), the headers that the application chose (one
    /// that is missing is not an empty one), and the body's bytes.
    pub fn of<'a>(
        method: &str,
        path_and_query: &str,
        headers: impl IntoIterator<Item = (&'a str, Vec<&'a [u8]>)>,
        body: &[u8],
    ) -> Self {
        let mut hash = Sha256::new();
        let mut part = |bytes: &[u8]| {
            hash.update(u64::try_from(bytes.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(bytes);
        };
        part(method.as_bytes());
        part(path_and_query.as_bytes());
        for (name, values) in headers {
            part(name.as_bytes());
            part(&u64::try_from(values.len()).unwrap_or(u64::MAX).to_be_bytes());
            values.into_iter().for_each(&mut part);
        }
        part(body);
        Self(hex::encode(hash.finalize()))
    }

    /// As it is stored.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// An answer as it is stored and sent again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    /// The status.
    pub status: u16,
    /// The header lines, as [`Answer::lines`] writes them.
    pub headers: Vec<u8>,
    /// The body.
    pub body: Vec<u8>,
}

/// Stored header lines that no version of this library writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the stored header lines cannot be read")]
pub struct CorruptLines;

impl Answer {
    /// Header lines as bytes, in order, repeated names and all: `name: value` and CR LF each. Not a map of any kind: that would
    /// lose the order, merge lines at commas, and not hold a byte such as E9.
    pub fn lines<'a>(headers: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Vec<u8> {
        let mut lines = Vec::new();
        for (name, value) in headers {
            lines.extend_from_slice(name.as_bytes());
            lines.extend_from_slice(b": ");
            lines.extend_from_slice(value);
            lines.extend_from_slice(b"\r\n");
        }
        lines
    }

    /// The header lines again: (name, value).
    ///
    /// # Errors
    ///
    /// [`CorruptLines`].
    pub fn header_lines(&self) -> Result<Vec<(&str, &[u8])>, CorruptLines> {
        let mut lines = Vec::new();
        let mut rest = self.headers.as_slice();
        while !rest.is_empty() {
            let end = rest.windows(2).position(|pair| pair == b"\r\n").ok_or(CorruptLines)?;
            let colon = rest[..end].iter().position(|byte| *byte == b':').ok_or(CorruptLines)?;
            let name = std::str::from_utf8(&rest[..colon]).map_err(|_bytes| CorruptLines)?;
            let value = &rest[colon + 1..end];
            lines.push((name, value.strip_prefix(b" ").unwrap_or(value)));
            rest = &rest[end + 2..];
        }
        Ok(lines)
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Display for RequestKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_quoted_and_a_bare_key_are_the_same_key() {
        let uuid = "8e03978e-40d5-43e8-bc93-6894a57f9324";
        for header in [uuid.to_owned(), format!("\"{uuid}\""), format!("  \"{uuid}\"\t"), format!(" {uuid} ")]
        {
            assert_eq!(RequestKey::from_header(header.as_bytes()).unwrap().as_str(), uuid, "{header:?}");
        }
        assert_eq!(RequestKey::from_header(br#""a \"b\" \\ c""#).unwrap().as_str(), r#"a "b" \ c"#);
        assert_eq!(RequestKey::from_header(b"auto_1:2/3;4").unwrap().as_str(), "auto_1:2/3;4");
    }

    #[test]
    fn a_malformed_key_is_refused() {
        let long = format!("\"{}\"", "x".repeat(256));
        let bad: [&[u8]; 16] = [
            b"\"\\\"a\"",
            b"",
            b" ",
            b"\"\"",
            b"\"a",
            b"a\"",
            b"\"a\" ",
            b"\"a\"b",
            b"\"a\";x=1",
            b"\"a\", \"b\"",
            b"a, b",
            b"a b",
            b"\"\\a\"",
            b"\xe9",
            b"\"a\tb\"",
            long.as_bytes(),
        ];
        for header in bad {
            let trimmed_is_good = header == b"\"a\" ";
            assert_eq!(RequestKey::from_header(header).is_ok(), trimmed_is_good, "{header:?}");
        }
        assert!(RequestKey::from_header("x".repeat(255).as_bytes()).is_ok());
        assert!(RequestKey::from_header("x".repeat(256).as_bytes()).is_err());
    }

    #[test]
    fn what_differs_in_a_request_differs_in_its_fingerprint() {
        let of = |method, path, headers: &[(&'static str, Vec<&'static [u8]>)], body: &[u8]| {
            Fingerprint::of(method, path, headers.to_vec(), body)
        };
        let prints = [
            of("POST", "/orders/1/cancel", &[], b"{}"),
            of("POST", "/orders/2/cancel", &[], b"{}"),
            of("POST", "/orders/1/cancel?dry_run=1", &[], b"{}"),
            of("PUT", "/orders/1/cancel", &[], b"{}"),
            of("POST", "/orders/1/cancel", &[], b"{} "),
            of("POST", "/orders/1/cancel", &[("tenant", vec![])], b"{}"),
            of("POST", "/orders/1/cancel", &[("tenant", vec![b""])], b"{}"),
            of("POST", "/orders/1/cancel", &[("tenant", vec![b"a", b"b"])], b"{}"),
            of("POST", "/orders/1/cancel", &[("tenant", vec![b"ab"])], b"{}"),
            of("POST", "/orders/1/cancel{}", &[], b""),
        ];
        let distinct: std::collections::HashSet<_> = prints.iter().collect();
        assert_eq!(distinct.len(), prints.len());
        assert_eq!(of("POST", "/a", &[], b""), of("POST", "/a", &[], b""));
    }

    #[test]
    fn header_lines_come_back_as_they_were() {
        let headers: [(&str, &[u8]); 5] = [
            ("set-cookie", b"a=1; Expires=Wed, 21 Oct 2026 07:28:00 GMT"),
            ("link", b"<a>; rel=x, <b>; rel=y"),
            ("link", b"<c>"),
            ("content-disposition", b"attachment; filename=\"a,b\xe9: c.txt\""),
            ("x-empty", b""),
        ];
        let answer = Answer { status: 201, headers: Answer::lines(headers), body: Vec::new() };
        assert_eq!(answer.header_lines().unwrap(), headers);
        for corrupt in [&b"a: b"[..], b"no colon\r\n"] {
            assert_eq!(
                Answer { headers: corrupt.to_vec(), ..answer.clone() }.header_lines(),
                Err(CorruptLines)
            );
        }
    }
}
