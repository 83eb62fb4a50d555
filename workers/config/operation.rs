//! One operation's part of a downstream's table, as every kind has it: contract, probe, timeout, retries.

use std::time::Duration;

use aftercommit::{
    contract::{Contract, OnUnknown},
    schedule::Policy,
};

use super::{
    ConfigError,
    contract::Written,
    kind::Kind,
    probe::WrittenProbe,
    section::{Section, nearest},
    tree::Origin,
};
use crate::profiles;

/// Time of one attempt where nothing else is said: longer than a slow payment, shorter than people wait.
const TIMEOUT: Duration = Duration::from_secs(20);
/// No attempt is over in less.
const TIMEOUT_MIN: Duration = Duration::from_millis(10);

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
    /// What stands in for a default one that is wrong, so that the rest of the table can be read: it asks for nothing that
    /// could be refused.
    pub(super) fn stand_in() -> Self {
        Self {
            written: Written::default(),
            probe: None,
            contract: Contract::none(OnUnknown::Hold),
            policy: Policy::default(),
            timeout: TIMEOUT_MIN,
        }
    }

    /// An attempt takes `after` longer; the contract must still make sense.
    pub(super) fn lengthen(&mut self, section: &Section<'_>, after: Duration) -> Result<(), ConfigError> {
        if after.is_zero() {
            return Ok(());
        }
        self.timeout += after;
        self.contract.refuses(self.timeout).map_or(Ok(()), |problem| Err(section.error("contract", problem)))
    }
}

/// Reads the downstream's own table: its default operation. Notes everything that is wrong before it gives up.
pub(super) fn default(section: &Section<'_>, kind: &Kind) -> Result<Operation, ConfigError> {
    let written = section.noting(written(section, kind));
    let timeout = timeout(section, TIMEOUT)?;
    let policy = section.noting(policy(section, &Policy::default()));
    let probe = section.noting(WrittenProbe::read(section, None));
    let policy = Policy { max_pause: section.get_or("max_pause", Policy::default().max_pause)?, ..policy? };
    operation(section, (written?, probe?), policy, timeout)
}

/// What the profile and the table `contract` say.
fn written(section: &Section<'_>, kind: &Kind) -> Result<Written, ConfigError> {
    let name: String = section.get_or("profile", "none".to_owned())?;
    let table = section.child("contract")?;
    let written = section.noting(contract(&table, kind));
    let given = section.has("profile") || section.has("contract");
    let profile = profiles::get(&name).ok_or_else(|| {
        let names = || profiles::all().iter().map(|profile| profile.name);
        let hint = nearest(&name, names()).map_or_else(
            || format!("`aftercommit profiles list` shows them: {}", names().collect::<Vec<_>>().join(", ")),
            |nearest| format!("did you mean \"{nearest}\"?"),
        );
        section.error("profile", format!("there is no such profile; {hint}"))
    })?;
    let written = written?;
    if given && !section.has("profile") && written.dedupe.is_none() {
        return Err(table.missing(
            "dedupe",
            "dedupe is missing: write \"key\" (with a window) or \"none\", or name a profile",
        ));
    }
    let base = profile.contract()?;
    let written = written.over(&base);
    written.note_into(&table, &base, &Origin::Profile(name.as_str().into()), kind.key);
    Ok(written)
}

/// What a table `contract` says. Where the key stands cannot be said of a kind that knows it itself.
fn contract(table: &Section<'_>, kind: &Kind) -> Result<Written, ConfigError> {
    let written = Written::read(table)?;
    if let Some((key, problem)) = kind.key.refuses(&written) {
        table.wrong(table.error(key, problem));
    }
    Ok(written)
}

/// Reads the named operations, all of them: what is wrong with one is noted, and it is left out. `None`: what they refine is
/// wrong itself, and nothing can be said of them.
pub(super) fn named<'s>(
    downstream: &str,
    section: &Section<'s>,
    default: Option<&Operation>,
    kind: &Kind,
) -> Result<Vec<(String, Section<'s>, Operation)>, ConfigError> {
    let Ok(table) = section.noting(section.child("operations")) else { return Ok(Vec::new()) };
    let Some(default) = default else { return Ok(Vec::new()) };
    let mut operations = Vec::new();
    for name in table.names() {
        let Ok(section) = table.noting(table.child(&name)) else { continue };
        let read = one((downstream, kind), &section, default);
        if let Ok(operation) = section.noting(read) {
            operations.push((name, section, operation));
        }
    }
    Ok(operations)
}

fn one(
    (downstream, kind): (&str, &Kind),
    section: &Section<'_>,
    default: &Operation,
) -> Result<Operation, ConfigError> {
    let table = section.noting(section.child("contract"));
    let written = table.and_then(|table| {
        let written = section.noting(contract(&table, kind))?.over(&default.written);
        written.note_into(&table, &default.written, &Origin::Downstream(downstream.into()), kind.key);
        Ok(written)
    });
    let timeout = timeout(section, default.timeout)?;
    let policy = section.noting(policy(section, &default.policy));
    let probe = section.noting(WrittenProbe::read(section, default.probe.as_ref()));
    operation(section, (written?, probe?), policy?, timeout)
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

/// Where it is wrong, the shortest one stands in: nothing follows from that.
fn timeout(section: &Section<'_>, default: Duration) -> Result<Duration, ConfigError> {
    let timeout = section.get_or("timeout", default)?;
    if timeout < TIMEOUT_MIN {
        section.wrong(section.error("timeout", "must be at least 10ms"));
    }
    Ok(if section.is_wrong("timeout") { TIMEOUT_MIN } else { timeout })
}

fn policy(section: &Section<'_>, default: &Policy) -> Result<Policy, ConfigError> {
    let section = section.child("retry")?;
    let policy = Policy {
        initial: section.get_or("initial", default.initial)?,
        factor: section.get_or("factor", default.factor)?,
        max: section.get_or("max", default.max)?,
        max_attempts: section.get_or("max_attempts", default.max_attempts)?,
        max_age: section.get_or("max_age", default.max_age)?,
        max_pause: default.max_pause,
    };
    if policy.initial.is_zero() {
        section.wrong(section.error("initial", "must be more than zero: a retry is never a hot loop"));
    }
    if policy.factor < 1.0 {
        section.wrong(section.error("factor", "must be at least 1.0"));
    }
    if policy.max < policy.initial && !section.is_wrong("initial") {
        section.wrong(section.error("max", "must not be less than initial"));
    }
    if policy.max_attempts == 0 {
        section.wrong(section.error("max_attempts", "must be at least 1"));
    }
    section.finished()?;
    Ok(policy)
}
