//! How an entry is added, and what the replies show.

use std::time::Duration;

use ::redis::{Cmd, RedisError, Value};
use aftercommit::outcome::{About, Finding, Outcome, Phase, Response};

use super::{
    config::{Call, Idempotency, Remembered, Streams},
    connect::plain,
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
            let why = format!("{place} replied something that is no entry of a stream");
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

/// What an error shows. Only what a Redis itself says by a known code is decisive: a proxy in between says `ERR` also of what it
/// does not know.
///
/// Where the effect itself `named` the stream, a refusal of that name concerns no other effect.
pub(super) fn refused(error: &RedisError, named: bool, place: &str) -> Outcome {
    let code = error.code().unwrap_or("ERR");
    let said = error.detail().unwrap_or_default().to_lowercase();
    let (finding, refuses_us, meaning) = match code {
        "OOM" => (Finding::NotApplied, false, "its memory is full"),
        "READONLY" => (Finding::NotApplied, false, "it is a replica and takes no writes"),
        "LOADING" => (Finding::NotApplied, false, "it is loading its data"),
        "BUSY" => (Finding::NotApplied, false, "it is busy with a script"),
        "CLUSTERDOWN" => (Finding::NotApplied, false, "its cluster is down"),
        "MASTERDOWN" => (Finding::NotApplied, false, "its master is down"),
        "MISCONF" => (Finding::NotApplied, false, "it cannot write to its disk, and takes no writes"),
        "NOREPLICAS" => (Finding::NotApplied, false, "it has too few replicas"),
        "TRYAGAIN" => (Finding::NotApplied, false, "its cluster is moving the slot"),
        "MOVED" | "ASK" => (
            Finding::NotApplied,
            false,
            "another node of its cluster has this stream: url must name the node that has it",
        ),
        "CROSSSLOT" => (Finding::NotApplied, true, "the stream and its marker are not in one slot"),
        "WRONGTYPE" => {
            (Finding::Rejected(About::ThisAttempt), false, "something that is no stream has this name")
        }
        "NOAUTH" | "WRONGPASS" => (Finding::NotApplied, true, "it did not accept the credentials"),
        "NOPERM" => (Finding::NotApplied, !(named && said.contains(" key")), "this user may not do that"),
        // How a Redis 7 refuses a command or key inside of a script.
        "ERR"
            if ["user executing the script can't", "acl failure in script"]
                .iter()
                .any(|text| said.contains(text)) =>
        {
            (Finding::NotApplied, !(named && said.contains(" key")), "this user may not do that")
        }
        "ERR" if said.contains("unknown command") || said.contains("syntax error") => {
            (Finding::NotApplied, true, "it does not know the command: it is too old for this configuration")
        }
        "ERR" if said.contains("max number of clients") => {
            (Finding::NotApplied, false, "it has as many clients as it takes")
        }
        "ERR" if said.contains("elements are too large") => {
            (Finding::Rejected(About::ThisAttempt), false, "the entry is larger than a stream takes")
        }
        _ => (Finding::Unknown, false, "an error that may stand for anything"),
    };
    let word = |c: char| c.is_ascii_uppercase() || c.is_ascii_digit() || c == '_';
    let code: String = code.chars().filter(|c| word(*c)).take(32).collect();
    let reason = format!("{code} from {place}: {meaning}");
    Outcome { refuses_us, ..Outcome::new(finding, Phase::Done, reason) }
}

/// It was handed over, and nobody said what became of it.
pub(super) fn unheard(what: &str, place: &str) -> Outcome {
    Outcome::new(Finding::Unknown, Phase::Send, format!("{what} of {place}"))
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
