//! `config check`: what contradicts itself is refused, what may surprise is told.

use std::{collections::BTreeMap, ops::Bound, time::Duration};

use aftercommit::contract::Window;

use super::{
    ConfigError, DownstreamSettings, Finding, Operation, Settings, downstream::has_key_space, horizon,
    values::show_duration,
};

/// Refuses two downstreams that write equal keys into one account.
pub(super) fn accounts(downstreams: &BTreeMap<String, DownstreamSettings>) -> Result<(), ConfigError> {
    let mut seen: BTreeMap<(String, &str), &str> = BTreeMap::new();
    for (name, downstream) in downstreams.iter().filter(|(_, downstream)| has_key_space(downstream)) {
        let space = (downstream.configured.account(), downstream.key_prefix.as_str());
        if let Some(other) = seen.insert(space, name) {
            return Err(ConfigError::new(
                &downstream.place,
                format!("downstream.{name}.key_prefix"),
                format!(
                    "downstream.{other} writes into the same account with the same key_prefix: an equal key would be another's request; give each its own, such as key_prefix = \"{name}/\""
                ),
            ));
        }
    }
    Ok(())
}

impl Settings {
    /// What is allowed and may still surprise.
    pub fn check(&self) -> Vec<Finding> {
        let mut findings = self.dashboard.findings(&self.secrets);
        for (name, downstream) in &self.downstreams {
            let key = format!("downstream.{name}");
            for message in downstream.configured.warnings() {
                findings.push(Finding { key: key.clone(), message });
            }
            for (operation, settings) in downstream.all() {
                let key = operation.map_or_else(|| key.clone(), |name| format!("{key}.operations.{name}"));
                // What a kind may take beyond that it takes seldom.
                let usual = settings.timeout.saturating_sub(downstream.configured.after_timeout());
                if usual > self.worker.shutdown_grace {
                    findings.push(Finding {
                        key: format!("{key}.timeout"),
                        message: outlives_the_grace(self, usual),
                    });
                }
                if let Some(message) = key_outlived(self.retention.keys, &key, settings) {
                    findings.push(Finding { key: "retention.keys".to_owned(), message });
                }
                if let Some(message) = horizon::parks(settings) {
                    findings.push(Finding { key: format!("{key}.contract.window"), message });
                }
            }
            self.overlapping_prefixes(name, downstream, &mut findings);
            self.same_origin(name, downstream, &mut findings);
        }
        findings
    }

    /// Two credentials may belong to one account, which only their owner knows.
    fn same_origin(&self, name: &str, downstream: &DownstreamSettings, findings: &mut Vec<Finding>) {
        let by_credential = |downstream: &DownstreamSettings| {
            downstream.all().all(|(_, operation)| operation.written.is_scoped_by_credential())
        };
        let (account, origin) = (downstream.configured.account(), downstream.configured.origin());
        for (other, settings) in self.downstreams.range::<str, _>((Bound::Excluded(name), Bound::Unbounded)) {
            let unclear = origin.is_some()
                && settings.configured.origin() == origin
                && settings.configured.account() != account
                && settings.key_prefix == downstream.key_prefix
                && has_key_space(downstream)
                && has_key_space(settings)
                && !(by_credential(downstream) && by_credential(settings));
            if unclear {
                findings.push(Finding {
                    key: format!("downstream.{name}.key_prefix"),
                    message: format!(
                        "is that of downstream.{other}, at the same vendor with another credential: if both belong to one account, an equal key would be another's request; then give each its own"
                    ),
                });
            }
        }
    }

    fn overlapping_prefixes(&self, name: &str, downstream: &DownstreamSettings, findings: &mut Vec<Finding>) {
        let account = downstream.configured.account();
        for (other, settings) in &self.downstreams {
            let overlaps = other != name
                && has_key_space(downstream)
                && has_key_space(settings)
                && settings.configured.account() == account
                && settings.key_prefix.starts_with(&downstream.key_prefix);
            if overlaps {
                findings.push(Finding {
                    key: format!("downstream.{name}.key_prefix"),
                    message: format!(
                        "begins the key_prefix of downstream.{other}, of the same account: a key of {name} that begins with {:?} may be one of {other}",
                        settings.key_prefix
                    ),
                });
            }
        }
    }
}

/// A key that the downstream still remembers, or that a retry of the application may still carry, when ours is gone.
fn key_outlived(keys: Duration, place: &str, operation: &Operation) -> Option<String> {
    let window = match operation.contract.window {
        Some(Window::For(window)) => window,
        // Nobody keeps a key for ever.
        Some(Window::Forever) | None => Duration::ZERO,
    };
    let needed = window.max(operation.policy.max_age);
    (keys < needed).then(|| {
        format!(
            "({}) is shorter than {place} remembers keys or retries ({}): an old key that is enqueued again in between is a new effect, which the downstream may take for the old one",
            show_duration(keys),
            show_duration(needed)
        )
    })
}

/// A stop that does not wait for open calls turns every deployment into unknown outcomes.
fn outlives_the_grace(settings: &Settings, timeout: Duration) -> String {
    format!(
        "({}) is longer than worker.shutdown_grace ({}): a worker that is stopped leaves calls that are still open to the sweep, with an unknown outcome",
        show_duration(timeout),
        show_duration(settings.worker.shutdown_grace)
    )
}
