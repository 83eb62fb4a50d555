//! Other people's libraries read what was sent, byte by byte as it stood on the socket.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    EffectId,
    clock::Timestamp,
    downstream::{Attempt, Closed, Gate, Served},
    effect::Effect,
    outcome::Finding,
};
use serde_json::{Value, json};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdin, ChildStdout, Command},
};

use super::{NEXT, Receiver, SECRET, header, hooks, served};
use crate::{
    e2e::environment,
    support::{Chance, within},
};

const SOON: Duration = Duration::from_secs(60);
/// The public half of [`super::SEED`].
const PUBLIC: &str = "whpk_A6EHv/POEL4dcN0Y50vAmWfk1jCbpQ1fHdyGZBJVMbg=";

/// The libraries, in one process.
struct Oracle {
    child: Child,
    to: ChildStdin,
    from: Lines<BufReader<ChildStdout>>,
}

impl Oracle {
    fn start() -> Self {
        let script = environment::file("tests/downstreams/webhook/oracle.py");
        let mut command = Command::new(environment::python());
        command.arg(script).kill_on_drop(true);
        command.stdin(std::process::Stdio::piped()).stdout(std::process::Stdio::piped());
        let mut child = command.spawn().expect("Python starts");
        let to = child.stdin.take().expect("a pipe");
        let from = BufReader::new(child.stdout.take().expect("a pipe")).lines();
        Self { child, to, from }
    }

    async fn ask(&mut self, head: &str, body: &[u8], more: Value) -> Value {
        let headers: serde_json::Map<String, Value> = head
            .lines()
            .skip(1)
            .filter_map(|line| line.split_once(": "))
            .map(|(name, value)| (name.to_ascii_lowercase(), value.into()))
            .collect();
        let mut asked = json!({ "headers": headers, "body": base64(body) });
        asked.as_object_mut().expect("an object").extend(more.as_object().expect("an object").clone());
        self.to.write_all(format!("{asked}\n").as_bytes()).await.expect("it reads");
        let line = within(SOON, "the oracle's answer", self.from.next_line()).await.expect("it writes");
        serde_json::from_str(&line.expect("it lives: see its own words above")).expect("JSON")
    }

    async fn end(mut self) {
        drop(self.to);
        assert!(within(SOON, "the oracle's end", self.child.wait()).await.expect("it ends").success());
    }
}

fn base64(bytes: &[u8]) -> String {
    use base64::Engine as _;
    base64::engine::general_purpose::STANDARD.encode(bytes)
}

struct Open;

impl Gate for Open {
    fn may_begin(&self) -> Result<(), Closed> {
        Ok(())
    }
}

fn effect(number: usize) -> Effect {
    Effect {
        operation: Some("order.paid".to_owned()),
        target: Some("acme".to_owned()),
        ..Effect::new(
            EffectId::new(1),
            "hooks",
            format!("order-{number}/paid"),
            Timestamp::from_micros(1_522_893_384_000_007),
        )
    }
}

async fn deliver(served: &Served, effect: Effect) {
    let key = effect.key.clone();
    let attempt = Attempt { effect: Arc::new(effect), key, number: 1, timeout: SOON, gate: Arc::new(Open) };
    let outcome = served.downstream.deliver(&attempt).await;
    assert_eq!(outcome.finding, Finding::Applied, "{}", outcome.reason);
}

fn acme(receiver: &Receiver, secrets: &str) -> Served {
    let served = hooks(&format!(
        "egress = {{ allow = [\"127.0.0.1\"], http = true, ports = [{}] }}\n\
         [downstream.hooks.operations.\"order.paid\"]\n\
         [downstream.hooks.endpoints.acme]\nurl = \"{}/in\"\n{secrets}",
        receiver.port, receiver.url
    ));
    served.downstream.directory().expect("it has endpoints").put_once(vec![]);
    served
}

/// Text of any characters and length; now and then JSON; now and then no text at all.
fn random_body(chance: &mut Chance, number: usize) -> Vec<u8> {
    if is_raw(number) {
        let raw = (0..400).map(|_| u8::try_from(chance.below(256)).expect("a byte"));
        return std::iter::once(0xff).chain(raw).collect();
    }
    if chance.percent(30) {
        return format!("{{\"n\":{number},\"text\":\"é\u{2028}{}\"}}", chance.next()).into_bytes();
    }
    let length = chance.below(200);
    let character = |chance: &mut Chance| {
        let code = u32::try_from(chance.below(0x2_0000)).expect("it is small");
        char::from_u32(if chance.percent(50) { code % 128 } else { code }).unwrap_or('\u{fffd}')
    };
    (0..length).map(|_| character(chance)).collect::<String>().into_bytes()
}

/// The libraries read text alone; what is none, the signature's own algorithm verifies.
fn is_raw(number: usize) -> bool {
    number % 21 == 20
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_thousand_random_bodies_verify_in_two_libraries_and_no_changed_one_does() {
    const BODIES: usize = 10_500;
    let receiver = Receiver::start(204).await;
    let secrets = "secret = { env = \"HOOK_ACME\" }\nsecret_next = { env = \"HOOK_SEED\" }\n";
    let served = acme(&receiver, secrets);
    let mut chance = Chance::seeded();
    for number in 0..BODIES {
        let body = Some(random_body(&mut chance, number));
        deliver(&served, Effect { body, ..effect(number) }).await;
    }
    let requests = std::mem::take(&mut *receiver.requests.lock().expect("no panic"));
    assert_eq!(requests.len(), BODIES);
    let mut oracle = Oracle::start();
    let said = |text: Option<bool>, asymmetric: bool| json!({ "standardwebhooks": text, "svix": text, "ed25519": asymmetric, "event": null });
    let (mut verified, mut tampered) = (0, 0);
    for (number, (head, body)) in requests.iter().enumerate() {
        let text = (!is_raw(number)).then_some(true);
        verified += usize::from(text.is_some());
        let found = oracle.ask(head, body, json!({ "secret": SECRET, "public": PUBLIC })).await;
        assert_eq!(found, said(text, true), "{number}: {head}");
        if number % 100 == 0 && text.is_some() {
            let other = [b"x", body.as_slice()].concat();
            let id = head.replace(&format!("webhook-id: order-{number}/paid"), "webhook-id: order-0/other");
            for (head, body) in [(head, &other), (&id, body)] {
                let found = oracle.ask(head, body, json!({ "secret": SECRET, "public": PUBLIC })).await;
                assert_eq!(found, said(Some(false), false), "{number}: {head}");
                tampered += 1;
            }
        }
    }
    assert!(verified == 10_000 && tampered >= 190, "{verified} {tampered}");
    oracle.end().await;
}

#[tokio::test]
async fn during_a_rotation_both_secrets_verify_and_afterwards_only_the_new_one() {
    let receiver = Receiver::start(204).await;
    for (number, (secrets, old, new)) in [
        ("secret = { env = \"HOOK_ACME\" }\n", true, false),
        ("secret = { env = \"HOOK_ACME\" }\nsecret_next = { env = \"HOOK_NEXT\" }\n", true, true),
        ("secret = { env = \"HOOK_NEXT\" }\n", false, true),
    ]
    .into_iter()
    .enumerate()
    {
        deliver(&acme(&receiver, secrets), Effect { payload: Some("{}".to_owned()), ..effect(number) }).await;
        let (head, body) = receiver.requests.lock().expect("no panic")[number].clone();
        let mut oracle = Oracle::start();
        for (secret, verifies) in [(SECRET, old), (NEXT, new)] {
            let said = oracle.ask(&head, &body, json!({ "secret": secret })).await;
            assert_eq!(
                (&said["standardwebhooks"], &said["svix"]),
                (&json!(verifies), &json!(verifies)),
                "{number}"
            );
        }
        oracle.end().await;
    }
}

/// The same payload as a CloudEvent, by the foundation's own library, over both kinds that speak HTTP.
#[tokio::test]
async fn events_of_both_modes_are_read_by_the_cloudevents_library() {
    const PAYLOAD: &str = "{ \"b\":1.0, \"a\":\"é\u{2028}/\", \"n\":12345678901234567890 }";
    const TRACE: &str = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01";
    let receiver = Receiver::start(204).await;
    let mut oracle = Oracle::start();
    for mode in ["binary", "structured"] {
        let events = format!(
            "mode = \"{mode}\"\nsource = \"/shop\"\ntype = \"com.example.{{operation}}\"\nsubject = \"{{metadata:/order}}\"\n"
        );
        let http = served(&format!(
            "[downstream.hooks]\nkind = \"http\"\nbase_url = \"{}/in\"\n[downstream.hooks.operations.\"order.paid\"]\n\
             [downstream.hooks.cloudevents]\n{events}",
            receiver.url
        ));
        let secrets = format!("secret = {{ env = \"HOOK_ACME\" }}\n[downstream.hooks.cloudevents]\n{events}");
        for (kind, served) in [("http", http), ("webhook", acme(&receiver, &secrets))] {
            let of = |payload: Option<&str>, body: Option<&[u8]>| Effect {
                payload: payload.map(str::to_owned),
                body: body.map(<[u8]>::to_vec),
                metadata: Some(r#"{"order":"A 17 \"€\" 100%"}"#.to_owned()),
                trace_context: Some(TRACE.to_owned()),
                target: (kind == "webhook").then(|| "acme".to_owned()),
                ..effect(7)
            };
            deliver(&served, of(Some(PAYLOAD), None)).await;
            deliver(&served, of(None, Some(b"\xff\x00"))).await;
            let requests = std::mem::take(&mut *receiver.requests.lock().expect("no panic"));
            for (at, (head, body)) in requests.iter().enumerate() {
                let said = oracle.ask(head, body, json!({ "event": true })).await["event"].take();
                let attributes = &said["attributes"];
                for (name, wanted) in [
                    ("id", "order-7/paid"),
                    ("source", "/shop"),
                    ("type", "com.example.order.paid"),
                    ("subject", "A 17 \"€\" 100%"),
                    ("specversion", "1.0"),
                    ("time", "2018-04-05 01:56:24.000007+00:00"),
                    ("traceparent", TRACE),
                    ("datacontenttype", ["application/json", "application/octet-stream"][at]),
                ] {
                    assert_eq!(attributes[name], wanted, "{kind} {mode} {name}: {said}");
                }
                let data: [Value; 2] = [
                    json!({ "b": 1.0, "a": "é\u{2028}/", "n": 12_345_678_901_234_567_890_u64 }),
                    json!({ "base64": "/wA=" }),
                ];
                assert_eq!(said["data"], data[at], "{kind} {mode}");
                let text = String::from_utf8_lossy(body);
                assert!(at == 1 || text.contains(PAYLOAD), "no byte of the payload moved: {text}");
                assert_eq!(header(head, "traceparent"), Some(TRACE));
            }
        }
    }
    oracle.end().await;
}
