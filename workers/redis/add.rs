//! How an entry is added, and what the replies show.

use std::time::Duration;

use ::redis::{Cmd, RedisError, Value};
use aftercommit::outcome::{About, Finding, Outcome, Phase, Response};

use super::{
    config::{Call, Idempotency, Remembered, Streams},
    connect::{self, plain, said},
    entry::Entry,
};

/// Adds the entry and the marker of its key, or returns the id of the entry that the marker names.
///
/// `KEYS`: stream, marker. `ARGV`: milliseconds that the marker lives (0: for ever), the greatest length (0: any), the fields.
///
/// A script is atomic: nothing comes between its commands, and all it wrote is one transaction to the append-only file and to
/// replicas. But a command that fails does not undo those before it. So everything that could refuse the marker (memory, access,
/// replicas, a read-only server) is asked before the entry is added: `SET … XX` writes nothing where no marker stands, and is
/// refused for whatever would refuse the `SET` at the end. Memory is judged once, at a script's first write. Errors are
/// returned rather than raised, so that servers before 7 keep their code in front.
const SCRIPT: &str = "local id = redis.pcall('GET', KEYS[2])
if type(id) == 'table' then return id end
if id then return {id, 1} end
local asked = redis.pcall('SET', KEYS[2], '', 'XX')
if type(asked) == 'table' and asked.err then return asked end
local add = {'XADD', KEYS[1]}
if ARGV[2] ~= '0' then add[3] = 'MAXLEN' add[4] = '~' add[5] = ARGV[2] end
add[#add + 1] = '*'
for n = 3, #ARGV do add[#add + 1] = ARGV[n] end
id = redis.pcall(unpack(add))
if type(id) == 'table' then return id end
if ARGV[1] == '0' then redis.pcall('SET', KEYS[2], id) else redis.pcall('SET', KEYS[2], id, 'PX', ARGV[1]) end
return {id, 0}";

/// What is asked of the server.
pub(super) struct Adding {
    entry: Entry,
    how: How,
    maxlen: Option<u32>,
}

enum How {
    Plain,
    Marker { marker: String, lives: Remembered },
    Idmp { producer: String, key: String, window: Remembered },
}

impl Adding {
    pub(super) fn new(streams: &Streams, call: &Call, entry: Entry, key: &str) -> Self {
        let how = match (call.remembered, streams.idempotency) {
            (Remembered::No, _) => How::Plain,
            (lives, Idempotency::Marker) => How::Marker { marker: streams.marker(&entry.stream, key), lives },
            (window, Idempotency::Idmp) => {
                How::Idmp { producer: streams.producer.clone(), key: key.to_owned(), window }
            }
        };
        Self { entry, how, maxlen: streams.maxlen }
    }

    pub(super) fn stream(&self) -> &str {
        &self.entry.stream
    }

    /// How long the stream itself must remember the key; `None` where nobody counts on it.
    pub(super) fn counts_on_stream(&self) -> Option<Duration> {
        match &self.how {
            How::Idmp { window: Remembered::For(window), .. } => Some(*window),
            How::Idmp { window: Remembered::No | Remembered::Forever, .. }
            | How::Plain
            | How::Marker { .. } => None,
        }
    }

    /// The command; a script by its hash where the server `knows` it.
    pub(super) fn command(&self, knows: bool) -> Cmd {
        let mut command;
        match &self.how {
            How::Marker { marker, lives } => {
                let lives = match lives {
                    Remembered::For(window) => window.as_millis().max(1),
                    Remembered::Forever | Remembered::No => 0,
                };
                let (verb, script) = if knows { ("EVALSHA", hash()) } else { ("EVAL", SCRIPT) };
                command = ::redis::cmd(verb);
                command.arg(script).arg(2).arg(&self.entry.stream).arg(marker);
                command.arg(lives.to_string()).arg(self.maxlen.unwrap_or(0));
            }
            How::Plain | How::Idmp { .. } => {
                command = ::redis::cmd("XADD");
                command.arg(&self.entry.stream);
                if let How::Idmp { producer, key, .. } = &self.how {
                    command.arg("IDMP").arg(producer).arg(key);
                }
                if let Some(maxlen) = self.maxlen {
                    command.arg("MAXLEN").arg("~").arg(maxlen);
                }
                command.arg("*");
            }
        }
        for (name, value) in &self.entry.fields {
            command.arg(name).arg(value.as_slice());
        }
        command
    }

    /// What a reply that is no error shows.
    pub(super) fn added(&self, value: &Value, place: &str) -> Outcome {
        let stream = self.stream();
        let (id, repeated) = match (&self.how, value) {
            (How::Marker { .. }, Value::Array(parts)) => match parts.as_slice() {
                [id, Value::Int(repeated @ (0 | 1))] => (plain(id), *repeated == 1),
                _ => (None, false),
            },
            (How::Plain | How::Idmp { .. }, id) => (plain(id), false),
            (How::Marker { .. }, _) => (None, false),
        };
        let Some(id) = id.filter(|id| is_entry_id(id)) else {
            let why = format!(
                "{place} replied something that is no entry of a stream, so nobody knows: look what answers there"
            );
            return Outcome::new(Finding::Unknown, Phase::Done, why);
        };
        let body = serde_json::json!({ "stream": stream, "id": id, "duplicate": repeated }).to_string();
        let response = Some(Response { status: None, body: body.into_bytes(), truncated: false });
        if !repeated {
            return Outcome { response, ..Outcome::new(Finding::Applied, Phase::Done, "") };
        }
        // Where our log holds no earlier attempt, somebody else used this key: the mark makes that visible.
        let why = format!(
            "this key had been added before, as the entry {id} of {stream} at {place}; nothing was added now"
        );
        Outcome { response, replayed: true, ..Outcome::new(Finding::AlreadyDone, Phase::Done, why) }
    }
}

/// What the codes of a Redis show: the finding, whether it refuses us, and what that is and what to do about it.
const CODES: &[(&str, Finding, bool, &str)] = &[
    ("OOM", Finding::NotApplied, false, "its memory is full: free some, or raise maxmemory"),
    ("READONLY", Finding::NotApplied, false, "it is a replica and takes no writes: name the master in url"),
    ("LOADING", Finding::NotApplied, false, "it takes entries once it has loaded its data"),
    ("BUSY", Finding::NotApplied, false, "it takes entries once that script has ended (SCRIPT KILL)"),
    ("CLUSTERDOWN", Finding::NotApplied, false, "its cluster is down: CLUSTER INFO says more there"),
    ("MASTERDOWN", Finding::NotApplied, false, "its master is down: name the new master in url"),
    (
        "MISCONF",
        Finding::NotApplied,
        false,
        "it cannot write to its disk, and takes no writes: look at its disk and its log",
    ),
    (
        "NOREPLICAS",
        Finding::NotApplied,
        false,
        "it has too few replicas: bring them back, or lower min-replicas-to-write",
    ),
    ("TRYAGAIN", Finding::NotApplied, false, "it takes entries once its cluster has moved the slot"),
    ("MOVED", Finding::NotApplied, false, ELSEWHERE),
    ("ASK", Finding::NotApplied, false, ELSEWHERE),
    (
        "CROSSSLOT",
        Finding::NotApplied,
        true,
        "the stream and its marker are not in one slot: give the stream a name with a {tag}",
    ),
    (
        "WRONGTYPE",
        Finding::Rejected(About::ThisAttempt),
        false,
        "something that is no stream has this name: remove it, or name another stream",
    ),
    ("NOAUTH", Finding::NotApplied, true, "it did not accept the credentials: correct url or auth"),
    ("WRONGPASS", Finding::NotApplied, true, "it did not accept the credentials: correct url or auth"),
    ("NOPERM", Finding::NotApplied, true, PERMIT),
];

/// The same of `ERR`, which may stand for anything, by words that a Redis says.
const WORDS: &[(&str, Finding, bool, &str)] = &[
    // How a Redis 7 refuses a command or key inside of a script.
    ("user executing the script can't", Finding::NotApplied, true, PERMIT),
    ("acl failure in script", Finding::NotApplied, true, PERMIT),
    ("unknown command", Finding::NotApplied, true, TOO_OLD),
    ("syntax error", Finding::NotApplied, true, TOO_OLD),
    (
        "max number of clients",
        Finding::NotApplied,
        false,
        "it has as many clients as it takes: raise maxclients, or end some",
    ),
    (
        "elements are too large",
        Finding::Rejected(About::ThisAttempt),
        false,
        "the entry is larger than a stream takes: send less, and keep the rest elsewhere",
    ),
];

const ELSEWHERE: &str = "another node of its cluster has this stream: url must name the node that has it";
const PERMIT: &str =
    "this user may not do that: permit what docs/queues.md lists, on the stream and the marker's name";
const TOO_OLD: &str = "it is too old for this configuration: use a newer one, or idempotency = \"marker\"";
const ANYTHING: &str = "that may stand for anything: look for the key in the stream, and at the server's log";

/// What an error shows. Only what a Redis itself says by a known code is decisive: a proxy in between says `ERR` also of what it
/// does not know.
///
/// Where the effect itself `named` the stream, a refusal of that name concerns no other effect.
pub(super) fn refused(error: &RedisError, named: bool, place: &str) -> Outcome {
    let code = error.code().unwrap_or("ERR");
    let words = error.detail().unwrap_or_default().to_lowercase();
    let known = if code == "ERR" {
        WORDS.iter().find(|(said, ..)| words.contains(said))
    } else {
        CODES.iter().find(|(known, ..)| *known == code)
    };
    let (finding, refuses_us, meaning) = known
        .map_or((Finding::Unknown, false, ANYTHING), |(_, finding, us, meaning)| (*finding, *us, *meaning));
    let of_its_name = meaning == PERMIT && named && words.contains(" key");
    let reason = format!("{place} says \"{}\": {meaning}", said(error));
    Outcome { refuses_us: refuses_us && !of_its_name, ..Outcome::new(finding, Phase::Done, reason) }
}

/// It was handed over, and nobody said what became of it.
pub(super) fn unheard(what: &str, place: &str) -> Outcome {
    let reason = format!("{what} of {place}: the entry may have been added; look for the key in the stream");
    Outcome::new(Finding::Unknown, Phase::Send, reason)
}

/// It was handed over, and what came was no reply.
pub(super) fn too_much(place: &str) -> Outcome {
    let reason = format!("{}; the entry may have been added", connect::too_much(place));
    Outcome::new(Finding::Unknown, Phase::Answer, reason)
}

fn hash() -> &'static str {
    static HASH: std::sync::LazyLock<String> =
        std::sync::LazyLock::new(|| ::redis::Script::new(SCRIPT).get_hash().to_owned());
    &HASH
}

fn is_entry_id(id: &str) -> bool {
    let number = |part: &str| !part.is_empty() && part.bytes().all(|byte| byte.is_ascii_digit());
    id.split_once('-').is_some_and(|(time, count)| number(time) && number(count))
}
