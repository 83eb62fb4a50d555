//! What an `smtp` downstream's table says, validated.

use std::{sync::Arc, time::Duration};

use aftercommit::{contract::Dedupe, downstream::Downstream, effect::Effect};
use sha2::{Digest as _, Sha256};
use url::Url;

use super::{
    SmtpDownstream,
    address::Mailbox,
    identity,
    mail::{self, Mail},
    pool::Pool,
    session::{self, Login, Server, Tls},
};
use crate::{
    config::{
        Broker, ConfigError, Configured, Operation, Secrets, Section, Source, is_header_name, secrets_of,
    },
    socket::{self, Place},
    veil::Veil,
};

/// Changes when the same effect would be rendered to other bytes.
const RENDERER_VERSION: u32 = 1;
/// RFC 5321 §4.5.3.2.6: a client that gives up earlier takes for lost what the server is about to accept.
const AFTER_DOT: Duration = Duration::from_secs(600);

/// What `tls` says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum TlsWord {
    Required,
    Opportunistic,
    None,
}

/// An `smtp` downstream.
#[derive(Clone, Debug)]
struct Smtp {
    server: Broker,
    tls: Option<TlsWord>,
    ca: Option<String>,
    hello: Option<String>,
    from: Option<(String, Mailbox)>,
    after_dot: Duration,
    key_header: Option<String>,
    key_prefix: String,
}

/// Reads the part of the table that is this kind's.
pub(crate) fn read(source: &Source<'_>) -> Result<Arc<dyn Configured>, ConfigError> {
    let section = source.section;
    let (tls, ca) = (section.noting(tls_word(section)), section.get("tls_ca")?);
    let (hello, from) = (section.noting(hello(section)), section.noting(from(section)));
    let after_dot = section.noting(after_dot(section));
    let key_header = section.noting(key_header(section));
    let server = section.noting(Broker::read(section, "server", &["smtp", "smtps"]));
    let contract = section.noting(check_contract(source, section, source.default));
    let contracts = source.named(|section, operation| check_contract(source, section, operation));
    contract?;
    contracts?;
    Ok(Arc::new(Smtp {
        server: server?,
        tls: tls?,
        ca,
        hello: hello?,
        from: from?,
        after_dot: after_dot?,
        key_header: key_header?,
        key_prefix: source.key_prefix.to_owned(),
    }))
}

fn check_contract(
    source: &Source<'_>,
    section: &Section<'_>,
    operation: &Operation,
) -> Result<(), ConfigError> {
    let problem = match operation.contract.dedupe {
        Dedupe::None => return Ok(()),
        Dedupe::Key if source.section.has("key_header") => return Ok(()),
        Dedupe::Key => {
            "dedupe = \"key\" needs key_header: a mail server that deduplicates does so by a header, such as Resend-Idempotency-Key"
        }
        Dedupe::Lookup => "dedupe = \"lookup\" cannot be: a mail server cannot be asked what it took",
    };
    Err(section.error("contract", problem))
}

fn tls_word(section: &Section<'_>) -> Result<Option<TlsWord>, ConfigError> {
    let word: Option<String> = section.get("tls")?;
    match word.as_deref() {
        None => Ok(None),
        Some("required") => Ok(Some(TlsWord::Required)),
        Some("opportunistic") => Ok(Some(TlsWord::Opportunistic)),
        Some("none") => Ok(Some(TlsWord::None)),
        Some(_) => Err(section.error("tls", "must be \"required\", \"opportunistic\" or \"none\"")),
    }
}

fn hello(section: &Section<'_>) -> Result<Option<String>, ConfigError> {
    let hello: Option<String> = section.get("hello")?;
    if hello.as_deref().is_some_and(|name| !is_hello(name)) {
        return Err(section.error(
            "hello",
            "must be a host name such as \"shop.example.com\", or an address such as \"[192.0.2.1]\"",
        ));
    }
    Ok(hello)
}

fn is_hello(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-[]:".contains(&byte);
    (1..=255).contains(&name.len()) && name.bytes().all(plain)
}

fn from(section: &Section<'_>) -> Result<Option<(String, Mailbox)>, ConfigError> {
    let Some(text) = section.get::<String>("from")? else { return Ok(None) };
    let mailbox = Mailbox::parse(&text).map_err(|problem| section.error("from", problem))?;
    Ok(Some((text, mailbox)))
}

fn after_dot(section: &Section<'_>) -> Result<Duration, ConfigError> {
    let after_dot = section.get_or("data_timeout", AFTER_DOT)?;
    if after_dot < Duration::from_millis(10) {
        return Err(section.error("data_timeout", "must be at least 10ms; RFC 5321 says 10 minutes"));
    }
    Ok(after_dot)
}

fn key_header(section: &Section<'_>) -> Result<Option<String>, ConfigError> {
    let name: Option<String> = section.get("key_header")?;
    if let Some(name) = &name {
        if !is_header_name(name) || name.len() > 64 {
            return Err(section.error("key_header", "must be the name of a header"));
        }
        if mail::is_ours(&name.to_ascii_lowercase()) {
            return Err(section
                .error("key_header", format!("{name} belongs to the mail itself: name another header")));
        }
    }
    Ok(name)
}

/// How this machine calls itself where nobody said: what the system says, if it can be said.
fn own_name() -> String {
    let system = rustix::system::uname();
    let name = system.nodename().to_str().unwrap_or_default();
    if is_hello(name) { name.to_owned() } else { "localhost".to_owned() }
}

impl Smtp {
    /// The error is (key, problem).
    fn resolve(&self, secrets: &Secrets) -> Result<(Server, Vec<String>), (String, String)> {
        let named = |(key, problem): (String, String)| {
            (if key == "url" { "server".to_owned() } else { key }, problem)
        };
        let url = self.server.resolve(secrets).map_err(named)?;
        let (place, implicit) = place(&url).map_err(|problem| ("server".to_owned(), problem))?;
        let tls = match (implicit, self.tls) {
            (true, None | Some(TlsWord::Required)) => Tls::Implicit,
            (true, Some(TlsWord::Opportunistic | TlsWord::None)) => {
                return Err((
                    "tls".to_owned(),
                    "smtps:// is TLS from the first byte: write smtp://, or take `tls` out".to_owned(),
                ));
            }
            (false, Some(TlsWord::Required)) => Tls::Required,
            (false, Some(TlsWord::Opportunistic)) => Tls::Opportunistic,
            (false, Some(TlsWord::None)) => Tls::None,
            // A certificate for this machine's own loopback is seldom one that anybody signed.
            (false, None) if place.is_loopback() => Tls::None,
            (false, None) => Tls::Required,
        };
        let login = login(&url, place.is_loopback() || self.tls == Some(TlsWord::None));
        let mut hidden = secrets_of(&url);
        if let Some(login) = &login {
            hidden.extend(session::secrets(login));
        }
        let config = socket::trust(self.ca.as_deref()).map_err(|problem| ("tls_ca".to_owned(), problem))?;
        let hello = self.hello.clone().unwrap_or_else(own_name);
        Ok((Server { place, tls, config, hello, login }, hidden))
    }
}

fn login(url: &Url, in_the_clear: bool) -> Option<Login> {
    let decoded = |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
    let password = url.password()?;
    Some(Login { user: decoded(url.username()), password: decoded(password), in_the_clear })
}

/// Where a URL leads, and whether TLS begins with the first byte there.
fn place(url: &Url) -> Result<(Place, bool), String> {
    if !matches!(url.path(), "" | "/") || url.query().is_some() || url.fragment().is_some() {
        return Err("must be no more than smtp://HOST:PORT or smtps://HOST:PORT".to_owned());
    }
    let implicit = url.scheme() == "smtps";
    Ok((Place::of(url, if implicit { 465 } else { 587 }), implicit))
}

impl Configured for Smtp {
    fn account(&self) -> String {
        self.server.account()
    }

    fn origin(&self) -> Option<String> {
        Some(self.server.origin())
    }

    fn after_timeout(&self) -> Duration {
        self.after_dot
    }

    fn credential_sha256(&self, secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
        let url = self.server.resolve(secrets).map_err(|(_key, problem)| problem)?;
        let Some(password) = url.password() else { return Ok(None) };
        let hash = Sha256::new_with_prefix(url.username()).chain_update([0]).chain_update(password);
        Ok(Some(hash.finalize().into()))
    }

    fn request_sha256(&self, _operation: Option<&str>) -> [u8; 32] {
        let mut hash = Sha256::new();
        // Each part with its length in front, so that no two configurations share their bytes.
        let mut part = |text: &str| {
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(text.as_bytes());
        };
        part("smtp");
        part(&RENDERER_VERSION.to_string());
        part(&self.server.account());
        part(self.from.as_ref().map_or("", |(text, _)| text));
        part(self.key_header.as_deref().unwrap_or_default());
        part(&self.key_prefix);
        hash.finalize().into()
    }

    fn known_as(&self, effect: &Effect, key: &str) -> Option<(&'static str, String)> {
        let mail = Mail::of(effect, self.from.as_ref().map(|(_, mailbox)| mailbox)).ok()?;
        Some(("Message-ID", identity::message_id(key, &effect.downstream, mail.from.address.domain())))
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        let plain = self.tls == Some(TlsWord::None);
        if plain && self.server.has_login() {
            warnings.push("tls is \"none\": the password travels in the clear".to_owned());
        }
        if self.after_dot < Duration::from_secs(60) {
            warnings.push("data_timeout is short: a server that takes longer to answer the end of a mail has accepted it, and the effect is in doubt (RFC 5321 says 10 minutes)".to_owned());
        }
        warnings
    }

    fn build(&self, secrets: &Secrets) -> Result<Arc<dyn Downstream>, (String, String)> {
        let (server, hidden) = self.resolve(secrets)?;
        Ok(Arc::new(SmtpDownstream {
            pool: Pool::new(server),
            from: self.from.as_ref().map(|(_, mailbox)| mailbox.clone()),
            key_header: self.key_header.clone(),
            after_dot: self.after_dot,
            veil: Veil::new(hidden),
        }))
    }
}
