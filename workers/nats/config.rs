//! What a `nats` downstream's table says, validated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{
    contract::{Dedupe, Window},
    downstream::Downstream,
    effect::Effect,
};
use tokio_rustls::rustls::ClientConfig;
use url::Url;

use super::{
    NatsDownstream,
    connect::{Access, Login},
    message::check_subject,
};
use crate::{
    cloudevents::Envelope,
    config::{Broker, ConfigError, Configured, Operation, SecretRef, Secrets, Section, Source, secrets_of},
    pinned,
    shared::Shared,
    socket,
    veil::Veil,
};

/// Changes when the same configuration and effect would be rendered to another message.
const RENDERER_VERSION: &str = "1";
const SCHEMES: &[&str] = &["nats", "tls"];

/// How the server knows us, besides a user and a password.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Credential {
    None,
    Token(SecretRef),
    Nkey(SecretRef),
    /// The text of a `.creds` file.
    Creds(SecretRef),
}

/// One operation, as it is called.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) subject: Option<String>,
    pub(super) envelope: Option<Envelope>,
    /// How long the contract says that the stream remembers a message id; `None` where nothing is promised.
    pub(super) window: Option<Duration>,
    dedupe: Dedupe,
    timeout: Duration,
}

/// A `nats` downstream.
#[derive(Clone, Debug)]
pub(super) struct Nats {
    broker: Broker,
    /// More servers of the same cluster.
    servers: Vec<String>,
    /// A file with certificates to trust besides the system's.
    ca: Option<String>,
    credential: Credential,
    pub(super) stream: String,
    key_prefix: String,
    default: Call,
    operations: BTreeMap<String, Call>,
}

/// Reads the part of the table that is this kind's.
pub(crate) fn read(source: &Source<'_>) -> Result<Arc<dyn Configured>, ConfigError> {
    let section = source.section;
    let broker = section.noting(Broker::read(section, "url", SCHEMES));
    let servers = section.noting(servers(section));
    let ca = section.noting(section.get("ca"));
    let credential = section.noting(credential(section));
    if broker.as_ref().is_ok_and(Broker::has_bare_user) && !section.has("auth") {
        section.wrong(section.error(
            "url",
            "names a user without a password: write auth = { user = \"…\", password = { env = \"…\" } }, or token = { env = \"…\" }",
        ));
    }
    let envelope = section.noting(Envelope::read(section));
    let around = envelope.as_ref().ok().and_then(Option::as_ref);
    let default = section.noting(call(section, source.default, around));
    let operations = source.named(|section, operation| {
        let mut call = call(section, operation, around)?;
        call.subject = call.subject.or_else(|| default.as_ref().ok()?.subject.clone());
        Ok(call)
    });
    let stream = section.noting(stream(section));
    envelope?;
    Ok(Arc::new(Nats {
        broker: broker?,
        servers: servers?,
        ca: ca?,
        credential: credential?,
        stream: stream?,
        key_prefix: source.key_prefix.to_owned(),
        default: default?,
        operations: operations?,
    }))
}

fn stream(section: &Section<'_>) -> Result<String, ConfigError> {
    let Some(stream) = section.get::<String>("stream")? else {
        return Err(section.missing(
            "stream",
            "is missing: write stream = \"ORDERS\", the stream that takes the messages; a message that reaches another is refused",
        ));
    };
    if !is_name(&stream) {
        return Err(section.error("stream", "must be the name of a stream: no spaces, no . * > / or \\"));
    }
    Ok(stream)
}

fn is_name(stream: &str) -> bool {
    !stream.is_empty()
        && stream.bytes().all(|byte| (b'!'..=b'~').contains(&byte) && !b".*>/\\".contains(&byte))
}

fn servers(section: &Section<'_>) -> Result<Vec<String>, ConfigError> {
    let servers: Vec<String> = section.get("servers")?.unwrap_or_default();
    for server in &servers {
        let fits = Url::parse(server).is_ok_and(|url| {
            SCHEMES.contains(&url.scheme())
                && url.host_str().is_some_and(|host| !host.is_empty())
                && url.username().is_empty()
                && url.password().is_none()
        });
        if !fits {
            return Err(section.error(
                "servers",
                "must be a list of nats://host:port or tls://host:port without credentials: those of url are used for all",
            ));
        }
    }
    Ok(servers)
}

/// Whom TLS trusts, where it is used; `None` leaves it to the client, should a server insist on it.
fn trust(
    url: &Url,
    servers: &[String],
    ca: Option<&str>,
) -> Result<Option<Arc<ClientConfig>>, (String, String)> {
    let uses_tls = url.scheme() == "tls" || servers.iter().any(|server| server.starts_with("tls://"));
    // A machine without root certificates can still speak without TLS.
    let trust = (uses_tls || ca.is_some()).then(|| socket::trust(ca)).transpose();
    trust.map_err(|problem| ("ca".to_owned(), problem))
}

fn credential(section: &Section<'_>) -> Result<Credential, ConfigError> {
    let token = section.get("token")?.map(Credential::Token);
    let nkey = section.get("nkey")?.map(Credential::Nkey);
    let creds = section.get("creds")?.map(Credential::Creds);
    let mut given = [token, nkey, creds].into_iter().flatten();
    let first = given.next();
    if given.next().is_some() || (first.is_some() && section.has("auth")) {
        return Err(section.error("auth", "give only one of auth, token, nkey, creds"));
    }
    Ok(first.unwrap_or(Credential::None))
}

fn call(
    section: &Section<'_>,
    operation: &Operation,
    envelope: Option<&Envelope>,
) -> Result<Call, ConfigError> {
    let subject: Option<String> = section.get("subject")?;
    if let Some(Err(problem)) = subject.as_deref().map(check_subject) {
        section.wrong(section.error("subject", problem));
    }
    let contract = &operation.contract;
    let window = match (contract.dedupe, contract.window) {
        (Dedupe::None, _) => None,
        (Dedupe::Key, Some(Window::For(window))) => Some(window),
        (Dedupe::Key, Some(Window::Forever)) => {
            return Err(section.error(
                "contract",
                "no stream remembers message ids for ever: write the stream's duplicate window, such as window = \"2m\"",
            ));
        }
        (Dedupe::Key, None) => {
            return Err(section.error(
                "contract",
                "dedupe = \"key\" needs the stream's duplicate window, such as window = \"2m\" (and a margin that fits into it: margin = \"10s\")",
            ));
        }
        (Dedupe::Lookup, _) => {
            return Err(section.error(
                "contract",
                "a stream cannot be asked for a message: dedupe must be \"key\" (with the stream's duplicate window) or \"none\"",
            ));
        }
    };
    if contract.can_probe {
        return Err(section.error("probe", "a stream cannot be asked for a message: leave it out"));
    }
    Ok(Call {
        subject,
        envelope: envelope.cloned(),
        window,
        dedupe: contract.dedupe,
        timeout: operation.timeout,
    })
}

impl Nats {
    /// The operation's call; `None` when the configuration does not have it.
    pub(super) fn call(&self, operation: Option<&str>) -> Option<&Call> {
        operation.map_or(Some(&self.default), |name| self.operations.get(name))
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        std::iter::once(&self.default).chain(self.operations.values())
    }

    /// The subjects that the configuration names.
    pub(super) fn subjects(&self) -> impl Iterator<Item = &str> {
        self.calls().filter_map(|call| call.subject.as_deref())
    }

    fn secret(&self) -> String {
        match &self.credential {
            Credential::None => String::new(),
            Credential::Token(secret) => format!(" token {secret}"),
            Credential::Nkey(secret) => format!(" nkey {secret}"),
            Credential::Creds(secret) => format!(" creds {secret}"),
        }
    }

    /// How the server knows us, and what of it is secret.
    fn login(&self, url: &Url, secrets: &Secrets) -> Result<(Login, Vec<String>), (String, String)> {
        let resolve =
            |key: &str, secret| secrets.resolve(secret).map_err(|problem| (key.to_owned(), problem));
        let decoded =
            |text: &str| percent_encoding::percent_decode_str(text).decode_utf8_lossy().into_owned();
        Ok(match &self.credential {
            Credential::Token(secret) => {
                let token = resolve("token", secret)?;
                (Login::Token(token.clone()), vec![token])
            }
            Credential::Nkey(secret) => {
                let seed = resolve("nkey", secret)?;
                (Login::Nkey(seed.clone()), vec![seed])
            }
            Credential::Creds(secret) => {
                let text = resolve("creds", secret)?;
                if async_nats::ConnectOptions::with_credentials(&text).is_err() {
                    let problem = "is no text of a .creds file: it holds a JWT and a seed";
                    return Err(("creds".to_owned(), problem.to_owned()));
                }
                let lines = text.lines().map(str::to_owned).collect();
                (Login::Creds(text), lines)
            }
            Credential::None => match (url.username(), url.password()) {
                ("", None) => (Login::None, Vec::new()),
                // How a token is written into a URL.
                (token, None) => (Login::Token(decoded(token)), vec![token.to_owned(), decoded(token)]),
                (user, Some(password)) => {
                    (Login::User { user: decoded(user), password: decoded(password) }, secrets_of(url))
                }
            },
        })
    }
}

impl Configured for Nats {
    fn known_as(&self, _effect: &Effect, key: &str) -> Option<(&'static str, String)> {
        Some(("Nats-Msg-Id", key.to_owned()))
    }

    fn credential_sha256(&self, secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
        let url = self.broker.resolve(secrets).map_err(|(key, problem)| format!("{key} {problem}"))?;
        let (login, secret) = self.login(&url, secrets).map_err(|(_key, problem)| problem)?;
        let mut parts = vec![self.account()];
        parts.extend(secret);
        let parts: Vec<&str> = parts.iter().map(String::as_str).collect();
        Ok((!matches!(login, Login::None)).then(|| pinned::sha256_of(&parts)))
    }

    fn account(&self) -> String {
        // Message ids are a stream's own.
        format!("{}{} {}", self.broker.account(), self.secret(), self.stream)
    }

    fn origin(&self) -> Option<String> {
        Some(self.broker.origin())
    }

    fn request_sha256(&self, operation: Option<&str>) -> [u8; 32] {
        let call = self.call(operation).unwrap_or(&self.default);
        pinned::sha256_of(&[
            "nats",
            RENDERER_VERSION,
            &self.account(),
            &self.stream,
            call.subject.as_deref().unwrap_or_default(),
            &format!("{:?}", call.dedupe),
            &self.key_prefix,
            &call.envelope.as_ref().map(Envelope::pinned).unwrap_or_default(),
        ])
    }

    fn warnings(&self) -> Vec<String> {
        let secret = self.credential != Credential::None || self.broker.has_login();
        if secret && self.broker.is_plain_beyond_loopback("nats") {
            return vec![
                "url is nats://: unless the server insists on TLS, the credentials travel in the clear; write tls://"
                    .to_owned(),
            ];
        }
        Vec::new()
    }

    fn build(&self, secrets: &Secrets) -> Result<Arc<dyn Downstream>, (String, String)> {
        let url = self.broker.resolve(secrets)?;
        let (login, secret) = self.login(&url, secrets)?;
        let fastest = self.calls().map(|call| call.timeout).min().unwrap_or_default();
        let trust = trust(&url, &self.servers, self.ca.as_deref())?;
        let access = Access::new(&url, &self.servers, (login, trust), fastest)?;
        let veil = Veil::new(secret);
        Ok(Arc::new(NatsDownstream { nats: self.clone(), access, veil, link: Shared::default() }))
    }
}
