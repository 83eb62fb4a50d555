//! Guarantee: every kind keeps what the engine relies on, and the suite that says so finds a kind that does not.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
};

use aftercommit::{
    EffectId,
    clock::{Clock as _, SystemClock},
    conformance::{Behaviour, Rig, Taken, check},
    downstream::{Attempt, Downstream},
    effect::Effect,
    outcome::{Finding, Outcome, Phase},
};
use aftercommit_workers::config::{Settings, Sources};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncReadExt as _, AsyncWriteExt as _, BufReader},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

#[path = "../../examples/custom_downstream.rs"]
#[expect(dead_code, reason = "the example's own program")]
mod custom_downstream;

/// Speaks one request and one answer.
type Read = for<'s> fn(&'s mut BufReader<TcpStream>) -> futures_util::future::BoxFuture<'s, Option<Taken>>;

/// A server of a protocol in which an answer follows a request.
struct Server {
    downstream: Arc<dyn Downstream>,
    address: SocketAddr,
    read: Read,
    answer: &'static str,
    taken: Arc<Mutex<Vec<Taken>>>,
    running: Mutex<JoinSet<()>>,
    secrets: Vec<String>,
}

impl Server {
    /// One that nobody can reach yet.
    async fn new(
        read: Read,
        answer: &'static str,
        downstream: impl FnOnce(SocketAddr) -> Arc<dyn Downstream>,
    ) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        Self {
            downstream: downstream(address),
            address,
            read,
            answer,
            taken: Arc::default(),
            running: Mutex::default(),
            secrets: Vec::new(),
        }
    }
}

#[async_trait::async_trait]
impl Rig for Server {
    fn downstream(&self) -> Arc<dyn Downstream> {
        Arc::clone(&self.downstream)
    }

    fn effect(&self, number: i64) -> Effect {
        effect(number)
    }

    async fn behave(&self, behaviour: Behaviour) {
        // Whoever is connected is cut off: what follows meets the new behaviour.
        let mut before = std::mem::take(&mut *self.running.lock().unwrap());
        before.shutdown().await;
        if behaviour == Behaviour::Gone {
            return;
        }
        let listener = TcpListener::bind(self.address).await.unwrap();
        let (read, answer, taken) = (self.read, self.answer, Arc::clone(&self.taken));
        self.running.lock().unwrap().spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                connections.spawn(connection(stream, (read, answer), behaviour, Arc::clone(&taken)));
            }
        });
    }

    async fn taken(&self) -> Vec<Taken> {
        self.taken.lock().unwrap().clone()
    }

    fn secrets(&self) -> Vec<String> {
        self.secrets.clone()
    }
}

async fn connection(
    stream: TcpStream,
    (read, answer): (Read, &str),
    behaviour: Behaviour,
    taken: Arc<Mutex<Vec<Taken>>>,
) {
    let mut stream = BufReader::new(stream);
    while let Some(one) = read(&mut stream).await {
        taken.lock().unwrap().push(one);
        match behaviour {
            Behaviour::Applies => stream.write_all(answer.as_bytes()).await.unwrap_or_default(),
            Behaviour::AppliesSilently => std::future::pending().await,
            Behaviour::AppliesAndCuts | Behaviour::Gone => return,
        }
    }
}

fn effect(number: i64) -> Effect {
    Effect {
        payload: Some(format!("{{\"order\": {number}}}")),
        ..Effect::new(EffectId::new(number), "target", format!("order-{number}/charge"), SystemClock.wall())
    }
}

/// An HTTP/1.1 request with a length.
fn http_request(stream: &mut BufReader<TcpStream>) -> futures_util::future::BoxFuture<'_, Option<Taken>> {
    Box::pin(async move {
        let (mut head, mut key, mut length) = (String::new(), String::new(), 0);
        loop {
            let mut line = String::new();
            if stream.read_line(&mut line).await.ok()? == 0 {
                return None;
            }
            if line == "\r\n" {
                break;
            }
            if let Some((name, value)) = line.split_once(':') {
                match name.to_ascii_lowercase().as_str() {
                    "idempotency-key" => key = value.trim().trim_matches('"').to_owned(),
                    "content-length" => length = value.trim().parse().ok()?,
                    _ => {}
                }
            }
            head.push_str(&line);
        }
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await.ok()?;
        Some(Taken { key, bytes: [head.into_bytes(), bytes].concat() })
    })
}

/// A request to the printer of the example.
fn print_request(stream: &mut BufReader<TcpStream>) -> futures_util::future::BoxFuture<'_, Option<Taken>> {
    Box::pin(async move {
        let mut line = String::new();
        stream.read_line(&mut line).await.ok()?;
        let mut words = line.split_whitespace().skip(1);
        let (key, length) = (words.next()?.to_owned(), words.next()?.parse().ok()?);
        let mut bytes = vec![0; length];
        stream.read_exact(&mut bytes).await.ok()?;
        Some(Taken { key, bytes })
    })
}

/// The downstream `target` of a configuration.
fn configured(text: &str) -> Arc<dyn Downstream> {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("aftercommit.toml");
    std::fs::write(
        &file,
        format!("database = \"sqlite:x.db\"\nenvironment = \"test\"\n[downstream.target]\n{text}"),
    )
    .unwrap();
    let env = [("TARGET_TOKEN".to_owned(), "s3cret-T0ken-0815".to_owned())].into();
    let settings = Settings::load(&Sources { file: Some(file), env, ..Sources::default() }).unwrap();
    settings.serve(None).unwrap().remove(0).downstream
}

#[tokio::test(flavor = "multi_thread")]
async fn http_keeps_what_the_engine_relies_on() {
    let ok = "HTTP/1.1 201 Created\r\ncontent-length: 2\r\ncontent-type: application/json\r\n\r\n{}";
    let mut rig = Server::new(http_request, ok, |address| {
        configured(&format!(
            "kind = \"http\"\nprofile = \"ietf\"\nbase_url = \"http://{address}\"\nauth = {{ bearer = {{ env = \"TARGET_TOKEN\" }} }}"
        ))
    })
    .await;
    rig.secrets.push("s3cret-T0ken-0815".to_owned());
    check(&rig).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn the_downstream_of_the_example_keeps_what_the_engine_relies_on() {
    let rig = Server::new(print_request, "DONE\n", |address| {
        Arc::new(custom_downstream::LabelPrinter { address: address.to_string() })
    })
    .await;
    check(&rig).await.unwrap();
}

/// What people write who know no better: it asks no gate, takes a lost answer for a refusal, and tries again by itself.
struct Careless(custom_downstream::LabelPrinter);

#[async_trait::async_trait]
impl Downstream for Careless {
    async fn deliver(&self, attempt: &Attempt) -> Outcome {
        let open = Attempt { gate: Arc::new(AlwaysOpen), ..attempt.clone() };
        let mut outcome = self.0.deliver(&open).await;
        if outcome.finding == Finding::Unknown {
            outcome = self.0.deliver(&open).await;
        }
        if outcome.finding == Finding::Unknown {
            outcome = Outcome::new(Finding::NotApplied, Phase::Connect, outcome.reason);
        }
        outcome
    }
}

struct AlwaysOpen;

impl aftercommit::downstream::Gate for AlwaysOpen {
    fn may_begin(&self) -> Result<(), aftercommit::downstream::Closed> {
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_careless_downstream_is_found_out() {
    let rig = Server::new(print_request, "DONE\n", |address| {
        Arc::new(Careless(custom_downstream::LabelPrinter { address: address.to_string() }))
    })
    .await;
    let found = check(&rig).await.unwrap_err().to_string();
    for fault in [
        "something was sent although the gate was closed",
        "the gate was not asked",
        "one attempt was applied 2 times (AppliesSilently)",
        "one attempt was applied 2 times (AppliesAndCuts)",
        "an answer that was lost (AppliesAndCuts) is not_applied",
    ] {
        assert!(found.contains(fault), "not found: {fault}; found:\n{found}");
    }
}
