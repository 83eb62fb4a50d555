//! Where an endpoint is and what signs for it: of the configuration, or of a row that somebody else wrote.

use aftercommit::downstream::endpoint::Endpoint;
use url::Url;

use super::{
    config::{Fixed, Written},
    sign::Key,
};
use crate::{
    config::{SecretRef, Secrets},
    http::Egress,
    veil::Veil,
};

/// An endpoint, ready to be called once.
pub(super) struct Ready {
    pub(super) url: Url,
    /// The URL of its row, as it is written there; `None` where it stands in the configuration.
    pub(super) row_url: Option<String>,
    pub(super) keys: Vec<Key>,
    /// Its secrets, and what its URL holds beside the host.
    pub(super) veil: Veil,
}

/// Why an endpoint cannot be called.
pub(super) enum Problem {
    /// Its URL may not be called: nothing changes that but another URL.
    Url(String),
    /// A secret cannot be read or does not sign: an operator mends that.
    Secret(String),
}

/// A reference to a secret as a row has it, `env:NAME` or `file:/path`.
pub(super) struct Reference;

impl Reference {
    /// Whether a path leaves the folder that it begins with.
    pub(super) fn is_climbing(text: &str) -> bool {
        text.split('/').any(|segment| matches!(segment, "." | ".."))
    }

    /// The secret that it means, where the configuration allows it to mean that one.
    fn parse(text: &str, allowed: &[String]) -> Result<SecretRef, String> {
        let fits =
            allowed.iter().any(|prefix| text.len() > prefix.len() && text.starts_with(prefix.as_str()));
        if !fits || Self::is_climbing(text) {
            return Err("its secret is none that secrets_from allows".to_owned());
        }
        match text.split_once(':') {
            Some(("env", name)) => Ok(SecretRef::Env(name.to_owned())),
            Some(("file", path)) => Ok(SecretRef::File(path.to_owned())),
            Some(_) | None => Err("its secret must be env:NAME or file:/path".to_owned()),
        }
    }
}

/// An endpoint as somebody described it.
pub(super) enum Described<'a> {
    /// In the configuration.
    Fixed(&'a Fixed),
    /// In the database: nothing of it is trusted, and it may name the secrets alone that begin so.
    Kept(&'a Endpoint, &'a [String]),
}

impl Described<'_> {
    /// Where it is, if that may be called.
    pub(super) fn url(&self, egress: &Egress, secrets: &Secrets) -> Result<Url, Problem> {
        let accept =
            |url: &str| egress.accept(url).map_err(|problem| Problem::Url(format!("its URL {problem}")));
        match self {
            Self::Fixed(Fixed { url: Written::Plain(url), .. }) => accept(url),
            Self::Fixed(Fixed { url: Written::Secret(reference), .. }) => {
                secrets.resolve(reference).map_err(Problem::Secret).and_then(|url| accept(&url))
            }
            Self::Kept(row, _) => accept(row.url.as_deref().unwrap_or_default()),
        }
    }

    fn references(&self) -> Result<Vec<SecretRef>, Problem> {
        match self {
            Self::Fixed(fixed) => Ok(fixed.secrets.clone()),
            Self::Kept(row, allowed) => row
                .secrets
                .as_deref()
                .unwrap_or_default()
                .split(' ')
                .map(|reference| Reference::parse(reference, allowed).map_err(Problem::Secret))
                .collect(),
        }
    }

    /// Ready to be called.
    pub(super) fn ready(&self, egress: &Egress, secrets: &Secrets) -> Result<Ready, Problem> {
        let url = self.url(egress, secrets)?;
        let (mut keys, mut hidden) = (Vec::new(), tokens(&url));
        for reference in &self.references()? {
            let text = secrets.resolve(reference).map_err(Problem::Secret)?;
            let key = Key::parse(&text)
                .map_err(|problem| Problem::Secret(format!("the secret {reference} {problem}")))?;
            keys.push(key);
            hidden.extend(text.split_once('_').map(|(_prefix, encoded)| encoded.to_owned()));
            hidden.push(text);
        }
        let row_url = match self {
            Self::Fixed(_) => None,
            Self::Kept(row, _) => row.url.clone(),
        };
        Ok(Ready { url, row_url, keys, veil: Veil::new(hidden) })
    }
}

/// What a URL holds that may be a token: its path, its query, and their parts. Never a word of its host, which people must see.
fn tokens(url: &Url) -> Vec<String> {
    let (host, query) = (url.host_str().unwrap_or_default(), url.query().unwrap_or_default());
    let values = query.split('&').flat_map(|pair| pair.split('=').skip(1));
    let parts = url.path().split('/').chain(values).filter(|part| !host.contains(&part.to_ascii_lowercase()));
    [url.path(), query].into_iter().chain(parts).map(str::to_owned).collect()
}
