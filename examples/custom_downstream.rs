//! A downstream of your own: a label printer that speaks a small protocol over TCP, served by an engine in your own process.
//!
//! ```text
//! cargo run --example custom_downstream -- sqlite:labels.db
//! ```
//!
//! It starts a printer on the loopback address, writes the order and the label to print in one transaction, and works until
//! nothing is due. A kind translates and classifies: it sends once, and says what that showed. It never retries, sleeps, decides
//! or touches the store; the engine does. `aftercommit::conformance` checks what the compiler cannot see (tests/downstreams).

use std::{collections::BTreeMap, io::Write as _, sync::Arc, time::Duration};

use aftercommit::{
    IdempotencyKey, NewEffect, Outbox,
    check::Check,
    clock::SystemClock,
    contract::{Contract, OnUnknown},
    downstream::{Attempt, Downstream, Served, Terms},
    engine::{Config, Engine, Stop},
    outcome::{About, Finding, Outcome, Phase, Response},
    schedule::Policy,
    store::{Options, connect, migrate},
};
use sqlx::{Connection as _, SqliteConnection};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
    time::{Instant, timeout_at},
};

/// Prints each effect's payload. The printer takes `PRINT KEY LENGTH`, a line end and the label, and answers with one line:
/// `DONE`, `JAM` (nothing was printed, try again), or `NO` and why. It does not remember keys.
pub(crate) struct LabelPrinter {
    /// `host:port`.
    pub(crate) address: String,
}

#[async_trait::async_trait]
impl Downstream for LabelPrinter {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        // One deadline for everything. The engine drops the future only at the end of the lease.
        let deadline = Instant::now() + attempt.timeout;
        let Some(label) = &attempt.effect.payload else {
            // Whatever the effect's own text makes impossible stays so: the effect ends failed, unsent.
            return Outcome::new(
                Finding::Rejected(About::ThisAttempt),
                Phase::Render,
                "not sent: it has no payload",
            );
        };
        let stream = match timeout_at(deadline, TcpStream::connect(&self.address)).await {
            Ok(Ok(stream)) => stream,
            Ok(Err(error)) => return unsent(format!("connecting to {}: {}", self.address, error.kind())),
            Err(_elapsed) => return unsent(format!("connecting to {} took too long", self.address)),
        };
        // Right before the first byte: the lease, the safe window, a pause.
        if let Err(closed) = attempt.may_begin() {
            return unsent(format!("not sent: {closed}"));
        }
        match timeout_at(deadline, print(stream, &attempt.key, label)).await {
            Ok(Ok(answer)) => classify(&answer),
            // From here on a byte may have arrived: the label may be printed, whatever happened to the answer.
            Ok(Err(error)) => {
                Outcome::new(Finding::Unknown, Phase::Send, format!("no answer: {}", error.kind()))
            }
            Err(_elapsed) => Outcome::new(Finding::Unknown, Phase::Send, "no answer in time"),
        }
    }

    async fn check(&self, timeout: Duration) -> Vec<Check> {
        let connected = timeout_at(Instant::now() + timeout, TcpStream::connect(&self.address)).await;
        vec![match connected {
            Ok(Ok(_stream)) => Check::ok("connection", format!("{} is listening", self.address)),
            Ok(Err(_)) | Err(_) => Check::fail(
                "connection",
                format!("{} does not answer", self.address),
                "switch the printer on",
            ),
        }]
    }
}

/// Nothing left this process.
fn unsent(why: String) -> Outcome {
    Outcome::new(Finding::NotApplied, Phase::Connect, why)
}

/// One label, one answer.
async fn print(stream: TcpStream, key: &str, label: &str) -> std::io::Result<String> {
    let mut stream = BufReader::new(stream);
    stream.write_all(format!("PRINT {key} {}\n{label}", label.len()).as_bytes()).await?;
    let mut answer = String::new();
    // No more than a line is read, however much the printer has to say.
    (&mut stream).take(200).read_line(&mut answer).await?;
    if answer.ends_with('\n') { Ok(answer) } else { Err(std::io::ErrorKind::UnexpectedEof.into()) }
}

/// What an answer shows. What is not understood is unknown, never a guess.
fn classify(answer: &str) -> Outcome {
    let finding = match answer.split_whitespace().next() {
        Some("DONE") => Finding::Applied,
        Some("JAM") => Finding::NotApplied,
        Some("NO") => Finding::Rejected(About::ThisAttempt),
        Some(_) | None => Finding::Unknown,
    };
    let mut outcome = Outcome::new(finding, Phase::Done, format!("the printer said {:?}", answer.trim_end()));
    outcome.response = Some(Response { status: None, body: answer.into(), truncated: false });
    outcome
}

/// How the printer is served: what it promises about keys (nothing; a person decides about a lost answer), how often, how long.
fn served(address: String) -> Served {
    Served {
        name: "labels".into(),
        kind: "label-printer",
        origin: Some(address.as_str().into()),
        // What the request is rendered from, besides the effect: an uncertain effect is not sent once this changed.
        terms: Terms {
            contract: Contract::none(OnUnknown::Hold),
            policy: Policy::default(),
            timeout: Duration::from_secs(10),
            request_sha256: [1; 32],
        },
        downstream: Arc::new(LabelPrinter { address }),
        key_prefix: String::new(),
        concurrency: 4,
        operations: BTreeMap::new(),
        lease: Duration::from_secs(30),
        rate: None,
    }
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let database = std::env::args().nth(1).ok_or("usage: custom_downstream sqlite:FILE")?;
    let listener = TcpListener::bind("127.0.0.1:0").await?;
    let address = listener.local_addr()?.to_string();
    let mut printing = JoinSet::new();
    printing.spawn(printer(listener));

    migrate(&database, Some("example")).await?;
    let mut connection = SqliteConnection::connect(&database).await?;
    sqlx::query("CREATE TABLE IF NOT EXISTS parcels (id integer PRIMARY KEY)")
        .execute(&mut connection)
        .await?;
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    let parcel =
        sqlx::query("INSERT INTO parcels DEFAULT VALUES").execute(&mut *tx).await?.last_insert_rowid();
    let key = IdempotencyKey::parse(format!("parcel-{parcel}/label"))?;
    let label = NewEffect::to("labels").key(key).json(&serde_json::json!({ "parcel": parcel }))?;
    Outbox.enqueue(&mut *tx, label).await?;
    tx.commit().await?;

    let config = Config {
        worker: format!("labels-{}", std::process::id()).into(),
        version: env!("CARGO_PKG_VERSION"),
        poll: Duration::from_secs(1),
        concurrency: 4,
        shutdown_grace: Duration::from_secs(25),
        sweep_interval: Duration::from_secs(1),
        retention: None,
    };
    let store = connect(&database, &Options::default()).await?;
    let engine = Engine::new(store, vec![served(address)], config, Arc::new(SystemClock))?;
    let report = engine.run_until_idle(Stop::default()).await?;
    writeln!(std::io::stdout(), "{report:?}")?;
    Ok(())
}

/// A printer: it shows what it prints.
async fn printer(listener: TcpListener) {
    let mut connections = JoinSet::new();
    while let Ok((stream, _)) = listener.accept().await {
        connections.spawn(async move {
            let mut stream = BufReader::new(stream);
            let mut line = String::new();
            let _read = stream.read_line(&mut line).await;
            let length = line.split_whitespace().nth(2).and_then(|length| length.parse().ok()).unwrap_or(0);
            let mut label = vec![0; length];
            if stream.read_exact(&mut label).await.is_ok() {
                let label = String::from_utf8_lossy(&label);
                let _shown = writeln!(std::io::stdout(), "{}: {label}", line.trim_end());
                let _written = stream.write_all(b"DONE\n").await;
            }
        });
    }
}
