//! A look at every endpoint that sends nothing: its URL, its name's addresses, its secrets, its state.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use aftercommit::check::Check;
use tokio::time::{Instant, timeout_at};

use super::{WebhookDownstream, secrets::Problem};

/// Of each endpoint one line.
pub(super) async fn check(downstream: &WebhookDownstream, timeout: Duration) -> Vec<Check> {
    let deadline = Instant::now() + timeout;
    let rows = downstream.directory.all();
    let kept = rows.iter().filter(|row| row.url.is_some()).map(|row| Arc::clone(&row.name));
    let fixed = downstream.webhook.endpoints.keys().map(|name| Arc::from(name.as_str()));
    let names: BTreeSet<Arc<str>> = fixed.chain(kept).collect();
    if names.is_empty() {
        let remedy = "write [downstream.NAME.endpoints.…], or put rows into the table of endpoints";
        return vec![Check::warn("endpoints", "there is none", remedy)];
    }
    let mut checks = Vec::with_capacity(names.len());
    for name in &names {
        checks.push(one(downstream, name, deadline).await);
    }
    checks
}

async fn one(downstream: &WebhookDownstream, name: &str, deadline: Instant) -> Check {
    const WHAT: &str = "endpoint";
    let row = downstream.directory.find(name);
    let ready = match downstream.ready(name) {
        Ok(ready) => ready,
        Err(Problem::Url(why)) => {
            return Check::fail(
                WHAT,
                format!("{name}: {why}"),
                "give it a URL that may be called, or let egress allow it",
            );
        }
        Err(Problem::Secret(why)) => {
            return Check::fail(
                WHAT,
                format!("{name}: {why}"),
                "set the secret, or let secrets_from allow it",
            );
        }
    };
    let host = crate::config::host_port(&ready.url);
    let resolved = timeout_at(deadline, downstream.guarded.resolves(&ready.url)).await;
    if let Err(why) = resolved.unwrap_or_else(|_elapsed| Err("its name was not resolved in time".to_owned()))
    {
        return Check::fail(WHAT, format!("{name}: {why}"), "ask its owner, or let egress allow it");
    }
    if let Some(disabled) = row.as_ref().and_then(|row| row.disabled.as_ref()) {
        let found = format!("{name} at {host} is disabled since {}: {}", disabled.since, disabled.reason);
        return Check::warn(WHAT, found, "mend it, then `aftercommit endpoints enable`");
    }
    let public: Vec<String> = ready.keys.iter().filter_map(super::sign::Key::public).collect();
    let verified =
        if public.is_empty() { String::new() } else { format!("; verified with {}", public.join(" ")) };
    let found = format!("{name} at {host}, {} signatures{verified}", ready.keys.len());
    match row.and_then(|row| row.failing_since) {
        Some(since) => Check::warn(
            WHAT,
            format!("{found}; it has shown nothing but failures since {since}"),
            "ask its owner",
        ),
        None => Check::ok(WHAT, found),
    }
}
