//! One downstream's table: what every kind has, and the way to what only its kind has.

use std::{any::Any, collections::BTreeMap, fmt, sync::Arc, time::Duration};

use aftercommit::{
    contract::Dedupe,
    downstream::{Downstream, Served, Terms, endpoint::Endpoint},
    effect::Effect,
    engine::LEASE_MARGIN,
};
use sha2::{Digest as _, Sha256};

use super::{
    ConfigError,
    kind::kind,
    operation::{self, Operation},
    section::Section,
    values::{Rate, Secrets, show_duration},
};

/// Attempts at one time, per worker process.
const CONCURRENCY: u32 = 16;
/// Between a timeout and the end of its lease, where the lease is not set: room for a slow settle.
const LEASE_ROOM: Duration = Duration::from_secs(10);

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

impl Source<'_> {
    /// Reads the named operations' parts, all of them before it gives up. What is wrong with the downstream's own contract or probe is
    /// not told again of those that have it from there.
    ///
    /// # Errors
    ///
    /// One of those that are noted.
    pub(crate) fn named<T>(
        &self,
        read: impl Fn(&Section<'_>, &Operation) -> Result<T, ConfigError>,
    ) -> Result<BTreeMap<String, T>, ConfigError> {
        let (mut all, mut wrong) = (BTreeMap::new(), None);
        for (name, section, operation) in self.operations {
            match read(section, operation) {
                Ok(part) => {
                    all.insert(name.clone(), part);
                }
                Err(problem) => {
                    let is_inherited = |key: &str| {
                        let about = problem.key.starts_with(&section.dotted(key));
                        about && !section.has(key) && self.section.is_wrong(key)
                    };
                    if !is_inherited("contract") && !is_inherited("probe") {
                        section.wrong(problem.clone());
                    }
                    wrong = Some(problem);
                }
            }
        }
        wrong.map_or(Ok(all), Err)
    }
}

/// Reads a kind's part. Notes everything that is wrong with it before it gives up.
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
    /// What the downstream knows an effect by besides its key, or as what it knows the key: the name there, and what it is. Of an
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
    /// Reads `downstream.NAME`. Goes on where something is wrong, which is noted; what comes of it then is of no use.
    pub(crate) fn read(
        name: &str,
        section: Section<'_>,
        worker_lease: Duration,
    ) -> Result<Self, ConfigError> {
        let place = section.place("").to_string();
        let auth_place = section.place("auth").to_string();
        let kind = kind(&section)?;
        section.noting(section.not_yet("on_outcome", "read the outcome from aftercommit.status")).ok();
        let key_prefix: String = section.get_or("key_prefix", String::new())?;
        if !key_prefix.bytes().all(|byte| (b'!'..=b'~').contains(&byte)) {
            section.wrong(section.error("key_prefix", "must be printable ASCII without spaces"));
        }
        let concurrency = section.get_or("concurrency", CONCURRENCY)?;
        if concurrency == 0 {
            section.wrong(section.error("concurrency", "must be at least 1"));
        }
        let rate = section.get("rate")?;
        let default = section.noting(operation::default(&section, kind));
        let mut operations = operation::named(name, &section, default.as_ref().ok(), kind)?;
        let stand_in = Operation::stand_in();
        let source = Source {
            section: &section,
            key_prefix: &key_prefix,
            default: default.as_ref().unwrap_or(&stand_in),
            operations: &operations,
            concurrency,
        };
        let configured = section.noting((kind.read)(&source));
        let slowest = operations.iter().map(|(_, _, operation)| operation.timeout).max();
        let slowest = slowest.unwrap_or_default().max(source.default.timeout);
        let after = configured.as_ref().map_or(Duration::ZERO, |configured| configured.after_timeout());
        let lease = section.noting(lease(&section, slowest, after, worker_lease));
        for (_, section, operation) in &mut operations {
            section.finished()?;
            section.noting(operation.lengthen(section, after)).ok();
        }
        section.finished()?;
        let mut default = default?;
        default.lengthen(&section, after)?;
        Ok(Self {
            name: name.into(),
            kind: kind.name,
            key_prefix,
            concurrency,
            lease: lease?,
            rate,
            default,
            operations: operations.into_iter().map(|(name, _, operation)| (name, operation)).collect(),
            configured: configured?,
            place,
            auth_place,
        })
    }

    /// The endpoints that stand in the configuration, where it has many by name: name and host.
    pub fn endpoints(&self) -> Vec<(String, String)> {
        self.configured.endpoints()
    }

    /// What the downstream knows this effect by besides its key (a mail's `Message-ID`), or as what it knows the key: the name there,
    /// and what it is.
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
