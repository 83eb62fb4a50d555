//! What `downstreams test` sees, and what a stream remembers: nothing is added.

use std::{collections::BTreeMap, time::Duration};

use ::redis::{Cmd, Value};
use aftercommit::check::Check;
use tokio::time::{Instant, timeout_at};

use super::{
    config::{Idempotency, Remembered, Streams},
    connect::{Access, Heard, Link, plain},
};
use crate::{config::show_duration, shared::Refused};

/// How long, and how many keys of a producer, a stream remembers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Memory {
    pub(super) duration: Duration,
    pub(super) entries: i64,
}

/// What `stream` remembers; `None` where there is no such stream, or it remembers nothing.
pub(super) async fn remembers(
    link: &Link,
    stream: &str,
    deadline: Instant,
) -> Result<Option<Memory>, Refused> {
    let mut command = ::redis::cmd("XINFO");
    command.arg("STREAM").arg(stream);
    match link.ask(&command, deadline).await {
        Heard::Value(value) => {
            let facts = facts(&value);
            let number = |name: &str| facts.get(name).and_then(|fact| fact.parse::<i64>().ok());
            let seconds = number("idmp-duration").and_then(|seconds| u64::try_from(seconds).ok());
            Ok(seconds.map(|seconds| Memory {
                duration: Duration::from_secs(seconds),
                entries: number("idmp-maxsize").unwrap_or(0),
            }))
        }
        Heard::Error(error) if error.code() == Some("ERR") => Ok(None),
        Heard::Error(_) | Heard::Lost | Heard::Silent => {
            Err(Refused::unreachable(format!("what the stream {stream} remembers could not be read")))
        }
    }
}

/// Why nothing is added to a stream that remembers for less than the contract says.
pub(super) fn too_short(stream: &str, memory: Option<Memory>, window: Duration) -> String {
    let has = memory.map_or_else(
        || "no keys at all, or does not exist".to_owned(),
        |memory| format!("keys for {}", show_duration(memory.duration)),
    );
    format!(
        "the stream {stream} remembers {has}, and the contract says window = {window}: XCFGSET {stream} IDMP-DURATION {} (which makes it forget what it has), or lower the window",
        window.as_secs(),
        window = show_duration(window),
    )
}

/// Why nothing is added to a stream that remembers fewer keys than are sent at one time.
pub(super) fn too_few(stream: &str, memory: Memory, concurrency: u32) -> String {
    format!(
        "the stream {stream} remembers the last {} keys of a producer only, and concurrency is {concurrency}: XCFGSET {stream} IDMP-MAXSIZE to more than is sent within the window (which makes it forget what it has)",
        memory.entries
    )
}

/// Connects, and says what the server and the streams are.
pub(super) async fn look(streams: &Streams, access: &Access, deadline: Instant) -> Vec<Check> {
    let place = access.place();
    let remedy = "look at url and auth of this downstream, and at the server's log";
    let link = match timeout_at(deadline, Link::open(access, deadline)).await {
        Ok(Ok(link)) => link,
        Ok(Err(refused)) => return vec![Check::fail("connection", refused.reason, remedy)],
        Err(_elapsed) => {
            return vec![Check::fail("connection", format!("{place} did not answer in time"), remedy)];
        }
    };
    let server = info(&link, "server", deadline).await;
    let version = server.as_ref().and_then(|info| info.get("redis_version")).cloned();
    let mut checks = vec![match &version {
        Some(version) => Check::ok("connection", format!("Redis {version} at {place}")),
        None => Check::warn(
            "connection",
            format!("{place} answers, and does not say what it is: INFO is not permitted"),
            "permit INFO to this user, or look at the version, maxmemory and appendonly yourself",
        ),
    }];
    let memory = info(&link, "memory", deadline).await.unwrap_or_default();
    checks.push(eviction(streams, &memory));
    let persistence = info(&link, "persistence", deadline).await.unwrap_or_default();
    let fsync = config(&link, "appendfsync", deadline).await;
    checks.push(durability(&persistence, fsync.as_deref()));
    let replication = info(&link, "replication", deadline).await.unwrap_or_default();
    if replication.get("role").is_some_and(|role| role == "slave") {
        checks.push(Check::fail("role", "a replica takes no writes", "name the master in url"));
    }
    for call in streams.calls() {
        let Some(name) = &call.stream else { continue };
        checks.push(stream(&link, name, deadline).await);
        if let (Idempotency::Idmp, Remembered::For(window)) = (streams.idempotency, call.remembered) {
            checks.push(idmp(&link, name, window, streams.concurrency, deadline).await);
        }
    }
    checks.push(Check::warn(
        "write",
        "whether this user may add entries (EVAL, EVALSHA, GET, SET, XADD) cannot be seen without one",
        "the first effect shows it: a refusal pauses the downstream and burns no effect",
    ));
    checks
}

/// Without `maxmemory` nothing is evicted.
fn eviction(streams: &Streams, memory: &BTreeMap<String, String>) -> Check {
    let counts = streams.calls().any(|call| call.remembered != Remembered::No);
    let (Some(policy), Some(max)) = (memory.get("maxmemory_policy"), memory.get("maxmemory")) else {
        return Check::warn(
            "memory",
            "maxmemory and its policy cannot be seen",
            "it must be noeviction: any other may drop markers, or whole streams",
        );
    };
    if policy == "noeviction" {
        return Check::ok("memory", format!("maxmemory {max}, noeviction: when it is full, effects wait"));
    }
    let found = if max == "0" {
        format!("maxmemory-policy is {policy}; without maxmemory nothing is evicted yet")
    } else if counts {
        format!(
            "maxmemory-policy is {policy} at {max} bytes: when memory is full it drops markers, and a repetition within the window is added a second time"
        )
    } else {
        format!("maxmemory-policy is {policy} at {max} bytes: when memory is full it may drop whole streams")
    };
    Check::warn("memory", found, "set maxmemory-policy noeviction")
}

fn durability(persistence: &BTreeMap<String, String>, fsync: Option<&str>) -> Check {
    match persistence.get("aof_enabled").map(String::as_str) {
        None => Check::warn(
            "durability",
            "what survives a crash cannot be seen",
            "appendonly yes and appendfsync always lose nothing that was confirmed",
        ),
        Some("1") => match fsync {
            Some("always") => Check::ok("durability", "appendonly, appendfsync always"),
            Some(other) => Check::warn(
                "durability",
                format!(
                    "appendonly, appendfsync {other}: a killed process loses nothing, a power cut loses the last second or more of what was confirmed, markers included"
                ),
                "appendfsync always, where that must not be",
            ),
            None => Check::warn(
                "durability",
                "appendonly; appendfsync cannot be seen: CONFIG is not permitted",
                "appendfsync always loses nothing that was confirmed",
            ),
        },
        Some(_) => Check::warn(
            "durability",
            "appendonly is off: what was confirmed since the last snapshot is lost when the process ends, markers included",
            "appendonly yes",
        ),
    }
}

async fn stream(link: &Link, name: &str, deadline: Instant) -> Check {
    let mut command = ::redis::cmd("TYPE");
    command.arg(name);
    match link.ask(&command, deadline).await {
        Heard::Value(Value::SimpleString(kind)) => match kind.as_str() {
            "stream" => Check::ok("stream", format!("{name} is a stream")),
            "none" => Check::ok("stream", format!("{name} does not exist yet: the first entry makes it")),
            other => Check::fail(
                "stream",
                format!("{name} is a {other}, and no stream"),
                "name another stream, or remove what has its name",
            ),
        },
        Heard::Value(_) | Heard::Error(_) | Heard::Lost | Heard::Silent => Check::warn(
            "stream",
            format!("what {name} is cannot be seen"),
            "permit TYPE to this user, or look yourself",
        ),
    }
}

async fn idmp(link: &Link, name: &str, window: Duration, concurrency: u32, deadline: Instant) -> Check {
    match remembers(link, name, deadline).await {
        Ok(Some(memory)) if memory.duration >= window && memory.entries < i64::from(concurrency) => {
            Check::fail("duplicate window", too_few(name, memory, concurrency), "until then nothing is added")
        }
        Ok(Some(memory)) if memory.duration >= window => Check::warn(
            "duplicate window",
            format!(
                "{name} remembers keys for {}, and the last {} of the producer only",
                show_duration(memory.duration),
                memory.entries
            ),
            "IDMP-MAXSIZE must exceed what is sent within the window",
        ),
        Ok(memory) => {
            Check::fail("duplicate window", too_short(name, memory, window), "until then nothing is added")
        }
        Err(refused) => Check::fail("duplicate window", refused.reason, "permit XINFO to this user"),
    }
}

async fn info(link: &Link, section: &str, deadline: Instant) -> Option<BTreeMap<String, String>> {
    let mut command = ::redis::cmd("INFO");
    command.arg(section);
    let text = text_of(link, &command, deadline).await?;
    Some(
        text.lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect(),
    )
}

async fn text_of(link: &Link, command: &Cmd, deadline: Instant) -> Option<String> {
    match link.ask(command, deadline).await {
        Heard::Value(value) => plain(&value),
        Heard::Error(_) | Heard::Lost | Heard::Silent => None,
    }
}

async fn config(link: &Link, name: &str, deadline: Instant) -> Option<String> {
    let mut command = ::redis::cmd("CONFIG");
    command.arg("GET").arg(name);
    match link.ask(&command, deadline).await {
        Heard::Value(value) => facts(&value).remove(name),
        Heard::Error(_) | Heard::Lost | Heard::Silent => None,
    }
}

/// Names and plain values of a reply, whichever protocol it came in.
fn facts(value: &Value) -> BTreeMap<String, String> {
    let fact = |name: &Value, value: &Value| Some((plain(name)?, plain(value)?));
    if let Value::Map(pairs) = value {
        return pairs.iter().filter_map(|(name, value)| fact(name, value)).collect();
    }
    let Value::Array(items) = value else { return BTreeMap::new() };
    items.chunks_exact(2).filter_map(|pair| fact(pair.first()?, pair.last()?)).collect()
}
