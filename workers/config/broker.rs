//! Where a broker or server is, and how it knows us: a URL without a password, a login beside it, or the whole URL as a secret.

use url::Url;

use super::{
    ConfigError,
    section::Section,
    values::{SecretRef, Secrets},
};

/// The address of a broker or server, not yet resolved.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Broker {
    place: Place,
    login: Option<(String, SecretRef)>,
    schemes: &'static [&'static str],
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Place {
    /// Written out, without a password.
    Plain(Url),
    /// A secret as a whole: such URLs usually hold a password.
    Secret(SecretRef),
}

impl Broker {
    /// Reads `key`, a URL of one of `schemes` or a reference to one, and `auth = { user, password }`.
    pub(crate) fn read(
        section: &Section<'_>,
        key: &str,
        schemes: &'static [&'static str],
    ) -> Result<Self, ConfigError> {
        let login = section.noting(login(section));
        if section.is_table(key) {
            let Some(secret) = section.get::<SecretRef>(key)? else {
                return Err(section.error(key, "must be a URL or a reference to one"));
            };
            return Ok(Self { place: Place::Secret(secret), login: login?, schemes });
        }
        // Not noted before it is known to hold no password: `get` would show it.
        let Some(text) = section.get_unshown::<String>(key)? else {
            let example = format!(
                "is missing: write {key} = \"{}://host\", or {key} = {{ env = \"NAME\" }} where it holds a password",
                schemes.first().unwrap_or(&"")
            );
            return Err(section.missing(key, &example));
        };
        let url = parse(&text, schemes).map_err(|problem| section.error(key, problem))?;
        if url.password().is_some() {
            return Err(section.error(key, "must not hold a password: write auth = { user = \"…\", password = { env = \"…\" } }, or the whole URL as { env = \"NAME\" }"));
        }
        let _shown: Option<String> = section.get(key)?;
        Ok(Self { place: Place::Plain(url), login: login?, schemes })
    }

    /// Where it is, for people and for whoever shares its troubles; the same whether or not secrets can be read.
    pub(crate) fn origin(&self) -> String {
        match &self.place {
            Place::Plain(url) => format!("{}://{}", url.scheme(), host_port(url)),
            Place::Secret(reference) => reference.to_string(),
        }
    }

    /// The key space at the vendor: where it is, and as whom we go there.
    pub(crate) fn account(&self) -> String {
        let login =
            self.login.as_ref().map_or_else(String::new, |(user, secret)| format!(" {user} {secret}"));
        match &self.place {
            Place::Plain(url) => format!("{url}{login}"),
            Place::Secret(reference) => format!("{reference}{login}"),
        }
    }

    /// Whether the URL names a user in the clear, and no password: it may be a token.
    pub(crate) fn has_bare_user(&self) -> bool {
        matches!(&self.place, Place::Plain(url) if !url.username().is_empty())
    }

    /// Whether a login stands beside the URL.
    pub(crate) fn has_login(&self) -> bool {
        self.login.is_some()
    }

    /// Whether its scheme is `scheme`, or not known here.
    pub(crate) fn may_use(&self, scheme: &str) -> bool {
        matches!(&self.place, Place::Secret(_))
            || matches!(&self.place, Place::Plain(url) if url.scheme() == scheme)
    }

    /// Whether it is `scheme`, and not on this machine.
    pub(crate) fn is_plain_beyond_loopback(&self, scheme: &str) -> bool {
        let loopback = |url: &Url| matches!(url.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        matches!(&self.place, Place::Plain(url) if url.scheme() == scheme && !loopback(url))
    }

    /// The URL with its credentials. The error is (key, problem), and holds no secret.
    pub(crate) fn resolve(&self, secrets: &Secrets) -> Result<Url, (String, String)> {
        let mut url = match &self.place {
            Place::Plain(url) => url.clone(),
            Place::Secret(reference) => secrets
                .resolve(reference)
                .and_then(|text| parse(&text, self.schemes))
                .map_err(|problem| ("url".to_owned(), problem))?,
        };
        if let Some((user, reference)) = &self.login {
            let password = secrets.resolve(reference).map_err(|problem| ("auth".to_owned(), problem))?;
            let encoded = |text: &str| {
                percent_encoding::utf8_percent_encode(text, percent_encoding::NON_ALPHANUMERIC).to_string()
            };
            if url.set_username(&encoded(user)).is_err()
                || url.set_password(Some(&encoded(&password))).is_err()
            {
                return Err(("url".to_owned(), "cannot carry a user and a password".to_owned()));
            }
        }
        Ok(url)
    }
}

/// The secrets that a resolved URL holds, in the forms in which they may be repeated to us.
pub(crate) fn secrets_of(url: &Url) -> Vec<String> {
    let Some(password) = url.password() else { return Vec::new() };
    let decoded = percent_encoding::percent_decode_str(password).decode_utf8_lossy().into_owned();
    vec![password.to_owned(), decoded]
}

/// `host:port` without credentials: all that a message for people says of a URL.
pub(crate) fn host_port(url: &Url) -> String {
    let host = url.host_str().unwrap_or_default();
    url.port_or_known_default().map_or_else(|| host.to_owned(), |port| format!("{host}:{port}"))
}

/// The error repeats nothing of the text, which may be a secret.
fn parse(text: &str, schemes: &[&str]) -> Result<Url, String> {
    let wanted = || schemes.iter().map(|scheme| format!("{scheme}://")).collect::<Vec<_>>().join(" or ");
    let url = Url::parse(text).map_err(|_error| format!("is not a URL that begins with {}", wanted()))?;
    if !schemes.contains(&url.scheme()) || url.host_str().is_none_or(str::is_empty) {
        return Err(format!("must begin with {} and name a host", wanted()));
    }
    Ok(url)
}

fn login(section: &Section<'_>) -> Result<Option<(String, SecretRef)>, ConfigError> {
    if !section.has("auth") {
        return Ok(None);
    }
    let table = section.child("auth")?;
    let (user, password) = (table.get("user")?, table.get("password")?);
    table.finish()?;
    let (Some(user), Some(password)) = (user, password) else {
        return Err(section.error("auth", "must be { user = \"…\", password = { env = \"…\" } }"));
    };
    Ok(Some((user, password)))
}
