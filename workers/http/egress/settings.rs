//! `dynamic_target` and the `egress` table: what an effect's target means, and what whole URLs may lead to.

use std::sync::Arc;

use ipnet::IpNet;
use url::{Host, Url};

use super::Egress;
use crate::config::{ConfigError, Section};

/// What an effect's target is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(in crate::http) enum Target {
    /// Nothing: an effect must not have one.
    None,
    /// Appended to the base URL's path.
    Path,
    /// A whole URL, behind the guard.
    Url(Arc<Egress>),
}

impl Target {
    /// Reads it.
    pub(in crate::http) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        let unknown = || section.error("dynamic_target", "must be \"none\", \"path\" or \"url\"");
        let target = match section.get_or("dynamic_target", "none".to_owned())?.as_str() {
            _ if section.is_wrong("dynamic_target") => Err(unknown()),
            "none" => Ok(Self::None),
            "path" => Ok(Self::Path),
            "url" => return Ok(Self::Url(Arc::new(Egress::read(&section.child("egress")?)?))),
            _ => Err(unknown()),
        };
        // Asked for, so that it is no unknown key of a table whose target is one.
        section.child("egress")?;
        let target = target?;
        if section.has("egress") {
            return Err(section.error(
                "egress",
                "guards whole URLs, and base_url is trusted: set dynamic_target = \"url\", or leave it out",
            ));
        }
        Ok(target)
    }

    /// In the hash of what a request is rendered from.
    pub(in crate::http) const fn pinned(&self) -> &'static str {
        match self {
            Self::None => "no target",
            Self::Path => "target in the path",
            Self::Url(_) => "target is the URL",
        }
    }
}

impl Egress {
    /// Reads the table `egress`.
    pub(crate) fn read(section: &Section<'_>) -> Result<Self, ConfigError> {
        let mut egress = Self { http: section.get_or("http", false)?, ..Self::default() };
        for entry in section.get_or("allow", Vec::<String>::new())? {
            match allowed(&entry) {
                Some(Allowed::Network(network)) => egress.networks.push(network),
                Some(Allowed::Name(name)) => {
                    egress.names.insert(name);
                }
                None => section.wrong(section.error(
                    "allow",
                    format!(
                        "{entry:?} must be an address, a network such as \"10.1.0.0/16\", or a host name such as \"hooks.internal\""
                    ),
                )),
            }
        }
        for port in section.get_or("ports", Vec::<u16>::new())? {
            if port == 0 {
                section.wrong(section.error("ports", "must be ports from 1 to 65535"));
            }
            egress.ports.insert(port);
        }
        for text in section.get_or("auth_origins", Vec::<String>::new())? {
            match origin(&text) {
                Some(origin) => {
                    egress.auth_origins.insert(origin);
                }
                None => section.wrong(section.error(
                    "auth_origins",
                    "must be origins such as \"https://api.example.com\", without a path",
                )),
            }
        }
        section.finished()?;
        Ok(egress)
    }
}

enum Allowed {
    Network(IpNet),
    Name(String),
}

fn allowed(entry: &str) -> Option<Allowed> {
    if let Ok(network) = entry.parse::<IpNet>() {
        // "10.1.2.3/16" means one of two things: whoever wrote it should say which.
        return (network.trunc() == network).then_some(Allowed::Network(network));
    }
    if let Ok(address) = entry.parse::<std::net::IpAddr>() {
        return Some(Allowed::Network(address.into()));
    }
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_".contains(&byte);
    if !entry.bytes().all(plain) {
        return None;
    }
    // As the parser of URLs has it, which is how it is compared.
    match Host::parse(entry).ok()? {
        Host::Domain(name) if !name.is_empty() && !name.ends_with('.') => Some(Allowed::Name(name)),
        Host::Domain(_) | Host::Ipv4(_) | Host::Ipv6(_) => None,
    }
}

fn origin(text: &str) -> Option<String> {
    let url = Url::parse(text).ok()?;
    let origin = url.origin().ascii_serialization();
    // A path, a query or a user would promise more than an origin can hold.
    let bare = matches!(url.scheme(), "http" | "https") && url.as_str() == format!("{origin}/");
    bare.then_some(origin)
}

/// What `auth` must be refused for: credentials that would go wherever an effect says.
pub(in crate::http) fn check_auth(section: &Section<'_>, target: &Target) -> Result<(), ConfigError> {
    let Target::Url(_) = target else { return Ok(()) };
    if !section.has("auth") || section.child("egress")?.has("auth_origins") {
        return Ok(());
    }
    Err(section.error(
        "auth",
        "the credentials would go to whatever URL an effect names: list who may have them, such as egress = { auth_origins = [\"https://api.example.com\"] } ([]: base_url alone)",
    ))
}
