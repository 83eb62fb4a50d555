//! A look at every endpoint that sends nothing: its URL, its secrets, its state, and whether somebody answers there, over TLS
//! and with a certificate that is trusted. It goes where a call would go, and hangs up before a request would begin.

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use aftercommit::check::Check;
use futures_util::{StreamExt as _, stream};
use tokio::time::{Instant, timeout_at};
use tokio_rustls::rustls::ClientConfig;
use url::Url;

use super::{WebhookDownstream, secrets::Problem};
use crate::{
    http,
    socket::{self, Place},
};

/// Endpoints that are looked at at one time: one that does not answer holds up few others.
const AT_ONCE: usize = 16;
/// How long one endpoint is given.
const EACH: Duration = Duration::from_secs(5);

const WHAT: &str = "endpoint";

/// Whom this machine trusts, or why nobody.
type Trust = Result<Arc<ClientConfig>, String>;

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
    // A machine without root certificates can still look at those that are called in the clear.
    let trust = socket::trust(None);
    let mut looks = Vec::with_capacity(names.len());
    for name in &names {
        looks.push(one(downstream, name, &trust, deadline));
    }
    stream::iter(looks).buffered(AT_ONCE).collect().await
}

async fn one(downstream: &WebhookDownstream, name: &str, trust: &Trust, deadline: Instant) -> Check {
    let row = downstream.directory.find(name);
    let ready = match downstream.ready(name) {
        Ok(ready) => ready,
        Err(Problem::Url(why)) => {
            let remedy = "give it a URL that may be called, or let egress allow it";
            return Check::fail(WHAT, format!("{name}: {why}"), remedy);
        }
        Err(Problem::Secret(why)) => {
            let remedy = "set the secret, or let secrets_from allow it";
            return Check::fail(WHAT, format!("{name}: {why}"), remedy);
        }
    };
    let now = Instant::now();
    if now >= deadline {
        let found = format!("{name}: there was no time left to look at it");
        return Check::warn(WHAT, found, "look again, once fewer of the others hang");
    }
    let host = crate::config::host_port(&ready.url);
    let answers = reach(downstream, &ready.url, trust, deadline.min(now + EACH)).await;
    if let Some(disabled) = row.as_ref().and_then(|row| row.disabled.as_ref()) {
        let answers = answers.unwrap_or_else(|why| format!("does not answer ({why})"));
        let found = format!(
            "{name} at {host} is disabled since {}: {}; it {answers}",
            disabled.since, disabled.reason
        );
        return Check::warn(WHAT, found, "mend it, then `aftercommit endpoints enable`");
    }
    let answers = match answers {
        Ok(answers) => answers,
        Err(why) => {
            return Check::fail(WHAT, format!("{name}: {why}"), "ask its owner, or let egress allow it");
        }
    };
    let public: Vec<String> = ready.keys.iter().filter_map(super::sign::Key::public).collect();
    let verified =
        if public.is_empty() { String::new() } else { format!("; verified with {}", public.join(" ")) };
    let found = format!("{name} at {host} {answers}, {} signatures{verified}", ready.keys.len());
    match row.and_then(|row| row.failing_since) {
        Some(since) => Check::warn(
            WHAT,
            format!("{found}; it has shown nothing but failures since {since}"),
            "ask its owner",
        ),
        None => Check::ok(WHAT, found),
    }
}

/// Connects as a call would, through the egress guard, and hangs up. The error is a sentence for people.
async fn reach(
    downstream: &WebhookDownstream,
    url: &Url,
    trust: &Trust,
    by: Instant,
) -> Result<String, String> {
    let resolved = timeout_at(by, downstream.guarded.addresses(url)).await;
    let addresses = resolved.map_err(|_elapsed| "its name was not resolved in time".to_owned())??;
    let place = Place::of(url, 443);
    let stream = socket::connect_to(&place, &addresses, by).await?;
    if url.scheme() != "https" {
        return Ok("answers in the clear".to_owned());
    }
    let trust = trust.as_ref().map_err(Clone::clone)?;
    socket::encrypt(stream, &place, (trust, http::AUTHORITY), by).await?;
    Ok("answers over TLS, its certificate is trusted".to_owned())
}
