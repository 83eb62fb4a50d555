//! `dashboard.auth`: tokens, users, and the proxy that authenticates.

use std::collections::BTreeMap;

use aftercommit_dashboard::{self as dashboard, Role};
use ipnet::IpNet;

use super::networks;
use crate::config::{
    ConfigError, Finding, SecretRef, Section, Setting, is_header_name,
    section::nearest,
    tree::Node,
    values::{Secrets, quoted},
};

/// Shorter ones can be guessed by whoever has time.
const SECRET_LEN: usize = 16;
/// The longest name.
const NAME_MAX: usize = 100;

/// Who is let in; nobody listed: whoever is at this machine.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Auth {
    /// Bearer tokens.
    pub tokens: Vec<Login>,
    /// Users with passwords.
    pub basic: Vec<Login>,
    /// A proxy that authenticates.
    pub proxy: Option<Proxy>,
}

/// A token or a user.
#[derive(Clone, Debug, PartialEq)]
pub struct Login {
    /// The name in the audit.
    pub name: String,
    /// What it may do.
    pub role: Role,
    /// Where its secret stands.
    pub secret: SecretRef,
    /// Where it is written, for errors: place and key.
    place: (String, String),
}

/// `dashboard.auth.proxy`.
#[derive(Clone, Debug, PartialEq)]
pub struct Proxy {
    /// Where it calls from.
    pub from: Vec<IpNet>,
    /// The header with the user's name.
    pub user: String,
    /// The header with the user's groups.
    pub groups: Option<String>,
    /// What a group may do.
    pub roles: BTreeMap<String, Role>,
    /// What everybody may do whom it lets in.
    pub role: Option<Role>,
}

impl Setting for Role {
    fn read(node: &Node) -> Result<Self, String> {
        let words = || Self::ALL.map(Self::as_str).into_iter();
        let known = "\"viewer\", \"operator\" or \"admin\"";
        let Some(text) = node.value.text() else {
            return Err(format!("must be {known}, and is {}", node.value.what()));
        };
        Self::ALL.into_iter().find(|role| role.as_str() == text).ok_or_else(|| match nearest(text, words()) {
            Some(word) => format!("is no role; did you mean \"{word}\"? There are {known}"),
            None => format!("is no role: it must be {known}"),
        })
    }

    fn show(&self) -> String {
        quoted(self.as_str())
    }
}

/// A table of groups and their roles.
impl Setting for BTreeMap<String, Role> {
    fn read(node: &Node) -> Result<Self, String> {
        let crate::config::Value::Table(table) = &node.value else {
            return Err(format!(
                "must be a table such as {{ sre = \"admin\" }}, and is {}",
                node.value.what()
            ));
        };
        let role = |(group, node): (&String, &Node)| {
            Ok((group.clone(), Role::read(node).map_err(|problem| format!("the role of {group} {problem}"))?))
        };
        table.iter().map(role).collect()
    }

    fn show(&self) -> String {
        let pairs: Vec<_> =
            self.iter().map(|(group, role)| format!("{} = {}", quoted(group), role.show())).collect();
        format!("{{ {} }}", pairs.join(", "))
    }
}

/// Reads `auth` of the table.
pub(super) fn read(section: &Section<'_>) -> Result<Auth, ConfigError> {
    let auth = section.child("auth")?;
    let proxy = if auth.has("proxy") { Some(proxy(auth.child("proxy")?)?) } else { None };
    let read = Auth { tokens: logins(&auth, "tokens")?, basic: logins(&auth, "basic")?, proxy };
    let mut names: Vec<&str> = Vec::new();
    for login in read.logins() {
        if names.contains(&login.name.as_str()) {
            let (place, key) = login.place.clone();
            let problem = format!(
                "{:?} is a name twice, and the audit could not tell them apart: give each its own",
                login.name
            );
            return Err(ConfigError::new(place, format!("{key}.name"), problem));
        }
        names.push(&login.name);
    }
    auth.finished()?;
    if section.has("auth") && read.is_empty() {
        let problem =
            "lets nobody in: write tokens, basic or proxy into it, or leave it out for this machine alone";
        return Err(section.error("auth", problem));
    }
    Ok(read)
}

fn logins(auth: &Section<'_>, key: &str) -> Result<Vec<Login>, ConfigError> {
    auth.children(key)?.into_iter().map(login).collect()
}

fn login(section: Section<'_>) -> Result<Login, ConfigError> {
    let name: Option<String> = section.get("name")?;
    let role: Option<Role> = section.get("role")?;
    let secret: Option<SecretRef> = section.get("secret")?;
    let Some(name) = name else {
        return Err(section.missing("name", "is missing: write the name that the audit will have"));
    };
    if name.trim().is_empty()
        || name.len() > NAME_MAX
        || name.contains(':')
        || name.chars().any(char::is_control)
    {
        let problem = format!(
            "must have 1 to {NAME_MAX} characters, and no colon: basic authentication ends the name there"
        );
        return Err(section.error("name", problem));
    }
    let Some(role) = role else {
        return Err(section.missing("role", "is missing: write \"viewer\", \"operator\" or \"admin\""));
    };
    let Some(secret) = secret else {
        return Err(section.missing(
            "secret",
            "is missing: write secret = { env = \"OPS_TOKEN\" } or { file = \"/run/secrets/ops\" }",
        ));
    };
    let place = (section.place("secret").to_string(), section.dotted(""));
    section.finish()?;
    Ok(Login { name, role, secret, place })
}

fn proxy(section: Section<'_>) -> Result<Proxy, ConfigError> {
    let from = networks(&section, "from")?;
    if from.is_empty() {
        return Err(section.missing(
            "from",
            "is missing: write the addresses that the proxy calls from, such as [\"10.0.0.7\"]",
        ));
    }
    let user = section.get_or("user", "X-Forwarded-User".to_owned())?;
    let proxy = Proxy {
        from,
        user,
        groups: section.get("groups")?,
        roles: section.get_or("roles", BTreeMap::new())?,
        role: section.get("role")?,
    };
    for (key, name) in [("user", Some(&proxy.user)), ("groups", proxy.groups.as_ref())] {
        if name.is_some_and(|name| !is_header_name(name)) {
            return Err(section.error(key, "must be the name of a header, such as \"X-Forwarded-User\""));
        }
    }
    if proxy.groups.is_none() && !proxy.roles.is_empty() {
        return Err(section.error(
            "roles",
            "takes groups: write groups = \"X-Forwarded-Groups\", the header that has them",
        ));
    }
    if proxy.roles.is_empty() && proxy.role.is_none() {
        let remedy = "is missing: write what everybody may do whom the proxy lets in (role = \"viewer\"), or groups and roles";
        return Err(section.missing("role", remedy));
    }
    section.finish()?;
    Ok(proxy)
}

impl Auth {
    /// Whether nobody is listed.
    pub fn is_empty(&self) -> bool {
        self.tokens.is_empty() && self.basic.is_empty() && self.proxy.is_none()
    }

    fn logins(&self) -> impl Iterator<Item = &Login> {
        self.tokens.iter().chain(&self.basic)
    }

    /// With its secrets read. `open`: other machines can reach it.
    ///
    /// # Errors
    ///
    /// One for each secret that cannot be used.
    pub(super) fn resolve(
        &self,
        secrets: &Secrets,
        open: bool,
    ) -> Result<dashboard::Access, Vec<ConfigError>> {
        let mut problems: Vec<_> =
            self.passwords(open).filter_map(|login| login.refuses_short(secrets)).collect();
        let mut seen = Vec::new();
        let mut resolve = |login: &Login| match login.resolve(secrets, &mut seen) {
            Ok(login) => Some(login),
            Err(problem) => {
                problems.push(problem);
                None
            }
        };
        let access = dashboard::Access {
            tokens: self.tokens.iter().filter_map(&mut resolve).collect(),
            basic: self.basic.iter().filter_map(&mut resolve).collect(),
            proxy: self.proxy.as_ref().map(|proxy| dashboard::Proxy {
                from: proxy.from.clone(),
                user: proxy.user.clone(),
                groups: proxy.groups.clone(),
                roles: proxy.roles.clone(),
                role: proxy.role,
            }),
        };
        if problems.is_empty() { Ok(access) } else { Err(problems) }
    }

    /// Passwords that must be long: those that other machines may try. A person chose them, which a program can guess; tokens are made.
    fn passwords(&self, open: bool) -> impl Iterator<Item = &Login> {
        self.basic.iter().filter(move |_| open)
    }

    /// Secrets that somebody may guess. Those that cannot be read, or are refused, are told elsewhere.
    pub(super) fn findings(&self, secrets: &Secrets, open: bool) -> Vec<Finding> {
        let refused: Vec<&Login> = self.passwords(open).collect();
        let short = |login: &&Login| login.is_short(secrets) && !refused.contains(login);
        let finding = |login: &Login| Finding {
            key: format!("{}.secret", login.place.1),
            message: format!(
                "has fewer than {SECRET_LEN} characters, and can be guessed in time: `openssl rand -hex 32` makes one that cannot"
            ),
        };
        self.logins().filter(short).map(finding).collect()
    }
}

impl Login {
    fn is_short(&self, secrets: &Secrets) -> bool {
        secrets.resolve(&self.secret).is_ok_and(|secret| secret.chars().count() < SECRET_LEN)
    }

    /// Why a password is refused that has to be long.
    fn refuses_short(&self, secrets: &Secrets) -> Option<ConfigError> {
        let (place, key) = self.place.clone();
        let problem = || {
            format!(
                "the secret {} has fewer than {SECRET_LEN} characters, and other machines can try to guess it (`listen`): `openssl rand \
                 -hex 32` makes one that nobody can",
                self.secret
            )
        };
        self.is_short(secrets).then(|| ConfigError::new(place, format!("{key}.secret"), problem()))
    }

    /// `seen` are the secrets of those before it.
    fn resolve(
        &self,
        secrets: &Secrets,
        seen: &mut Vec<dashboard::Secret>,
    ) -> Result<dashboard::Login, ConfigError> {
        let wrong = |problem: String| {
            let (place, key) = self.place.clone();
            ConfigError::new(place, format!("{key}.secret"), problem)
        };
        let secret = secrets.resolve(&self.secret).map_err(wrong)?;
        if secret.trim() != secret {
            let problem = format!(
                "the secret {} begins or ends with a blank, which nobody can type: take it away",
                self.secret
            );
            return Err(wrong(problem));
        }
        let secret = dashboard::Secret::new(&secret);
        if seen.contains(&secret) {
            let problem = format!(
                "the secret {} is another one's too, and who has it would be either: give each its own",
                self.secret
            );
            return Err(wrong(problem));
        }
        seen.push(secret.clone());
        Ok(dashboard::Login { name: self.name.clone(), role: self.role, secret })
    }
}
