//! The egress guard: which whole URLs may be called, and which addresses they may lead to.
//!
//! A `base_url` is trusted, because an operator wrote it. A URL that comes with an effect (or with an answer) is not: it
//! passes here on every attempt. Its form and its host, if that is an address, are judged before anything is resolved; a name
//! is resolved once, by the connection that will use the answer, and every address of the answer must be allowed
//! ([`resolve`]). Connections are not kept, so there is none whose address was judged for another attempt. Whatever is in
//! doubt is refused.

mod ranges;
mod resolve;
mod settings;

use std::{
    collections::BTreeSet,
    net::{IpAddr, SocketAddr},
    sync::Arc,
};

use ipnet::IpNet;
use reqwest::{Client, ClientBuilder, dns::Resolve};
use url::{Host, Url};

use super::template;

#[cfg(test)]
pub(super) use ranges::special;
pub(crate) use resolve::SystemNames;
pub(super) use settings::{Target, check_auth};

/// What whole URLs may lead to.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Egress {
    /// Names that may lead anywhere: whoever allows one trusts whoever answers for it.
    names: BTreeSet<String>,
    /// Networks that may be called although they are in a special range.
    networks: Vec<IpNet>,
    /// Ports besides the scheme's own.
    ports: BTreeSet<u16>,
    /// `http://` is taken too.
    http: bool,
    /// The origins that get the downstream's credentials.
    auth_origins: BTreeSet<String>,
}

/// Why a URL or an address is not called. It names the host and the kind of address, never the address that a name led to,
/// and nothing of the path or the query.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(crate) struct Refused(String);

impl Egress {
    /// The URL of an effect's target, if it may be called as far as can be told without resolving its name. The error says
    /// what is wrong with the target.
    pub(crate) fn accept(&self, target: &str) -> Result<Url, String> {
        let (scheme, rest) =
            target.split_once("://").ok_or("must be a whole URL, such as https://hooks.example.com/path")?;
        if !scheme.eq_ignore_ascii_case("https") && !scheme.eq_ignore_ascii_case("http") {
            return Err("must begin with https://".to_owned());
        }
        let (authority, tail) = rest.split_at(rest.find(['/', '?']).unwrap_or(rest.len()));
        if authority.contains('@') {
            return Err("must not hold a user or password: an effect's headers cannot either, \
                        credentials stand in the downstream's auth"
                .to_owned());
        }
        // No zone, no percent, no other script, no backslash, space or control: nothing that parsers read in two ways.
        let plain = |byte: u8| byte.is_ascii_alphanumeric() || b".-_:[]".contains(&byte);
        if authority.is_empty() || !authority.bytes().all(plain) {
            return Err("must name its host in ASCII letters, digits, \".\", \"-\" and \"_\"".to_owned());
        }
        let (path, query) = match tail.split_once('?') {
            Some((path, query)) => (path, Some(query)),
            None => (tail, None),
        };
        template::literal(path)?;
        template::literal(query.unwrap_or_default())?;
        let bare = |segment: &str| segment.split(';').next().is_some_and(template::is_dots);
        if path.split('/').any(bare) {
            return Err("must not have \".\" or \"..\" as a segment".to_owned());
        }
        let url = Url::parse(target).map_err(|_error| "is not a URL that can be called")?;
        // A parser that changed any of it would call something else than what was judged and pinned.
        let as_written = url.path() == if path.is_empty() { "/" } else { path } && url.query() == query;
        if !as_written || is_disguised(&url, authority) {
            return Err(
                "must be written in its normal form: a host that is an address as four decimal numbers, \
                        nothing that has to be encoded"
                    .to_owned(),
            );
        }
        self.check(&url).map_err(|refused| refused.to_string())?;
        Ok(url)
    }

    /// Whether `url` may be called, as far as can be told without resolving its name.
    pub(crate) fn check(&self, url: &Url) -> Result<(), Refused> {
        let refused = |why: String| Err(Refused(why));
        let own_port = match url.scheme() {
            "https" => 443,
            "http" if self.http => 80,
            "http" => {
                return refused("must begin with https://; egress.http = true takes http:// too".to_owned());
            }
            _ => return refused("must begin with https://".to_owned()),
        };
        if !url.username().is_empty() || url.password().is_some() || url.fragment().is_some() {
            return refused("must not hold a user, a password or a fragment".to_owned());
        }
        let Some(port) = url.port_or_known_default() else {
            return refused("must have a port that can be told".to_owned());
        };
        if port != own_port && !self.ports.contains(&port) {
            return refused(format!("leads to port {port}; egress.ports lists the ports besides {own_port}"));
        }
        match url.host() {
            Some(Host::Domain(name)) => self.check_name(name),
            Some(Host::Ipv4(address)) => self.check_address(&address.to_string(), address.into()),
            Some(Host::Ipv6(address)) => self.check_address(&format!("[{address}]"), address.into()),
            None => refused("must name a host".to_owned()),
        }
    }

    fn check_name(&self, name: &str) -> Result<(), Refused> {
        // "localhost." is another text for the same host, and not the name of any list.
        if name.is_empty() || name.ends_with('.') {
            return Err(Refused("must name a host, without a dot at its end".to_owned()));
        }
        if name.parse::<IpAddr>().is_ok() {
            return Err(Refused("has a host that some read as an address".to_owned()));
        }
        let local = name == "localhost" || name.ends_with(".localhost");
        if local && !self.names.contains(name) {
            return Err(Refused(format!(
                "leads to {name}, which is this machine: the egress guard refuses it"
            )));
        }
        Ok(())
    }

    fn check_address(&self, shown: &str, address: IpAddr) -> Result<(), Refused> {
        match self.forbids(shown, address) {
            None => Ok(()),
            Some(range) => Err(Refused(format!(
                "leads to {shown}, {range}: the egress guard refuses it unless egress.allow lists it"
            ))),
        }
    }

    /// The kind of address that `address` is, when `host` must not lead there.
    fn forbids(&self, host: &str, address: IpAddr) -> Option<&'static str> {
        if self.names.contains(host) {
            return None;
        }
        let listed = self.networks.iter().filter(|network| network.contains(&address));
        match (ranges::embedded(address), listed.map(IpNet::prefix_len).max()) {
            (_, None) => ranges::special(address),
            // The connection is taken to the host behind: a whole range of them says nothing about that one.
            (Some(behind), Some(length)) if length <= ranges::EMBEDDING => self.forbids(host, behind.into()),
            (Some(_) | None, Some(_)) => None,
        }
    }

    /// Whether the downstream's credentials may go to `url`.
    pub(super) fn trusts_with_credentials(&self, url: &Url) -> bool {
        self.auth_origins.contains(&url.origin().ascii_serialization())
    }

    /// The origin of an effect's target, for budgets that hold per origin; `None` when it will be refused.
    pub(crate) fn origin_of(&self, target: &str) -> Option<String> {
        self.accept(target).ok().map(|url| url.origin().ascii_serialization())
    }

    /// What an operator should look at twice.
    pub(crate) fn warnings(&self) -> Vec<String> {
        let mut warnings = Vec::new();
        if self.networks.iter().any(|network| network.prefix_len() == 0) {
            warnings.push("egress.allow lists every address: the egress guard refuses none".to_owned());
        }
        if self.auth_origins.iter().any(|origin| origin.starts_with("http://")) {
            warnings.push(
                "egress.auth_origins has an http:// origin: the credentials travel in the clear".to_owned(),
            );
        }
        warnings
    }
}

/// A client that calls nothing but what its guard allows.
pub(crate) struct Guarded {
    egress: Arc<Egress>,
    names: Arc<dyn Resolve>,
    client: Client,
}

impl Guarded {
    /// Made of a client's settings; `names` answers for names.
    pub(crate) fn build(
        egress: Arc<Egress>,
        builder: ClientBuilder,
        names: Arc<dyn Resolve>,
    ) -> reqwest::Result<Self> {
        let guard = resolve::Guard::new(Arc::clone(&egress), Arc::clone(&names));
        // Not kept: the next attempt resolves and judges again, and thousands of hosts hold no idle connections.
        let client = builder.dns_resolver(guard).pool_max_idle_per_host(0).build()?;
        Ok(Self { egress, names, client })
    }

    /// The client, for a request to `url`. A host that is an address is never resolved, so it must be judged here.
    pub(crate) fn client_for(&self, url: &Url) -> Result<&Client, Refused> {
        self.egress.check(url).map(|()| &self.client)
    }

    /// Where `url` leads, judged as for a call: for who connects without calling. The error is a sentence for people.
    pub(crate) async fn addresses(&self, url: &Url) -> Result<Vec<SocketAddr>, String> {
        self.egress.check(url).map_err(|refused| refused.to_string())?;
        let port = url.port_or_known_default().unwrap_or_default();
        let name = match url.host() {
            Some(Host::Domain(name)) => name,
            Some(Host::Ipv4(address)) => return Ok(vec![SocketAddr::new(address.into(), port)]),
            Some(Host::Ipv6(address)) => return Ok(vec![SocketAddr::new(address.into(), port)]),
            None => return Err("must name a host".to_owned()),
        };
        let guard = resolve::Guard::new(Arc::clone(&self.egress), Arc::clone(&self.names));
        let wanted: reqwest::dns::Name =
            name.parse().map_err(|_error| format!("{name} is no host's name"))?;
        match guard.resolve(wanted).await {
            Ok(found) => Ok(found.map(|address| SocketAddr::new(address.ip(), port)).collect()),
            Err(error) => Err(error
                .downcast_ref::<Refused>()
                .map_or_else(|| format!("the name {name} cannot be resolved"), ToString::to_string)),
        }
    }

    /// The guard.
    pub(crate) fn egress(&self) -> &Egress {
        &self.egress
    }
}

/// Whether the host is an IPv4 address that was written in another way: short, octal, hexadecimal, as one number.
fn is_disguised(url: &Url, authority: &str) -> bool {
    let Some(Host::Ipv4(address)) = url.host() else { return false };
    authority.rsplit_once(':').map_or(authority, |(host, _port)| host) != address.to_string()
}
