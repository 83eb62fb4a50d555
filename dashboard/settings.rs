//! What a dashboard is told by whoever runs it. Secrets are resolved here and never print.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    sync::Arc,
};

use aftercommit::{
    NewEffect,
    clock::{Clock, SystemClock},
    effect::Effect,
};
use ipnet::IpNet;

use crate::{Operations, access::Role, redaction::Redact};

/// What a downstream knows an effect by besides its key, or under which name it knows the key (a mail's `Message-ID`): the name there,
/// and what it is. Whoever has the workers' configuration can tell, as far as the effect is given.
pub type KnownAs = Arc<dyn Fn(&Effect) -> Option<(&'static str, String)> + Send + Sync>;

/// How a dashboard runs. The default: for whoever is at this machine, who may do everything.
#[derive(Clone)]
pub struct Settings {
    /// The environment, as the badge shows it; empty: no badge.
    pub environment: String,
    /// What the pages call themselves; empty: `aftercommit`.
    pub title: String,
    /// Nothing can be changed by anybody.
    pub read_only: bool,
    /// Names under which it is called besides `localhost`, `127.0.0.1` and `[::1]`, without ports.
    pub hosts: Vec<String>,
    /// Who is let in.
    pub access: Access,
    /// Who is at this machine, where nobody needs credentials, as the audit will say.
    pub local: String,
    /// Proxies whose word about the client's address and scheme is taken, besides those of [`Access::proxy`].
    pub proxies: Vec<IpNet>,
    /// What nobody is shown.
    pub redact: Redact,
    /// How much one bulk action may do.
    pub bulk: BulkLimits,
    /// Where the time of sessions and throttles is read.
    pub clock: Arc<dyn Clock>,
    /// Health and metrics of the process that it is part of; `None`: of the database alone.
    pub operations: Option<Operations>,
    /// What downstreams know effects by; the default knows nothing.
    pub known_as: KnownAs,
    /// What somebody may send to see how it goes, as long as there is no effect; `None`: nothing is offered, as everywhere where the
    /// downstreams are real.
    pub trial: Option<Trial>,
}

/// An effect that harms nobody.
#[derive(Clone, Debug)]
pub struct Trial {
    /// What is written; without a key, so that each is an effect of its own.
    pub effect: NewEffect,
    /// Where it goes, and why nothing outside hears of it: a sentence for people.
    pub says: String,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            environment: String::new(),
            title: String::new(),
            read_only: false,
            hosts: Vec::new(),
            access: Access::default(),
            local: "local".to_owned(),
            proxies: Vec::new(),
            redact: Redact::default(),
            bulk: BulkLimits::default(),
            clock: Arc::new(SystemClock),
            operations: None,
            known_as: Arc::new(|_effect: &Effect| None),
            trial: None,
        }
    }
}

/// Who is let in. Empty: whoever asks from this machine without a proxy in between, as an admin. Otherwise only who proves to be
/// one of these.
#[derive(Clone, Debug, Default)]
pub struct Access {
    /// Bearer tokens; they may be given on the login page too.
    pub tokens: Vec<Login>,
    /// Users with a password, by HTTP's basic authentication or on the login page.
    pub basic: Vec<Login>,
    /// A proxy that authenticates.
    pub proxy: Option<Proxy>,
}

impl Access {
    /// Whether nobody needs credentials.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.basic.is_empty() && self.proxy.is_none()
    }
}

/// A token, or a user.
#[derive(Clone, Debug)]
pub struct Login {
    /// The name under which the audit knows it.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// What proves it.
    pub secret: Secret,
}

/// A proxy that authenticates, and says in headers whom.
#[derive(Clone, Debug)]
pub struct Proxy {
    /// Where it calls from; the same headers from anybody else mean nothing.
    pub from: Vec<IpNet>,
    /// The header with the user's name.
    pub user: String,
    /// The header with the user's groups, separated by commas.
    pub groups: Option<String>,
    /// What a group may do; of several the most.
    pub roles: BTreeMap<String, Role>,
    /// What a user may do none of whose groups is listed; `None`: nothing.
    pub role: Option<Role>,
}

/// A secret's hash: what is kept of it, and compared in constant time.
#[derive(Clone, PartialEq, Eq)]
pub struct Secret {
    hash: [u8; 32],
    is_long: bool,
}

/// A secret of so many characters, of which so many differ, cannot be guessed.
const LONG: usize = 32;
const DIFFERENT: usize = 8;

impl Secret {
    /// Of a secret.
    pub fn new(secret: &str) -> Self {
        let different = secret.chars().collect::<BTreeSet<_>>().len();
        let is_long = secret.chars().count() >= LONG && different >= DIFFERENT;
        Self { hash: hash(secret.as_bytes()), is_long }
    }

    /// Whether nobody can guess it.
    pub(crate) fn is_long(&self) -> bool {
        self.is_long
    }

    /// Whether `given` is the secret; takes as long for every wrong one.
    pub(crate) fn is(&self, given: &str) -> bool {
        aws_lc_rs::constant_time::verify_slices_are_equal(&self.hash, &hash(given.as_bytes())).is_ok()
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}

/// SHA-256.
pub(crate) fn hash(bytes: &[u8]) -> [u8; 32] {
    let digest = aws_lc_rs::digest::digest(&aws_lc_rs::digest::SHA256, bytes);
    digest.as_ref().try_into().expect("SHA-256 has 32 bytes")
}

/// How much one bulk action may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BulkLimits {
    /// Effects of one bulk action at most.
    pub max: u32,
    /// Effects a second, unless whoever starts it asks for less; 0: no limit.
    pub rate: u32,
}

impl Default for BulkLimits {
    fn default() -> Self {
        Self { max: 100_000, rate: 0 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_secret_is_long_where_nobody_can_guess_it() {
        let long = |secret: &str| Secret::new(secret).is_long();
        assert!(long("2f0c6f1d9b7e4a558c3d2e1f0a9b8c7d") && long(&"abcdefgh".repeat(4)));
        assert!(!long("2f0c6f1d9b7e4a558c3d2e1f0a9b8c7") && !long(&"ab".repeat(40)) && !long(""));
    }
}
