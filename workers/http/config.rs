//! What an `http` downstream's table says, validated.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::contract::{Dedupe, KeyRule};
use reqwest::{Method, header::HeaderName};
use sha2::{Digest, Sha256};
use url::Url;

use super::{
    HttpDownstream,
    egress::{self, SystemNames, Target},
    headers::{ATTRIBUTE, headers, is_ours},
    probe::Question,
    template::Template,
};
use crate::cloudevents::Envelope;
use crate::config::{
    Answers, ConfigError, Configured, KeyFormat, KeyIn, Operation, SecretRef, Secrets, Section, Size, Source,
};

/// Changes when the same configuration and effect would be rendered to other bytes.
pub(super) const RENDERER_VERSION: u32 = 1;
/// More of an answer is not read.
const MAX_RESPONSE: usize = 1 << 20;

/// How a payload becomes a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Encoding {
    /// The payload's bytes.
    Json,
    /// Stripe's form encoding of it.
    Form,
    /// The effect's body.
    Raw,
    /// No body: the payload feeds the path.
    None,
}

/// How the vendor knows us.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Auth {
    None,
    Bearer(SecretRef),
    Basic { user: String, password: SecretRef },
    Header { name: HeaderName, value: SecretRef },
}

/// One operation, as it is called.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) method: Method,
    pub(super) path: Option<Template>,
    /// `None`: what the effect has.
    pub(super) encoding: Option<Encoding>,
    pub(super) key_in: KeyIn,
    pub(super) key_format: KeyFormat,
    pub(super) key_rule: KeyRule,
    pub(super) dedupe: Dedupe,
    pub(super) answers: Answers,
    pub(super) timeout: Duration,
    pub(super) probe: Option<Question>,
}

/// An `http` downstream.
#[derive(Clone, Debug)]
pub(super) struct Http {
    /// Where effects without a whole URL of their own go; only where effects bring whole URLs, it may be missing.
    pub(super) base: Option<Url>,
    pub(super) auth: Auth,
    /// Sent with every request, by lower-case name.
    pub(super) headers: BTreeMap<String, String>,
    /// What an effect's target means.
    pub(super) target: Target,
    pub(super) key_prefix: String,
    /// Where effects are sent as CloudEvents.
    pub(super) envelope: Option<Envelope>,
    pub(super) max_response: usize,
    pub(super) concurrency: u32,
    pub(super) default: Call,
    pub(super) operations: BTreeMap<String, Call>,
}

/// Reads the part of the table that is this kind's.
pub(crate) fn read(source: &Source<'_>) -> Result<Arc<dyn Configured>, ConfigError> {
    let section = source.section;
    let target = section.noting(Target::read(section));
    let base = section.noting(base_url(section, target.as_ref().ok()));
    let auth = section.noting(auth(section));
    let to_anybody = target.as_ref().map_or(Ok(()), |target| egress::check_auth(section, target));
    let to_anybody = section.noting(to_anybody);
    let headers = section.noting(headers(section));
    let Size(max_response) = section.get_or("max_response", Size(MAX_RESPONSE))?;
    let default = section.noting(call(section, source.default, CallKeys::Contract));
    let operations = source.named(|section, operation| call(section, operation, CallKeys::All));
    let envelope = section.noting(Envelope::read(section));
    let http = Http {
        base: base?,
        auth: to_anybody.and(auth)?,
        headers: headers?,
        target: target?,
        key_prefix: source.key_prefix.to_owned(),
        envelope: envelope?,
        max_response,
        concurrency: source.concurrency,
        default: default?,
        operations: operations?,
    };
    http.check_headers(section)?;
    Ok(Arc::new(http))
}

/// `target`: what an effect's target is, where that could be read.
fn base_url(section: &Section<'_>, target: Option<&Target>) -> Result<Option<Url>, ConfigError> {
    // Not noted before it is known to hold no password: `get` would show it.
    let error = |problem: &str| Err(section.error("base_url", problem));
    let Some(text) = section.get_unshown::<String>("base_url")? else {
        if matches!(target, None | Some(Target::Url(_))) && !section.has("base_url") {
            return Ok(None);
        }
        return Err(section.missing("base_url", "is missing: write base_url = \"https://api.example.com\""));
    };
    let Ok(url) = Url::parse(&text) else { return error("is not a URL such as \"https://api.example.com\"") };
    if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none_or(str::is_empty) {
        return error("must begin with http:// or https:// and name a host");
    }
    if !url.username().is_empty() || url.password().is_some() {
        return error(
            "must not hold a user or password: write auth = { basic = { user = \"…\", password = { env = \"…\" } } }",
        );
    }
    if url.fragment().is_some() {
        return error("must not have a fragment (\"#…\")");
    }
    let _shown: Option<String> = section.get("base_url")?;
    Ok(Some(url))
}

fn auth(section: &Section<'_>) -> Result<Auth, ConfigError> {
    if !section.has("auth") {
        return Ok(Auth::None);
    }
    let table = section.child("auth")?;
    let bearer: Option<SecretRef> = table.get("bearer")?;
    let basic = table.child("basic")?;
    let header = table.child("header")?;
    let one = "must be one of { bearer = SECRET }, { basic = { user = \"…\", password = SECRET } }, { header = { name = \"…\", value = SECRET } }";
    let given =
        usize::from(bearer.is_some()) + usize::from(table.has("basic")) + usize::from(table.has("header"));
    if given != 1 {
        table.finish()?;
        return Err(section.error("auth", one));
    }
    let auth = if let Some(bearer) = bearer {
        Auth::Bearer(bearer)
    } else if table.has("basic") {
        let (user, password) = (basic.get("user")?, basic.get("password")?);
        let (Some(user), Some(password)) = (user, password) else { return Err(section.error("auth", one)) };
        Auth::Basic { user, password }
    } else {
        let (name, value) = (header.get::<String>("name")?, header.get("value")?);
        let (Some(name), Some(value)) = (name, value) else { return Err(section.error("auth", one)) };
        let name = HeaderName::from_bytes(name.as_bytes())
            .map_err(|_error| header.error("name", "must be the name of a header"))?;
        if is_ours(name.as_str()) && name != "authorization" {
            return Err(header.error("name", format!("{name} belongs to the protocol: name another header")));
        }
        Auth::Header { name, value }
    };
    basic.finish()?;
    header.finish()?;
    table.finish()?;
    Ok(auth)
}

/// Which keys an operation's table may have: the default one is the downstream's own table.
#[derive(Clone, Copy, PartialEq, Eq)]
enum CallKeys {
    Contract,
    All,
}

fn call(section: &Section<'_>, operation: &Operation, keys: CallKeys) -> Result<Call, ConfigError> {
    let (mut method, mut path, mut encoding) = (Ok(Method::POST), Ok(None), Ok(None));
    if keys == CallKeys::All {
        method = section.noting(method_of(section, &section.get_or("method", "POST".to_owned())?));
        path = section.noting(path_of(section));
        encoding = section.noting(encoding_of(section));
    }
    let method = method.and_then(|method| {
        let refused = operation.written.refuses_method(method.as_str());
        section.noting(refused.map_or(Ok(method), |problem| Err(section.error("method", problem))))
    });
    // What an operation has from its downstream is told there.
    let is_own = |key: &str| keys == CallKeys::Contract || section.has(key);
    let answers = operation.written.answers().map_err(|problem| section.error("contract", problem));
    let answers = if is_own("contract") { section.noting(answers) } else { answers };
    let probe = Question::read(section, operation);
    let probe = if is_own("probe") { section.noting(probe) } else { probe };
    let call = Call {
        method: method?,
        path: path?,
        encoding: encoding?,
        key_in: operation.written.key_in(),
        key_format: operation.written.key_format(),
        key_rule: operation.contract.key,
        dedupe: operation.contract.dedupe,
        answers: answers?,
        timeout: operation.timeout,
        probe: probe?,
    };
    let has_key = call.path.as_ref().is_some_and(Template::has_key);
    // The default operation has no path of its own; one whose key stands in the path is refused when it is called.
    if call.key_in == KeyIn::Path && !has_key && keys == CallKeys::All {
        return Err(section.error("path", "must hold {key}: key_in is \"path\""));
    }
    if matches!(call.key_in, KeyIn::Body(_)) && matches!(call.encoding, Some(Encoding::Raw | Encoding::None))
    {
        return Err(
            section.error("encoding", "must be \"json\" or \"form\": key_in puts the key into the body")
        );
    }
    Ok(call)
}

fn method_of(section: &Section<'_>, word: &str) -> Result<Method, ConfigError> {
    match word {
        "POST" => Ok(Method::POST),
        "PUT" => Ok(Method::PUT),
        "PATCH" => Ok(Method::PATCH),
        "DELETE" => Ok(Method::DELETE),
        _ => Err(section.error("method", "must be \"POST\", \"PUT\", \"PATCH\" or \"DELETE\"")),
    }
}

fn path_of(section: &Section<'_>) -> Result<Option<Template>, ConfigError> {
    let Some(text) = section.get::<String>("path")? else { return Ok(None) };
    Template::parse(&text).map(Some).map_err(|problem| section.error("path", problem))
}

fn encoding_of(section: &Section<'_>) -> Result<Option<Encoding>, ConfigError> {
    match section.get::<String>("encoding")?.as_deref() {
        None => Ok(None),
        Some("json") => Ok(Some(Encoding::Json)),
        Some("form") => Ok(Some(Encoding::Form)),
        Some("raw") => Ok(Some(Encoding::Raw)),
        Some("none") => Ok(Some(Encoding::None)),
        Some(_) => Err(section.error("encoding", "must be \"json\", \"form\", \"raw\" or \"none\"")),
    }
}

impl Http {
    /// The operation's call; `None` when the configuration does not have it.
    pub(super) fn call(&self, operation: Option<&str>) -> Option<&Call> {
        operation.map_or(Some(&self.default), |name| self.operations.get(name))
    }

    pub(super) fn calls(&self) -> impl Iterator<Item = &Call> {
        std::iter::once(&self.default).chain(self.operations.values())
    }

    /// Whether a header (in lower case) carries an attribute of an event.
    pub(super) fn is_attribute(&self, name: &str) -> bool {
        self.envelope.is_some() && name.starts_with(ATTRIBUTE)
    }

    fn check_headers(&self, section: &Section<'_>) -> Result<(), ConfigError> {
        let secret = match &self.auth {
            Auth::Header { name, .. } => Some(name.as_str()),
            Auth::Bearer(_) | Auth::Basic { .. } => Some("authorization"),
            Auth::None => None,
        };
        if let Some(name) = self.headers.keys().find(|name| self.is_attribute(name)) {
            return Err(section.error("headers", format!("{name} belongs to the event: see cloudevents")));
        }
        for call in self.calls() {
            let KeyIn::Header(name) = &call.key_in else { continue };
            let name = name.to_ascii_lowercase();
            let taken = is_ours(&name) || self.is_attribute(&name) || self.headers.contains_key(&name);
            if secret == Some(name.as_str()) || taken {
                return Err(section
                    .error("contract", format!("key_in names {name}, which is taken: name another header")));
            }
        }
        if let Some(name) = self.headers.keys().find(|name| secret == Some(name.as_str())) {
            return Err(section.error("headers", format!("{name} carries the credentials: leave it out")));
        }
        Ok(())
    }
}

impl Configured for Http {
    fn credential_sha256(&self, secrets: &Secrets) -> Result<Option<[u8; 32]>, String> {
        super::account::credential_sha256(self, secrets)
    }

    fn account(&self) -> String {
        let Some(base) = &self.base else { return "any URL".to_owned() };
        let origin = base.origin().ascii_serialization();
        // Without a credential the vendor tells callers apart by the URL, if at all.
        self.secret().map_or_else(|| base.to_string(), |secret| format!("{origin} {secret}"))
    }

    fn origin(&self) -> Option<String> {
        self.base.as_ref().map(|base| base.origin().ascii_serialization())
    }

    fn request_sha256(&self, operation: Option<&str>) -> [u8; 32] {
        let call = self.call(operation).unwrap_or(&self.default);
        let mut hash = Sha256::new();
        // Each part with its length in front, so that no two configurations share their bytes.
        let mut part = |text: &str| {
            hash.update(u64::try_from(text.len()).unwrap_or(u64::MAX).to_be_bytes());
            hash.update(text.as_bytes());
        };
        part("http");
        part(&RENDERER_VERSION.to_string());
        part(call.method.as_str());
        part(self.base.as_ref().map_or("", Url::as_str));
        part(call.path.as_ref().map_or("", Template::text));
        part(self.target.pinned());
        part(&format!("{:?}", call.encoding));
        part(&format!("{:?} {:?} {:?}", call.key_in, call.key_format, call.dedupe));
        part(&self.key_prefix);
        part(&self.secret().unwrap_or_default());
        for (name, value) in &self.headers {
            part(name);
            part(value);
        }
        if let Some(envelope) = &self.envelope {
            part(&envelope.pinned());
        }
        hash.finalize().into()
    }

    fn warnings(&self) -> Vec<String> {
        let mut warnings = match &self.target {
            Target::Url(egress) => egress.warnings(),
            Target::None | Target::Path => Vec::new(),
        };
        if matches!(self.target, Target::Url(_)) && !self.headers.is_empty() {
            warnings.push("headers go to every URL that an effect names: a secret does not belong there, auth goes to egress.auth_origins alone".to_owned());
        }
        let loopback = |base: &&Url| matches!(base.host_str(), Some("localhost" | "127.0.0.1" | "[::1]"));
        let plain = self.base.as_ref().filter(|base| base.scheme() == "http" && !loopback(base));
        if plain.is_some() && self.auth != Auth::None {
            warnings.push("base_url is http://: the credentials travel in the clear".to_owned());
        }
        warnings
    }

    fn build(
        &self,
        secrets: &Secrets,
    ) -> Result<Arc<dyn aftercommit::downstream::Downstream>, (String, String)> {
        Ok(Arc::new(HttpDownstream::build(self, secrets, Arc::new(SystemNames))?))
    }
}
