//! One downstream's table: what every kind has, and the way to what only its kind has.

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use aftercommit::{
    contract::{Contract, Dedupe},
    downstream::{Downstream, Served, Terms, endpoint::Endpoint},
    effect::Effect,
    engine::LEASE_MARGIN,
    schedule::Policy,
};
use sha2::{Digest as _, Sha256};

use super::{
    ConfigError,
    contract::Written,
    kind::kind,
    probe::WrittenProbe,
    section::{Section, nearest},
    tree::Origin,
    values::{Rate, Secrets, show_duration},
};
use crate::profiles;

/// Time of one attempt where nothing else is said: longer than a slow payment, shorter than people wait.
const TIMEOUT: Duration = Duration::from_secs(20);
/// Attempts at one time, per worker process.
const CONCURRENCY: u32 = 16;
/// Between a timeout and the end of its lease, where the lease is not set: room for a slow settle.
const LEASE_ROOM: Duration = Duration::from_secs(10);

/// What every operation has, whatever the kind.
#[derive(Clone, Debug)]
pub(crate) struct Operation {
    pub(crate) written: Written,
    pub(crate) probe: Option<WrittenProbe>,
    pub(crate) contract: Contract,
    pub(crate) policy: Policy,
    pub(crate) timeout: Duration,
}

impl Operation {
    /// An attempt takes `after` longer; the contract must still make sense.
    fn lengthen(&mut self, section: &Section<'_>, after: Duration) -> Result<(), ConfigError> {
        if after.is_zero() {
            return Ok(());
        }
        self.timeout += after;
        self.contract.refuses(self.timeout).map_or(Ok(()), |problem| Err(section.error("contract", problem)))
    }
}

/// What a kind reads its part from.
pub(crate) struct Source<'s> {
    /// The downstream's table.
    pub(crate) section: &'s Section<'s>,
    /// Put before every key.
    pub(crate) key_prefix: &'s str,
    /// The default operation.
    pub(crate) default: &'s Operation,
    /// The named ones, with their tables.
    pub(crate) operations: &'s [(String, Section<'s>, Operation)],
    /// Attempts at one time.
    pub(crate) concurrency: u32,
}

/// Reads a kind's part.
pub(crate) type ReadKind = fn(&Source<'_>) -> Result<Arc<dyn Configured>, ConfigError>;

/// A downstream's kind, read and validated; nothing resolved, nothing opened.
pub(crate) trait Configured: Any + fmt::Debug + Send + Sync {
    /// The key space at the vendor: origin and secret reference.
    fn account(&self) -> String;
    /// Where the calls go: scheme, host and port. `None` where that is not one place.
    fn origin(&self) -> Option<String> {
        None
    }
    /// How much longer than `timeout` an attempt may take, where a kind has another time for the answer to what cannot be taken
    /// back.
    fn after_timeout(&self) -> Duration {
        Duration::ZERO
    }
    /// A hash of the credential, if there is one, for vendors that tell keys apart by it. The error is why it cannot be read.
    fn credential_sha256(&self, secrets: &Secrets) -> Result<Option<[u8; 32]>, String>;
    /// The hash of all that the operation's request is rendered from.
    fn request_sha256(&self, operation: Option<&str>) -> [u8; 32];
    /// The endpoints that stand in the configuration, where there are many by name: name and host.
    fn endpoints(&self) -> Vec<(String, String)> {
        Vec::new()
    }
    /// Where there are many endpoints by name: those of the configuration, and of the database's `rows`, that cannot be called from
    /// here, with the reason. `None` where there are none by name.
    fn endpoint_problems(&self, _secrets: &Secrets, _rows: &[Endpoint]) -> Option<Vec<(String, String)>> {
        None
    }
    /// What the downstream knows an effect by besides its key, where it is something else: its name there, and what it is. Of an
    /// effect that cannot be rendered there is none.
    fn known_as(&self, _effect: &Effect, _key: &str) -> Option<(&'static str, String)> {
        None
    }
    /// What the kind finds worth a warning.
    fn warnings(&self) -> Vec<String>;
    /// Resolves secrets and builds the client. The error is (key, problem).
    fn build(&self, secrets: &Secrets) -> Result<Arc<dyn Downstream>, (String, String)>;
}

/// A configured downstream.
#[derive(Clone, Debug)]
pub struct DownstreamSettings {
    /// Its name.
    pub name: Arc<str>,
    /// Its kind.
    pub kind: &'static str,
    /// Put before every key.
    pub key_prefix: String,
    /// Attempts at one time, per worker process.
    pub concurrency: u32,
    /// How long a claim holds unless renewed.
    pub lease: Duration,
    pub(crate) rate: Option<Rate>,
    pub(crate) default: Operation,
    pub(crate) operations: BTreeMap<String, Operation>,
    pub(crate) configured: Arc<dyn Configured>,
    pub(crate) place: String,
    /// Where its credential is named: what a missing secret points at.
    auth_place: String,
}

impl DownstreamSettings {
    /// Reads `downstream.NAME`.
    pub(crate) fn read(
        name: &str,
        section: Section<'_>,
        worker_lease: Duration,
    ) -> Result<Self, ConfigError> {
        let place = section.place("").to_string();
        let auth_place = section.place("auth").to_string();
        let (kind, read_kind) = kind(&section)?;
        section.not_yet("on_outcome", "read the outcome from aftercommit.status")?;
        let key_prefix: String = section.get_or("key_prefix", String::new())?;
        if !key_prefix.bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
            return Err(section.error("key_prefix", "must be printable ASCII without spaces"));
        }
        let concurrency = section.get_or("concurrency", CONCURRENCY)?;
        if concurrency == 0 {
            return Err(section.error("concurrency", "must be at least 1"));
        }
        let rate = section.get("rate")?;
        let mut default = default_operation(&section)?;
        let mut operations = operations(name, &section, &default)?;
        let source = Source {
            section: &section,
            key_prefix: &key_prefix,
            default: &default,
            operations: &operations,
            concurrency,
        };
        let configured = read_kind(&source)?;
        let slowest =
            operations.iter().map(|(_, _, operation)| operation.timeout).chain([default.timeout]).max();
        let slowest = slowest.unwrap_or(default.timeout);
        let after = configured.after_timeout();
        default.lengthen(&section, after)?;
        for (_, section, operation) in &mut operations {
            operation.lengthen(section, after)?;
        }
        let lease = lease(&section, slowest, after, worker_lease)?;
        let operations = operations
            .into_iter()
            .map(|(name, section, operation)| section.finish().map(|()| (name, operation)))
            .collect::<Result<_, _>>()?;
        section.finish()?;
        Ok(Self {
            name: name.into(),
            kind,
            key_prefix,
            concurrency,
            lease,
            rate,
            default,
            operations,
            configured,
            place,
            auth_place,
        })
    }

    /// The endpoints that stand in the configuration, where it has many by name: name and host.
    pub fn endpoints(&self) -> Vec<(String, String)> {
        self.configured.endpoints()
    }

    /// What the downstream knows this effect by besides its key, where that is something else (a mail's `Message-ID`): its name
    /// there, and what it is.
    pub fn known_as(&self, effect: &Effect) -> Option<(&'static str, String)> {
        self.configured.known_as(effect, &format!("{}{}", self.key_prefix, effect.key))
    }

    /// The operations that have a name.
    pub fn operations(&self) -> impl Iterator<Item = &str> {
        self.operations.keys().map(String::as_str)
    }

    /// Every operation, the default one first.
    pub(crate) fn all(&self) -> impl Iterator<Item = (Option<&str>, &Operation)> {
        let named = self.operations.iter().map(|(name, operation)| (Some(name.as_str()), operation));
        std::iter::once((None, &self.default)).chain(named)
    }

    /// The error is why a credential that is part of them cannot be read.
    pub(super) fn terms(
        &self,
        name: Option<&str>,
        operation: &Operation,
        secrets: &Secrets,
    ) -> Result<Terms, String> {
        let mut request_sha256 = self.configured.request_sha256(name);
        // Where a key is another key under another credential, a changed credential is another request.
        if operation.written.is_scoped_by_credential()
            && let Some(credential) = self.configured.credential_sha256(secrets)?
        {
            request_sha256 =
                Sha256::new_with_prefix(request_sha256).chain_update(credential).finalize().into();
        }
        Ok(Terms {
            contract: operation.contract.clone(),
            policy: operation.policy.clone(),
            timeout: operation.timeout,
            request_sha256,
        })
    }

    /// Ready to be served: secrets resolved, client built.
    pub(crate) fn serve(&self, secrets: &Secrets) -> Result<Served, ConfigError> {
        let downstream = self.configured.build(secrets).map_err(|(key, problem)| {
            let place = if key.starts_with("auth") { &self.auth_place } else { &self.place };
            ConfigError::new(place, format!("downstream.{}.{key}", self.name), problem)
        })?;
        let terms = |name, operation| {
            self.terms(name, operation, secrets).map_err(|problem| {
                ConfigError::new(&self.auth_place, format!("downstream.{}.auth", self.name), problem)
            })
        };
        Ok(Served {
            name: Arc::clone(&self.name),
            kind: self.kind,
            downstream,
            key_prefix: self.key_prefix.clone(),
            concurrency: self.concurrency,
            terms: terms(None, &self.default)?,
            operations: self
                .operations
                .iter()
                .map(|(name, operation)| Ok((name.clone(), terms(Some(name), operation)?)))
                .collect::<Result<_, ConfigError>>()?,
            lease: self.lease,
            rate: self.rate.map(|Rate(rate)| rate),
            origin: self.configured.origin().map(Into::into),
        })
    }
}

fn default_operation(section: &Section<'_>) -> Result<Operation, ConfigError> {
    let profile_name: String = section.get_or("profile", "none".to_owned())?;
    let given = section.has("profile") || section.has("contract");
    let profile = profiles::get(&profile_name).ok_or_else(|| {
        let names = || profiles::all().iter().map(|profile| profile.name);
        let hint = nearest(&profile_name, names()).map_or_else(
            || format!("`aftercommit profiles list` shows them: {}", names().collect::<Vec<_>>().join(", ")),
            |nearest| format!("did you mean \"{nearest}\"?"),
        );
        section.error("profile", format!("there is no such profile; {hint}"))
    })?;
    let table = section.child("contract")?;
    let written = Written::read(&table)?;
    if given && !section.has("profile") && written.dedupe.is_none() {
        return Err(table.missing(
            "dedupe",
            "dedupe is missing: write \"key\" (with a window) or \"none\", or name a profile",
        ));
    }
    let base = profile.contract()?;
    let written = written.over(&base);
    written.note_into(&table, &base, &Origin::Profile(profile_name.as_str().into()));
    let timeout = timeout(section, TIMEOUT)?;
    let mut policy = policy(&section.child("retry")?, &Policy::default())?;
    policy.max_pause = section.get_or("max_pause", policy.max_pause)?;
    let probe = WrittenProbe::read(section, None)?;
    operation(section, (written, probe), policy, timeout)
}

fn operations<'s>(
    downstream: &str,
    section: &Section<'s>,
    default: &Operation,
) -> Result<Vec<(String, Section<'s>, Operation)>, ConfigError> {
    let table = section.child("operations")?;
    let mut operations = Vec::new();
    for name in table.names() {
        let section = table.child(&name)?;
        let contract = section.child("contract")?;
        let written = Written::read(&contract)?.over(&default.written);
        written.note_into(&contract, &default.written, &Origin::Downstream(downstream.into()));
        let timeout = timeout(&section, default.timeout)?;
        let policy = policy(&section.child("retry")?, &default.policy)?;
        let probe = WrittenProbe::read(&section, default.probe.as_ref())?;
        let operation = operation(&section, (written, probe), policy, timeout)?;
        operations.push((name, section, operation));
    }
    Ok(operations)
}

fn operation(
    section: &Section<'_>,
    (written, probe): (Written, Option<WrittenProbe>),
    policy: Policy,
    timeout: Duration,
) -> Result<Operation, ConfigError> {
    let contract =
        written.contract(timeout, probe.as_ref()).map_err(|problem| section.error("contract", problem))?;
    // A downstream's probe may be meant for operations that refine its contract; an operation's own is meant for itself.
    if section.has("probe") && !contract.can_probe && !section.has("operations") {
        return Err(section.error(
            "probe",
            "is never made: a downstream that can be asked has contract = { dedupe = \"lookup\" }, or \"key\" with a window",
        ));
    }
    Ok(Operation { written, probe, contract, policy, timeout })
}

fn timeout(section: &Section<'_>, default: Duration) -> Result<Duration, ConfigError> {
    let timeout = section.get_or("timeout", default)?;
    if timeout < Duration::from_millis(10) {
        return Err(section.error("timeout", "must be at least 10ms"));
    }
    Ok(timeout)
}

fn policy(section: &Section<'_>, default: &Policy) -> Result<Policy, ConfigError> {
    let policy = Policy {
        initial: section.get_or("initial", default.initial)?,
        factor: section.get_or("factor", default.factor)?,
        max: section.get_or("max", default.max)?,
        max_attempts: section.get_or("max_attempts", default.max_attempts)?,
        max_age: section.get_or("max_age", default.max_age)?,
        max_pause: default.max_pause,
    };
    if policy.initial.is_zero() {
        return Err(section.error("initial", "must be more than zero: a retry is never a hot loop"));
    }
    if policy.factor < 1.0 {
        return Err(section.error("factor", "must be at least 1.0"));
    }
    if policy.max < policy.initial {
        return Err(section.error("max", "must not be less than initial"));
    }
    if policy.max_attempts == 0 {
        return Err(section.error("max_attempts", "must be at least 1"));
    }
    section.finished()?;
    Ok(policy)
}

fn lease(
    section: &Section<'_>,
    slowest: Duration,
    after: Duration,
    worker_lease: Duration,
) -> Result<Duration, ConfigError> {
    // With a time of its own for the answer, an attempt asks whether it may begin when up to `timeout` has passed, and the whole of
    // it must still be covered then.
    let longest = if after.is_zero() { slowest } else { slowest * 2 + after };
    let lease = section.get_or("lease", worker_lease.max(longest + LEASE_ROOM))?;
    if lease < longest + LEASE_MARGIN {
        let calls = if after.is_zero() {
            format!("the longest timeout ({})", show_duration(slowest))
        } else {
            format!(
                "twice the longest timeout ({}), the time for the answer ({})",
                show_duration(slowest),
                show_duration(after)
            )
        };
        return Err(section.error(
            "lease",
            format!(
                "must be at least {calls} + {}, or a call that times out loses its lease: raise lease or lower timeout",
                show_duration(LEASE_MARGIN)
            ),
        ));
    }
    Ok(lease)
}

/// Whether the downstream's key means anything to the vendor.
pub(crate) fn has_key_space(downstream: &DownstreamSettings) -> bool {
    downstream.all().any(|(_, operation)| operation.contract.dedupe == Dedupe::Key)
}
