//! What `downstreams test` sees, and what a stream remembers: nothing is added.

use std::{collections::BTreeMap, time::Duration};

use ::redis::{Cmd, Value};
use aftercommit::check::Check;
use tokio::time::{Instant, timeout_at};

use super::{
    config::{Idempotency, Remembered, Streams},
    connect::{Access, Heard, Link, plain, said, too_much},
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
    match link.ask_for_entries(&command, deadline).await {
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
        Heard::Error(error) => Err(Refused::unreachable(format!(
            "what the stream {stream} remembers could not be read ({}): permit XINFO to this user",
            said(&error)
        ))),
        Heard::TooMuch => Err(Refused::unreachable(format!(
            "what the stream {stream} remembers could not be read: its first and last entry are too large together; use idempotency = \"marker\""
        ))),
        Heard::Lost | Heard::Silent => Err(Refused::unreachable(format!(
            "what the stream {stream} remembers could not be read: no reply; look at the server's load"
        ))),
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
    let tls = if access.is_tls() { "over TLS, its certificate is trusted" } else { "without TLS" };
    let server = Server { link: &link, place: &place, deadline };
    let told = server.info("server").await;
    let mut checks = vec![match &told {
        Ok(info) => {
            let version = info.get("redis_version").map_or("of an unknown version", String::as_str);
            Check::ok("connection", format!("Redis {version} at {place}, {tls}"))
        }
        Err(why) => Check::warn(
            "connection",
            format!("{place} answers, {tls}, and does not say what it is: {why}"),
            "permit INFO to this user, or look at the version, maxmemory and appendonly yourself",
        ),
    }];
    let memory = server.info("memory").await.unwrap_or_default();
    checks.push(eviction(streams, &memory));
    let persistence = server.info("persistence").await.unwrap_or_default();
    let fsync = server.config("appendfsync").await.ok().flatten();
    checks.push(durability(&persistence, fsync.as_deref()));
    let replication = server.info("replication").await.unwrap_or_default();
    if replication.get("role").is_some_and(|role| role == "slave") {
        checks.push(Check::fail("role", "a replica takes no writes", "name the master in url"));
    }
    for call in streams.calls() {
        let Some(name) = &call.stream else { continue };
        checks.push(server.stream(name).await);
        if let (Idempotency::Idmp, Remembered::For(window)) = (streams.idempotency, call.remembered) {
            checks.push(server.idmp(name, window, streams.concurrency).await);
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

/// A server that is asked. What it refuses to say comes with its own words.
struct Server<'a> {
    link: &'a Link,
    place: &'a str,
    deadline: Instant,
}

impl Server<'_> {
    async fn answer(&self, words: &[&str]) -> Result<Value, String> {
        let mut command = Cmd::new();
        for word in words {
            command.arg(word);
        }
        match self.link.ask(&command, self.deadline).await {
            Heard::Value(value) => Ok(value),
            Heard::Error(error) => Err(said(&error)),
            Heard::Lost => Err("the connection was lost".to_owned()),
            Heard::TooMuch => Err(too_much(self.place)),
            Heard::Silent => Err("no reply in time".to_owned()),
        }
    }

    async fn info(&self, section: &str) -> Result<BTreeMap<String, String>, String> {
        let text = plain(&self.answer(&["INFO", section]).await?).unwrap_or_default();
        Ok(text
            .lines()
            .filter_map(|line| line.split_once(':'))
            .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
            .collect())
    }

    async fn config(&self, name: &str) -> Result<Option<String>, String> {
        Ok(facts(&self.answer(&["CONFIG", "GET", name]).await?).remove(name))
    }

    async fn stream(&self, name: &str) -> Check {
        let kind = self.answer(&["TYPE", name]).await.map(|kind| plain(&kind).unwrap_or_default());
        match kind.as_deref() {
            Ok("stream") => Check::ok("stream", format!("{name} is a stream")),
            Ok("none") => Check::ok("stream", format!("{name} does not exist yet: the first entry makes it")),
            Ok(other) => Check::fail(
                "stream",
                format!("{name} is a {other}, and no stream"),
                "name another stream, or remove what has its name",
            ),
            Err(why) => Check::warn(
                "stream",
                format!("what {name} is cannot be seen: {why}"),
                "permit TYPE to this user, or look yourself",
            ),
        }
    }

    async fn idmp(&self, name: &str, window: Duration, concurrency: u32) -> Check {
        const WHAT: &str = "duplicate window";
        match remembers(self.link, name, self.deadline).await {
            Ok(Some(memory)) if memory.duration >= window && memory.entries < i64::from(concurrency) => {
                Check::fail(WHAT, too_few(name, memory, concurrency), "until then nothing is added")
            }
            Ok(Some(memory)) if memory.duration >= window => Check::warn(
                WHAT,
                format!(
                    "{name} remembers keys for {}, and the last {} of the producer only",
                    show_duration(memory.duration),
                    memory.entries
                ),
                "IDMP-MAXSIZE must exceed what is sent within the window",
            ),
            Ok(memory) => Check::fail(WHAT, too_short(name, memory, window), "until then nothing is added"),
            Err(refused) => Check::fail(WHAT, refused.reason, "permit XINFO to this user"),
        }
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
