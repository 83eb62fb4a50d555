//! `[dashboard]`: where it listens, who is let in, what nobody is shown.

mod access;
#[cfg(test)]
mod tests;

use std::{net::SocketAddr, sync::Arc};

use aftercommit::effect::Effect;
use aftercommit_dashboard as dashboard;
use ipnet::IpNet;

pub use access::{Auth, Login, Proxy};

use super::{
    ConfigError, Finding, Section, Settings, address,
    values::{Rate, Secrets},
};

/// Loopback: anything else requires auth.
const LISTEN: &str = "127.0.0.1:7799";

/// `[dashboard]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Dashboard {
    /// Where it listens.
    pub listen: SocketAddr,
    /// Names under which it is called besides those of this machine.
    pub hosts: Vec<String>,
    /// Proxies whose word about the client's address and scheme is taken.
    pub proxies: Vec<IpNet>,
    /// Nothing can be changed.
    pub read_only: bool,
    /// What the pages call themselves; empty: `aftercommit`.
    pub title: String,
    /// Who is let in.
    pub auth: Auth,
    /// What nobody is shown, besides what nobody ever is.
    pub redact: Redact,
    /// How much one bulk action may do.
    pub bulk: dashboard::BulkLimits,
}

/// `dashboard.redact`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Redact {
    /// Names of headers.
    pub headers: Vec<String>,
    /// JSON pointers into payloads and answers.
    pub pointers: Vec<String>,
    /// Regular expressions.
    pub patterns: Vec<String>,
}

/// Reads the table.
pub(super) fn read(section: Section<'_>) -> Result<Dashboard, ConfigError> {
    let listen: String = section.get_or("listen", LISTEN.to_owned())?;
    let listen = address(&section, &listen, LISTEN)?;
    let read = Dashboard {
        listen,
        hosts: section.get_or("hosts", Vec::new())?,
        proxies: networks(&section, "proxies")?,
        read_only: section.get_or("read_only", false)?,
        title: section.get_or("title", String::new())?,
        auth: access::read(&section)?,
        redact: redact(section.child("redact")?)?,
        bulk: bulk(section.child("bulk")?)?,
    };
    if let Some(host) = read.hosts.iter().find(|host| !is_host(host)) {
        let problem = format!(
            "{host:?} is no host name: write it alone, without scheme, port and path (\"ops.example.com\")"
        );
        return Err(section.error("hosts", problem));
    }
    if read.is_open() && read.auth.is_empty() {
        return Err(section.error("listen", open_to_others(read.listen)));
    }
    section.finish()?;
    Ok(read)
}

/// What to write where others could come in and nobody asks who they are.
fn open_to_others(listen: SocketAddr) -> String {
    format!(
        "{listen} can be reached from other machines, and that requires auth: write auth = {{ tokens = [{{ name = \"ops\", role = \
         \"operator\", secret = {{ env = \"OPS_TOKEN\" }} }}] }} into [dashboard], or listen at a loopback address such as {LISTEN}"
    )
}

fn is_host(name: &str) -> bool {
    let address = name.strip_prefix('[').and_then(|name| name.strip_suffix(']'));
    address.is_some_and(|address| address.parse::<std::net::Ipv6Addr>().is_ok())
        || (!name.is_empty()
            && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b".-_".contains(&byte)))
}

/// Networks, or single addresses.
fn networks(section: &Section<'_>, key: &str) -> Result<Vec<IpNet>, ConfigError> {
    let written: Vec<String> = section.get_or(key, Vec::new())?;
    let net = |text: &String| {
        text.parse::<IpNet>().or_else(|_| text.parse().map(|address: std::net::IpAddr| address.into()))
    };
    let nets = written.iter().map(|text| {
        let net = net(text).map_err(|_error| {
            section.error(
                key,
                format!("{text:?} is no network: write \"10.0.0.0/8\", or an address such as \"10.0.0.7\""),
            )
        })?;
        if net.prefix_len() == 0 {
            let problem = format!(
                "{text:?} is everybody, and everybody could say to be anybody: name the proxy's own addresses"
            );
            return Err(section.error(key, problem));
        }
        Ok(net.trunc())
    });
    nets.collect()
}

fn redact(section: Section<'_>) -> Result<Redact, ConfigError> {
    let redact = Redact {
        headers: section.get_or("headers", Vec::new())?,
        pointers: section.get_or("pointers", Vec::new())?,
        patterns: section.get_or("patterns", Vec::new())?,
    };
    for text in &redact.pointers {
        dashboard::Pointer::parse(text)
            .map_err(|problem| section.error("pointers", format!("{text:?}: {problem}")))?;
    }
    for text in &redact.patterns {
        dashboard::Pattern::parse(text)
            .map_err(|problem| section.error("patterns", format!("{text:?}: {problem}")))?;
    }
    section.finish()?;
    Ok(redact)
}

fn bulk(section: Section<'_>) -> Result<dashboard::BulkLimits, ConfigError> {
    let default = dashboard::BulkLimits::default();
    let max = section.get_or("max", default.max)?;
    if max == 0 || max > default.max {
        return Err(section.error("max", format!("must be from 1 to {}", default.max)));
    }
    let rate = match section.get::<Rate>("rate")? {
        None => default.rate,
        Some(Rate(rate)) => {
            let per_second = u64::from(rate.calls) / rate.period.as_secs().max(1);
            let per_second = u32::try_from(per_second).unwrap_or(u32::MAX);
            if per_second == 0 {
                return Err(section.error(
                    "rate",
                    "must be at least one a second, such as \"25/s\"; leave it out for no limit",
                ));
            }
            per_second
        }
    };
    section.finish()?;
    Ok(dashboard::BulkLimits { max, rate })
}

impl Dashboard {
    /// Whether other machines can reach it.
    fn is_open(&self) -> bool {
        !self.listen.ip().is_loopback()
    }

    /// What may surprise.
    pub(super) fn findings(&self, secrets: &Secrets) -> Vec<Finding> {
        let mut findings = self.auth.findings(secrets, self.is_open());
        if self.listen.ip().is_unspecified() && self.hosts.is_empty() {
            findings.push(Finding {
                key: "dashboard.hosts".to_owned(),
                message: "is empty, so that the dashboard answers when it is called localhost or 127.0.0.1 and to no other name: write \
                          hosts = [\"ops.example.com\"] with the names under which people call it"
                    .to_owned(),
            });
        }
        findings
    }

    /// How people call it besides.
    fn names(&self) -> Vec<String> {
        let mut names = self.hosts.clone();
        if !self.listen.ip().is_unspecified() {
            names.push(match self.listen.ip() {
                std::net::IpAddr::V4(address) => address.to_string(),
                std::net::IpAddr::V6(address) => format!("[{address}]"),
            });
        }
        names
    }
}

impl Settings {
    /// How the dashboard runs, with its secrets read.
    ///
    /// # Errors
    ///
    /// One for each secret that cannot be used; never empty.
    pub fn dashboard(&self) -> Result<dashboard::Settings, Vec<ConfigError>> {
        let table = &self.dashboard;
        let ours = "read with the table";
        let mut redact = dashboard::Redact::default();
        redact.headers.extend(table.redact.headers.iter().cloned());
        redact
            .pointers
            .extend(table.redact.pointers.iter().map(|text| dashboard::Pointer::parse(text).expect(ours)));
        redact
            .patterns
            .extend(table.redact.patterns.iter().map(|text| dashboard::Pattern::parse(text).expect(ours)));
        Ok(dashboard::Settings {
            environment: self.environment.clone(),
            title: table.title.clone(),
            read_only: table.read_only,
            hosts: table.names(),
            access: table.auth.resolve(&self.secrets, table.is_open())?,
            proxies: table.proxies.clone(),
            redact,
            bulk: table.bulk,
            known_as: self.known_as(),
            ..dashboard::Settings::default()
        })
    }

    /// What the configured downstreams know effects by.
    pub fn known_as(&self) -> dashboard::KnownAs {
        let downstreams = self.downstreams.clone();
        Arc::new(move |effect: &Effect| downstreams.get(&*effect.downstream)?.known_as(effect))
    }
}
