//! What a `webhook` downstream's table says, validated.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use aftercommit::{
    clock::SystemClock,
    contract::Dedupe,
    downstream::{
        Downstream,
        endpoint::{Directory, Endpoint},
    },
    effect::Effect,
};
use sha2::{Digest, Sha256};

use super::{
    WebhookDownstream,
    secrets::{Described, Problem, Reference},
};
use crate::{
    cloudevents::Envelope,
    config::{
        Answers, ConfigError, Configured, KeyIn, Operation, SecretRef, Secrets, Section, Setting as _, Size,
        Source, host_port, quoted,
    },
    http::{self, Egress, SystemNames},
};

/// Changes when the same configuration and effect would be rendered to other bytes.
const RENDERER_VERSION: u32 = 1;
/// More of an answer is not read: a receiver has nothing to say but its status.
const MAX_RESPONSE: usize = 64 << 10;
/// Calls to one endpoint at one time, per worker process: with the default of 16 slots, three slow ones leave some to the others.
const ENDPOINT_CONCURRENCY: u32 = 4;
/// Svix disables an endpoint after five days of nothing but failures; shorter ones punish a long weekend.
const DISABLE_AFTER: Duration = Duration::from_secs(5 * 86_400);

/// One operation, as it is called.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) answers: Answers,
    timeout: Duration,
}

/// A `webhook` downstream.
#[derive(Clone, Debug)]
pub(super) struct Webhook {
    pub(super) default: Call,
    pub(super) operations: BTreeMap<String, Call>,
    /// Sent with every request, by lower-case name.
    pub(super) headers: BTreeMap<String, String>,
    pub(super) envelope: Option<Envelope>,
    pub(super) egress: Arc<Egress>,
    pub(super) endpoints: BTreeMap<String, Fixed>,
    /// How the references in the database's rows may begin.
    pub(super) secrets_from: Vec<String>,
    pub(super) max_response: usize,
    pub(super) endpoint_concurrency: u32,
    disable_after: Option<Duration>,
    key_prefix: String,
    concurrency: u32,
}

/// An endpoint that stands in the configuration.
#[derive(Clone)]
pub(super) struct Fixed {
    pub(super) url: Written,
    pub(super) secrets: Vec<SecretRef>,
    pub(super) headers: BTreeMap<String, String>,
}

/// Where the URL stands.
#[derive(Clone, PartialEq, Eq)]
pub(super) enum Written {
    Plain(String),
    Secret(SecretRef),
}

impl Written {
    /// What stands for it in the pinned request: a URL that is a secret is its reference, as everywhere.
    fn pinned(&self) -> String {
        match self {
            Self::Plain(url) => format!("at {url}"),
            Self::Secret(reference) => format!("by {reference}"),
        }
    }
}

/// A URL may hold tokens: it never prints.
impl fmt::Debug for Fixed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Fixed").field("secrets", &self.secrets).finish_non_exhaustive()
    }
}

/// Reads the part of the table that is this kind's.
pub(crate) fn read(source: &Source<'_>) -> Result<Arc<dyn Configured>, ConfigError> {
    let section = source.section;
    if source.key_prefix.contains('.') {
        let problem = "must not hold a \".\": it stands in webhook-id, where a dot ends it";
        section.wrong(section.error("key_prefix", problem));
    }
    let secrets_from = section.noting(secrets_from(section));
    let may_move = secrets_from.as_ref().is_ok_and(|prefixes| !prefixes.is_empty());
    let default = section.noting(call(section, source.default, may_move));
    let operations = source.named(|section, operation| call(section, operation, may_move));
    let egress = section.noting(egress(section));
    let Size(max_response) = section.get_or("max_response", Size(MAX_RESPONSE))?;
    let endpoint_concurrency = section.get_or("endpoint_concurrency", ENDPOINT_CONCURRENCY)?;
    if endpoint_concurrency == 0 {
        section.wrong(section.error("endpoint_concurrency", "must be at least 1"));
    }
    let disable_after = section.get_or("disable_after", DISABLE_AFTER)?;
    let headers = section.noting(headers(section));
    let envelope = section.noting(Envelope::read(section));
    let endpoints = section.noting(endpoints(section, egress.as_deref().ok()));
    let webhook = Webhook {
        default: default?,
        operations: operations?,
        headers: headers?,
        envelope: envelope?,
        endpoints: endpoints?,
        egress: egress?,
        secrets_from: secrets_from?,
        max_response,
        endpoint_concurrency,
        disable_after: (!disable_after.is_zero()).then_some(disable_after),
        key_prefix: source.key_prefix.to_owned(),
        concurrency: source.concurrency,
    };
    webhook.check(section)?;
    Ok(Arc::new(webhook))
}

fn egress(section: &Section<'_>) -> Result<Arc<Egress>, ConfigError> {
    let guard = section.child("egress")?;
    if guard.has("auth_origins") {
        guard.wrong(guard.error("auth_origins", "is for credentials, and a webhook has none: it is signed"));
    }
    Egress::read(&guard).map(Arc::new)
}

fn call(section: &Section<'_>, operation: &Operation, may_move: bool) -> Result<Call, ConfigError> {
    if operation.contract.dedupe == Dedupe::Lookup {
        return Err(
            section.error("contract", "a webhook cannot be asked: dedupe must be \"none\" or \"key\"")
        );
    }
    if operation.contract.dedupe == Dedupe::Key && may_move {
        return Err(section.error(
            "contract",
            "dedupe = \"key\" does not go with secrets_from: an endpoint of the database may move to a receiver that never saw the key; write dedupe = \"none\" with on_unknown = \"retry\" or \"hold\", or keep these endpoints in the configuration",
        ));
    }
    let ours = |name: &String| {
        name.eq_ignore_ascii_case("webhook-id") || name.eq_ignore_ascii_case("idempotency-key")
    };
    if !matches!(&operation.written.key_in(), KeyIn::Header(name) if ours(name)) {
        return Err(section.error("contract", "key_in cannot be set: the key of a webhook is its webhook-id"));
    }
    let answers = operation.written.answers().map_err(|problem| section.error("contract", problem))?;
    Ok(Call { answers, timeout: operation.timeout })
}

/// Names that the signature or an event owns, in lower case.
pub(super) fn is_taken(name: &str, envelope: Option<&Envelope>) -> bool {
    http::is_ours(name) || name.starts_with("webhook-") || (envelope.is_some() && name.starts_with("ce-"))
}

fn headers(section: &Section<'_>) -> Result<BTreeMap<String, String>, ConfigError> {
    let headers = http::headers(section)?;
    match headers.keys().find(|name| name.starts_with("webhook-") || name.starts_with("ce-")) {
        None => Ok(headers),
        Some(name) => {
            Err(section.error("headers", format!("{name} is not yours to set: it belongs to the message")))
        }
    }
}

/// What is wrong with each is noted. `egress`: the guard of their URLs, where that could be read.
fn endpoints(section: &Section<'_>, egress: Option<&Egress>) -> Result<BTreeMap<String, Fixed>, ConfigError> {
    let table = section.child("endpoints")?;
    let (mut endpoints, mut wrong) = (BTreeMap::new(), None);
    for name in table.names() {
        let graphic = name.bytes().all(|byte| (b'!'..=b'~').contains(&byte));
        let read = if name.is_empty() || name.len() > 128 || !graphic {
            Err(table.error(&name, "an endpoint's name has 1 to 128 printable ASCII characters, no space"))
        } else {
            table.child(&name).and_then(|section| fixed(&section, egress))
        };
        match table.noting(read) {
            Ok(fixed) => {
                endpoints.insert(name, fixed);
            }
            Err(problem) => wrong = Some(problem),
        }
    }
    wrong.map_or(Ok(endpoints), Err)
}

fn fixed(section: &Section<'_>, egress: Option<&Egress>) -> Result<Fixed, ConfigError> {
    let rate = section
        .not_yet("rate", "limit the whole downstream with its own rate, or ask the receiver for Retry-After");
    let rate = section.noting(rate);
    let next: Option<SecretRef> = section.get("secret_next")?;
    let headers = section.noting(headers(section));
    let url = section.noting(url(section, egress));
    let secret: Result<SecretRef, ConfigError> = section.get("secret")?.ok_or_else(|| {
        section
            .missing("secret", "is missing: write secret = { env = \"NAME\" }, which holds whsec_… or whsk_…")
    });
    let secret = section.noting(secret);
    section.finished()?;
    rate?;
    Ok(Fixed { url: url?, secrets: std::iter::once(secret?).chain(next).collect(), headers: headers? })
}

fn url(section: &Section<'_>, egress: Option<&Egress>) -> Result<Written, ConfigError> {
    Ok(if section.is_table("url") {
        Written::Secret(
            section.get("url")?.ok_or_else(|| section.error("url", "must be a URL or a reference to one"))?,
        )
    } else {
        // Never shown: its path or query may be all that keeps strangers out.
        let text = section.get_unshown::<String>("url")?;
        let text = text.ok_or_else(|| {
            section.missing("url", "is missing: write url = \"https://…\", or url = { env = \"NAME\" }")
        })?;
        if let Some(egress) = egress {
            let accepted = egress.accept(&text).map_err(|problem| section.error("url", problem))?;
            section.note(
                "url",
                quoted(&format!("{}/…", accepted.origin().ascii_serialization())),
                &section.place("url"),
            );
        }
        Written::Plain(text)
    })
}

fn secrets_from(section: &Section<'_>) -> Result<Vec<String>, ConfigError> {
    let prefixes: Vec<String> = section.get_or("secrets_from", Vec::new())?;
    for prefix in &prefixes {
        // A folder, never a part of a name beside it; and never every variable or file.
        let fits = match prefix.split_once(':') {
            Some(("env", name)) => !name.is_empty(),
            Some(("file", path)) => path.len() > 1 && path.starts_with('/') && path.ends_with('/'),
            Some(_) | None => false,
        };
        if !fits || Reference::is_climbing(prefix) {
            return Err(section.error("secrets_from", format!("{} must be how references may begin: \"env:HOOK_\", or a folder such as \"file:/run/secrets/hooks/\"", prefix.show())));
        }
    }
    Ok(prefixes)
}

impl Webhook {
    /// The operation's call; `None` when the configuration does not have it.
    pub(super) fn call(&self, operation: Option<&str>) -> Option<&Call> {
        operation.map_or(Some(&self.default), |name| self.operations.get(name))
    }

    /// A header that an endpoint sets as well as the downstream would be sent twice.
    fn check(&self, section: &Section<'_>) -> Result<(), ConfigError> {
        for (endpoint, fixed) in &self.endpoints {
            if let Some(name) = fixed.headers.keys().find(|name| self.headers.contains_key(*name)) {
                return Err(section.error(
                    "headers",
                    format!("{name} is set by endpoint {endpoint} too: set it in one place"),
                ));
            }
        }
        Ok(())
    }
}

impl Configured for Webhook {
    fn known_as(&self, _effect: &Effect, key: &str) -> Option<(&'static str, String)> {
        Some(("webhook-id", key.to_owned()))
    }

    fn account(&self) -> String {
        "any endpoint".to_owned()
    }

    fn credential_sha256(&self, _secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
        Ok(None)
    }

    /// With every endpoint of the configuration, where it is and what headers it gets: what may have reached one place must not be
    /// sent again to another. Those of the database are not in it, as their owners move them while effects wait: for them the
    /// configuration admits no contract that leans on what a receiver has seen. Signatures are excepted anyway.
    fn request_sha256(&self, _operation: Option<&str>) -> [u8; 32] {
        let mut hash = Sha256::new();
        // Each part with its length in front, so that no two configurations share their bytes.
        let mut part = |text: &str| {
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(text.as_bytes());
        };
        part("webhook");
        part(&RENDERER_VERSION.to_string());
        part(&self.key_prefix);
        let mut headers = |headers: &BTreeMap<String, String>| {
            part(&headers.len().to_string());
            for (name, value) in headers {
                part(name);
                part(value);
            }
        };
        headers(&self.headers);
        for (name, fixed) in &self.endpoints {
            headers(&BTreeMap::from([(name.clone(), fixed.url.pinned())]));
            headers(&fixed.headers);
        }
        if let Some(envelope) = &self.envelope {
            part(&envelope.pinned());
        }
        hash.finalize().into()
    }

    fn endpoints(&self) -> Vec<(String, String)> {
        let host = |fixed: &Fixed| match &fixed.url {
            Written::Plain(url) => self.egress.accept(url).map(|url| host_port(&url)).unwrap_or_default(),
            Written::Secret(reference) => reference.to_string(),
        };
        self.endpoints.iter().map(|(name, fixed)| (name.clone(), host(fixed))).collect()
    }

    fn endpoint_problems(&self, secrets: &Secrets, rows: &[Endpoint]) -> Option<Vec<(String, String)>> {
        let fixed = self.endpoints.iter().map(|(name, fixed)| (name.as_str(), Described::Fixed(fixed)));
        let kept = rows
            .iter()
            .filter(|row| row.url.is_some() && row.disabled.is_none())
            .filter(|row| !self.endpoints.contains_key(&*row.name))
            .map(|row| (&*row.name, Described::Kept(row, &self.secrets_from)));
        let problem = |described: &Described<'_>| match described.ready(&self.egress, secrets) {
            Ok(_ready) => None,
            Err(Problem::Url(why) | Problem::Secret(why)) => Some(why),
        };
        let all = fixed.chain(kept);
        Some(all.filter_map(|(name, described)| Some((name.to_owned(), problem(&described)?))).collect())
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = self.egress.warnings();
        if !self.headers.is_empty() {
            warnings.push("headers go to every endpoint: a secret does not belong there".to_owned());
        }
        if self.endpoints.is_empty() && self.secrets_from.is_empty() {
            warnings.push("there is no endpoint, and secrets_from allows no secret to those in the database: every effect will fail".to_owned());
        }
        warnings
    }

    fn build(&self, secrets: &Secrets) -> Result<Arc<dyn Downstream>, (String, String)> {
        let calls = std::iter::once(&self.default).chain(self.operations.values());
        let fastest = calls.map(|call| call.timeout).min().unwrap_or(self.default.timeout);
        let builder = http::builder(true, fastest, self.concurrency);
        let directory = Directory::new(self.disable_after, Arc::new(SystemClock));
        let built = WebhookDownstream::build(self, secrets, builder, (directory, Arc::new(SystemNames)));
        Ok(Arc::new(built.map_err(|problem| ("egress".to_owned(), problem))?))
    }
}
