//! The ledger: what a downstream was asked, on disk before it could act on it. The checker believes nothing else.

use std::{
    collections::BTreeMap,
    fs::File,
    io::{BufRead as _, BufReader, Write as _},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::{clock::now_us, wire::Message};

/// What became of a call after it was recorded.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Fate {
    /// The answer was written back whole.
    Answered,
    /// It was never forwarded: the server did not hear of it.
    RequestDropped,
    /// The server answered, and the answer was thrown away.
    AnswerDropped,
    /// The caller was gone when the answer came, or the server was.
    Broken,
}

/// One call, as the ledger tells it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct Call {
    /// Position in the ledger.
    pub(super) seq: u64,
    /// When it was recorded, in microseconds since 1970.
    pub(super) at: i64,
    /// `POST`.
    pub(super) method: String,
    /// Path and query.
    pub(super) path: String,
    /// The idempotency key; empty when there was none.
    pub(super) key: String,
    /// Of the body.
    pub(super) body_sha256: String,
    /// The headers that the promise covers: not authentication, trace, lengths.
    pub(super) headers: BTreeMap<String, String>,
    /// What became of it; `None` when the ledger ends before that.
    #[serde(skip)]
    pub(super) fate: Option<(Fate, i64)>,
}

#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Seen(Call),
    Ended { seq: u64, fate: Fate, at: i64 },
}

/// An append-only file of calls.
#[derive(Clone, Debug)]
pub(super) struct Ledger {
    path: PathBuf,
    // The proxy's connection tasks append; the number is drawn under the same lock, so the file is in order.
    file: Arc<Mutex<(File, u64)>>,
}

/// Headers that may differ between two attempts, or say nothing about the request.
const EXCEPTED: [&str; 4] = ["authorization", "traceparent", "connection", "content-length"];

impl Ledger {
    /// A new ledger at `path`.
    pub(super) fn create(path: &Path) -> Self {
        let file = File::create_new(path).expect("the ledger's folder is writable and holds no ledger yet");
        Self { path: path.to_owned(), file: Arc::new(Mutex::new((file, 0))) }
    }

    /// Writes a request down and waits until the disk has it. Only then may anybody act on it.
    pub(super) async fn seen(&self, request: &Message) -> u64 {
        let call = Call {
            seq: 0,
            at: now_us(),
            method: request.word(0).to_owned(),
            path: request.word(1).to_owned(),
            key: request.header("idempotency-key").unwrap_or_default().to_owned(),
            body_sha256: hex::encode(Sha256::digest(&request.body)),
            headers: request
                .headers
                .iter()
                .filter(|(name, _)| !EXCEPTED.contains(&name.as_str()))
                .cloned()
                .collect(),
            fate: None,
        };
        let ledger = self.clone();
        tokio::task::spawn_blocking(move || ledger.append_call(call))
            .await
            .expect("the ledger can be written")
    }

    /// Writes down what became of a call. Not synced: the checker draws nothing from its absence.
    pub(super) fn ended(&self, seq: u64, fate: Fate) {
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        write_line(&mut guard.0, &Line::Ended { seq, fate, at: now_us() });
    }

    fn append_call(&self, mut call: Call) -> u64 {
        let mut guard = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        guard.1 += 1;
        call.seq = guard.1;
        write_line(&mut guard.0, &Line::Seen(call));
        guard.0.sync_data().expect("the disk takes the ledger");
        guard.1
    }

    /// Every call, in order, with what became of it.
    pub(super) fn calls(&self) -> Vec<Call> {
        let mut calls = BTreeMap::new();
        let file = File::open(&self.path).expect("the ledger exists");
        for line in BufReader::new(file).lines() {
            match serde_json::from_str(&line.expect("the ledger is text")).expect("a whole line") {
                Line::Seen(call) => {
                    calls.insert(call.seq, call);
                }
                Line::Ended { seq, fate, at } => {
                    let call = calls.get_mut(&seq).expect("a call is seen before it ends");
                    call.fate = Some((fate, at));
                }
            }
        }
        calls.into_values().collect()
    }

    /// The calls that carried `key`.
    pub(super) fn calls_of(&self, key: &str) -> Vec<Call> {
        self.calls().into_iter().filter(|call| call.key == key).collect()
    }
}

fn write_line(file: &mut File, line: &Line) {
    let mut text = serde_json::to_string(line).expect("plain values");
    text.push('\n');
    file.write_all(text.as_bytes()).expect("the ledger can be written");
}
