//! A downstream as the database is told of it: by a worker that serves it, or by `migrate`, which may lack its secrets.

use std::sync::Arc;

use aftercommit::{
    contract::KeyRule,
    downstream::{Served, Terms},
    store::{RegisteredDownstream, RegisteredTerms},
};

use super::{
    downstream::DownstreamSettings,
    values::{Rate, Secrets},
};

impl DownstreamSettings {
    /// As `migrate` registers it: no secret is needed. Where a vendor tells keys apart by a credential that is not at hand,
    /// today's request cannot be told: the operation's terms stay what they are until the next worker registers it.
    pub(crate) fn registered(&self, secrets: &Secrets) -> RegisteredDownstream {
        let (mut known, mut kept) = (Vec::new(), Vec::new());
        for (name, operation) in self.all() {
            match self.terms(name, operation, secrets) {
                Ok(terms) => known.push((name.map(str::to_owned), terms)),
                Err(_unreadable) => kept.push(name.map(str::to_owned)),
            }
        }
        // An INSERT is checked against the downstream, not the operation: refuse only what no operation takes.
        let key = self.all().map(|(_, operation)| operation.contract.key);
        RegisteredDownstream {
            rate: self.rate.map(|Rate(rate)| rate),
            origin: self.configured.origin().map(Into::into),
            key: key.reduce(KeyRule::widest).unwrap_or_default(),
            kept,
            ..registration(Arc::clone(&self.name), self.kind, &self.key_prefix, known)
        }
    }
}

/// A served downstream as a worker registers it: the same as [`super::Settings::registered`] makes of it.
pub fn registered(served: &Served) -> RegisteredDownstream {
    let named = served.operations.iter().map(|(name, terms)| (Some(name.clone()), terms.clone()));
    let terms = std::iter::once((None, served.terms.clone())).chain(named);
    RegisteredDownstream {
        rate: served.rate,
        origin: served.origin.clone(),
        ..registration(Arc::clone(&served.name), served.kind, &served.key_prefix, terms.collect())
    }
}

fn registration(
    name: Arc<str>,
    kind: &'static str,
    key_prefix: &str,
    terms: Vec<(Option<String>, Terms)>,
) -> RegisteredDownstream {
    // An INSERT is checked against the downstream, not the operation: refuse only what no operation takes.
    let key = terms.iter().map(|(_, terms)| terms.contract.key).reduce(KeyRule::widest).unwrap_or_default();
    let operations = terms
        .into_iter()
        .map(|(name, terms)| {
            let registered =
                RegisteredTerms { contract: terms.contract, policy: terms.policy, timeout: terms.timeout };
            (name, registered, terms.request_sha256)
        })
        .collect();
    RegisteredDownstream {
        name,
        kind,
        key_prefix: key_prefix.to_owned(),
        key,
        operations,
        kept: Vec::new(),
        rate: None,
        origin: None,
    }
}
