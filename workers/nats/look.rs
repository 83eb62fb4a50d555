//! What `downstreams test` sees: nothing is published.

use std::time::Duration;

use aftercommit::check::Check;
use tokio::time::{Instant, timeout_at};

use super::{
    config::Nats,
    connect::{Access, Link},
    stream::Stream,
};
use crate::config::show_duration;

/// Connects, and says what the stream is.
pub(super) async fn look(nats: &Nats, access: &Access, deadline: Instant) -> Vec<Check> {
    let place = access.place();
    let remedy = "look at url, the credentials and stream of this downstream, and at the server's log";
    let link = match timeout_at(deadline, Link::open(access, &nats.stream, deadline)).await {
        Ok(Ok(link)) => link,
        Ok(Err(refused)) => return vec![Check::fail("connection", refused.reason, remedy)],
        Err(_elapsed) => {
            return vec![Check::fail("connection", format!("{place} did not answer in time"), remedy)];
        }
    };
    let tls = if link.is_encrypted(access) { "over TLS, its certificate is trusted" } else { "without TLS" };
    let mut checks =
        vec![Check::ok("connection", format!("NATS {} at {place}, {tls}", link.server_version()))];
    let stream = &link.stream();
    checks.push(window(nats, stream));
    checks.push(subjects(nats, stream));
    checks.push(retention(nats, stream));
    checks.push(durability(stream));
    checks.extend(limits(stream));
    let size = if stream.max_msg_size > 0 {
        format!("{} bytes, and the stream takes {} bytes of body", link.max_payload(), stream.max_msg_size)
    } else {
        format!("{} bytes", link.max_payload())
    };
    checks.push(Check::ok("largest message", format!("{size}, headers included; a larger one is not sent")));
    checks.push(Check::warn(
        "publish",
        "whether this account may publish to the subjects cannot be seen without a message",
        "the first effect shows it: a refusal pauses the downstream and burns no effect",
    ));
    checks
}

fn window(nats: &Nats, stream: &Stream) -> Check {
    let has = stream.duplicate_window;
    let longest = nats.calls().filter_map(|call| call.window).max();
    match longest {
        Some(window) if has < window => Check::fail(
            "duplicate window",
            format!(
                "the stream remembers message ids for {}, and the contract says window = {}",
                show_duration(has),
                show_duration(window)
            ),
            "raise the stream's duplicate window, or lower the contract's window (and margin): until then nothing is sent",
        ),
        Some(window) => Check::ok(
            "duplicate window",
            format!("{}; the contract counts on {}", show_duration(has), show_duration(window)),
        ),
        None => Check::ok("duplicate window", format!("{}; the contract counts on none", show_duration(has))),
    }
}

fn subjects(nats: &Nats, stream: &Stream) -> Check {
    let missing: Vec<&str> = nats.subjects().filter(|subject| !stream.takes(subject)).collect();
    let takes = stream.subjects.join(", ");
    if missing.is_empty() {
        return Check::ok("subjects", format!("the stream takes {takes}"));
    }
    Check::fail(
        "subjects",
        format!("the stream takes {takes}, and not {}", missing.join(", ")),
        "correct subject, or the stream's subjects",
    )
}

fn retention(nats: &Nats, stream: &Stream) -> Check {
    let deletes = matches!(stream.retention.as_str(), "workqueue" | "interest");
    if deletes && nats.calls().any(|call| call.window.is_some()) {
        return Check::warn(
            "retention",
            format!(
                "{}: a restarted server knows the ids of stored messages only, so it forgets those that were consumed and deleted, within the window too",
                stream.retention
            ),
            "let consumers use the inbox, or keep messages for the window (retention limits)",
        );
    }
    Check::ok("retention", stream.retention.clone())
}

fn durability(stream: &Stream) -> Check {
    if stream.storage == "memory" {
        return Check::warn(
            "durability",
            "the stream is in memory: a restart of the server loses what it confirmed, and the ids with it",
            "use file storage",
        );
    }
    if stream.num_replicas < 2 {
        return Check::warn(
            "durability",
            "one replica, and a server confirms before it fsyncs: a power cut can lose the last confirmed messages, and their ids",
            "use three replicas where that must not be, or sync_interval: always in the server's configuration",
        );
    }
    Check::ok("durability", format!("file storage, {} replicas", stream.num_replicas))
}

fn limits(stream: &Stream) -> Vec<Check> {
    let mut found = Vec::new();
    if stream.sealed {
        found.push(Check::fail("limits", "the stream is sealed: it takes nothing", "name another stream"));
    }
    let mut limits = Vec::new();
    if stream.max_msgs > 0 {
        limits.push(format!("{} messages", stream.max_msgs));
    }
    if stream.max_bytes > 0 {
        limits.push(format!("{} bytes", stream.max_bytes));
    }
    if stream.max_age > Duration::ZERO {
        limits.push(show_duration(stream.max_age));
    }
    if !limits.is_empty() && stream.discard == "old" {
        found.push(Check::warn(
            "limits",
            format!(
                "the stream keeps {}, and drops the oldest beyond that, consumed or not",
                limits.join(", ")
            ),
            "discard: new refuses instead, and effects wait",
        ));
    } else if !limits.is_empty() {
        found.push(Check::ok(
            "limits",
            format!("the stream keeps {} and refuses beyond that", limits.join(", ")),
        ));
    }
    found
}
