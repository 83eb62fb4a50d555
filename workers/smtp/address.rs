//! Mail addresses: what may stand in a command and in a header. Nothing that is refused here ever reaches a connection.

use std::fmt;

use aftercommit::effect::is_quoted;

/// RFC 5321 §4.5.3.1.3: a path has at most 256 bytes, two of which are its brackets.
const ADDRESS_MAX: usize = 254;

/// An address as it is sent: its domain in ASCII (punycode).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Address {
    local: String,
    domain: String,
}

/// An address with the name of whom it belongs to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mailbox {
    pub(super) name: Option<String>,
    pub(super) address: Address,
}

impl Address {
    /// The error says what is wrong with it.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let wrong = || format!("{} is no mail address", shown(text));
        if !is_one_line(text) || text.contains('\t') {
            return Err(format!("{} holds a line break or a control character", shown(text)));
        }
        let (local, domain) = text.rsplit_once('@').ok_or_else(wrong)?;
        let domain = ascii_domain(domain).ok_or_else(wrong)?;
        // The syntax of local parts, quoted ones too.
        lettre::Address::new(local, &domain).map_err(|_error| wrong())?;
        if local.len() + 1 + domain.len() > ADDRESS_MAX {
            return Err(format!("{} is longer than {ADDRESS_MAX} bytes", shown(text)));
        }
        Ok(Self { local: local.to_owned(), domain })
    }

    pub(super) fn domain(&self) -> &str {
        &self.domain
    }

    /// Only a server with SMTPUTF8 (RFC 6531) takes it.
    pub(super) fn needs_utf8(&self) -> bool {
        !self.local.is_ascii()
    }
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}@{}", self.local, self.domain)
    }
}

impl Mailbox {
    /// `ann@shop.test`, `Ann <ann@shop.test>`, `"Ann, of sales" <ann@shop.test>`.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        if !is_one_line(text) {
            return Err(format!("{} holds a line break or a control character", shown(text)));
        }
        let text = text.trim();
        let Some(rest) = text.strip_suffix('>') else {
            return Ok(Self { name: None, address: Address::parse(text)? });
        };
        let (name, address) = rest.rsplit_once('<').ok_or_else(|| format!("{} has no <", shown(text)))?;
        let name = name.trim();
        // "a@x.test, Ann <b@x.test>" is a list: the first of it must not become a name.
        if !is_quoted(name) && name.contains(['<', '>', '@', ',', ';']) {
            return Err(format!(
                "{} is no mail address: write a list of strings, or quote the name",
                shown(text)
            ));
        }
        Ok(Self { name: named(&unquoted(name)), address: Address::parse(address)? })
    }

    /// With a name of its own.
    pub(super) fn with_name(name: &str, address: &str) -> Result<Self, String> {
        if !is_one_line(name) {
            return Err(format!("{} holds a line break or a control character", shown(name)));
        }
        Ok(Self { name: named(name), address: Address::parse(address.trim())? })
    }
}

fn named(name: &str) -> Option<String> {
    Some(name.trim()).filter(|name| !name.is_empty()).map(str::to_owned)
}

/// The text of a quoted string; what is not quoted stays as it is.
fn unquoted(text: &str) -> String {
    if !is_quoted(text) {
        return text.to_owned();
    }
    let inner = &text[1..text.len() - 1];
    let (mut plain, mut escaped) = (String::with_capacity(inner.len()), false);
    for c in inner.chars() {
        escaped = c == '\\' && !escaped;
        if !escaped {
            plain.push(c);
        }
    }
    plain
}

/// The domain in ASCII and lower case: an international one as punycode (RFC 5891), an address in brackets as it is.
fn ascii_domain(domain: &str) -> Option<String> {
    if domain.starts_with('[') {
        return Some(domain.to_ascii_lowercase());
    }
    let ascii = match url::Host::parse(domain) {
        Ok(url::Host::Domain(ascii)) => ascii,
        // A bare number is no domain, and an IPv4 address belongs into brackets.
        Ok(url::Host::Ipv4(_) | url::Host::Ipv6(_)) | Err(_) => return None,
    };
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.');
    (!domain.contains('%') && ascii.chars().all(plain)).then_some(ascii)
}

/// Whether `text` can stand in a command or a header: no CR, LF, NUL or other control character but a tab.
pub(super) fn is_one_line(text: &str) -> bool {
    !text.chars().any(|c| (c.is_control() && c != '\t') || matches!(c, '\u{2028}' | '\u{2029}'))
}

/// `text` for people: escaped, quoted, and short.
pub(super) fn shown(text: &str) -> String {
    let short: String = text.chars().take(80).collect();
    let dots = if short.len() < text.len() { "…" } else { "" };
    format!("{:?}", format!("{short}{dots}"))
}
