//! The cookies of the pages: which session this is. A session's cookie is HttpOnly, SameSite=Strict, and ends with the browser; where the
//! connection is encrypted it is `__Host-` and Secure, so that no other host and no other scheme can set it.

use axum::http::{HeaderMap, HeaderValue, header};

use crate::settings::{Settings, hash};

/// More cookies than this are not read: none of ours is in them that a browser would send.
const LENGTH_MAX: usize = 16 * 1024;
/// What the cookie's name begins with where Secure can be used.
const HOST: &str = "__Host-";

/// The names of one dashboard's cookies. Cookies know no ports and no paths of ours, so that two dashboards of one host would end each
/// other's sessions if they had one name.
#[derive(Clone, Debug)]
pub(crate) struct Cookies {
    plain: String,
}

impl Cookies {
    pub(crate) fn of(settings: &Settings) -> Self {
        let digest = hash(format!("{}\0{}", settings.environment, settings.title).as_bytes());
        Self {
            plain: format!(
                "aftercommit-{:02x}{:02x}{:02x}{:02x}",
                digest[0], digest[1], digest[2], digest[3]
            ),
        }
    }

    /// Session ids that a request brings and that count. Where the connection is encrypted, the cookie that any neighbour of ours and
    /// anybody on the way of an unencrypted one can set does not; elsewhere it comes last.
    pub(super) fn sessions<'a>(&self, headers: &'a HeaderMap, encrypted: bool) -> Vec<&'a str> {
        let mut found = values(headers, &self.secure());
        if !encrypted {
            found.extend(values(headers, &self.plain));
        }
        found
    }

    /// Every session id that a request brings, for whoever ends them.
    pub(super) fn all<'a>(&self, headers: &'a HeaderMap) -> Vec<&'a str> {
        self.sessions(headers, false)
    }

    fn secure(&self) -> String {
        format!("{HOST}{}", self.plain)
    }

    /// Whether the browser was sent back once already, to see whether it has a session.
    pub(super) fn was_sent_back(&self, headers: &HeaderMap) -> bool {
        !values(headers, &self.back()).is_empty()
    }

    /// Remembers for a moment that the browser was sent back.
    pub(super) fn sent_back(&self) -> HeaderValue {
        value(format!("{}=1; Path=/; Max-Age=10; HttpOnly; SameSite=Lax", self.back()))
    }

    fn back(&self) -> String {
        format!("{}-back", self.plain)
    }

    /// The cookie of a session that begins.
    pub(super) fn begin(&self, id: &str, secure: bool) -> HeaderValue {
        let (prefix, secure) = if secure { (HOST, "; Secure") } else { ("", "") };
        value(format!("{prefix}{}={id}; Path=/; HttpOnly; SameSite=Strict{secure}", self.plain))
    }

    /// The cookies that take a session's away, whichever it was.
    pub(super) fn end(&self) -> [HeaderValue; 2] {
        let gone = "Path=/; Max-Age=0; HttpOnly; SameSite=Strict";
        [value(format!("{}=; {gone}", self.plain)), value(format!("{HOST}{}=; {gone}; Secure", self.plain))]
    }
}

fn value(text: String) -> HeaderValue {
    HeaderValue::try_from(text).expect("letters, digits and marks that a header can have")
}

fn values<'a>(headers: &'a HeaderMap, name: &str) -> Vec<&'a str> {
    let lines = || headers.get_all(header::COOKIE).iter();
    if lines().map(HeaderValue::len).sum::<usize>() > LENGTH_MAX {
        return Vec::new();
    }
    lines()
        .filter_map(|line| line.to_str().ok())
        .flat_map(|line| line.split(';'))
        .filter_map(|pair| pair.trim().split_once('='))
        .filter(|(found, _)| *found == name)
        .map(|(_, value)| value)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names() -> Cookies {
        Cookies::of(&Settings { environment: "production".to_owned(), ..Settings::default() })
    }

    fn cookies(line: &str) -> HeaderMap {
        HeaderMap::from_iter([(header::COOKIE, HeaderValue::from_str(line).unwrap())])
    }

    #[test]
    fn the_cookie_that_nobody_else_can_set_comes_first() {
        let plain = names().plain;
        let headers = cookies(&format!("other=1; {plain}=tossed; __Host-{plain}=ours"));
        assert_eq!(names().sessions(&headers, false), ["ours", "tossed"]);
        assert!(names().sessions(&cookies("aftercommit=1"), false).is_empty());
    }

    #[test]
    fn where_the_connection_is_encrypted_a_cookie_that_others_can_set_is_none() {
        let plain = names().plain;
        let headers = cookies(&format!("{plain}=tossed; __Host-{plain}=ours"));
        assert_eq!(names().sessions(&headers, true), ["ours"]);
        assert!(names().sessions(&cookies(&format!("{plain}=tossed")), true).is_empty());
        assert_eq!(names().all(&headers), ["ours", "tossed"]);
    }

    #[test]
    fn a_flood_of_cookies_is_not_read() {
        let plain = names().plain;
        let headers = cookies(&format!("{plain}=x; {}", "a=b; ".repeat(LENGTH_MAX / 5)));
        assert!(names().sessions(&headers, false).is_empty());
    }

    #[test]
    fn secure_is_used_where_it_can_be() {
        let (secure, plain) = (names().begin("id", true), names().begin("id", false));
        let (secure, plain) = (secure.to_str().unwrap(), plain.to_str().unwrap());
        assert!(
            secure.starts_with("__Host-") && secure.ends_with("; Secure") && !secure.contains("Domain"),
            "{secure}"
        );
        for cookie in [secure, plain] {
            assert!(cookie.contains("Path=/; HttpOnly; SameSite=Strict"), "{cookie}");
        }
        assert!(!plain.contains("__Host-") && !plain.contains("Secure"), "{plain}");
    }
}
