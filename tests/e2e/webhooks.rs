//! A receiver of webhooks, as the example application has it: it reads nothing that its sender did not sign, and acts once on each
//! delivery.

use base64::{Engine as _, engine::general_purpose::STANDARD};
use sha2::{Digest as _, Sha256};
use tokio::{io::AsyncWriteExt as _, net::TcpStream, process::Command};

use super::{
    clock::now_us,
    environment,
    inbox::number,
    processes::Process,
    reservation::address,
    shop::Shop,
    wire::{Message, Reader},
};

const SECRET: &[u8] = b"the receiver and the sender know";

/// A delivery of a webhook. What differs from an honest one is changed in the fields.
#[derive(Clone)]
struct Delivery {
    id: String,
    /// Seconds since 1970.
    sent_at: i64,
    body: String,
    signature: String,
}

impl Delivery {
    fn signed(id: &str, sent_at: i64, body: &str, secret: &[u8]) -> Self {
        let mac = hmac(secret, format!("{id}.{sent_at}.{body}").as_bytes());
        let signature = format!("v1,{}", STANDARD.encode(mac));
        Self { id: id.to_owned(), sent_at, body: body.to_owned(), signature }
    }

    fn honest(id: &str, amount: u32) -> Self {
        Self::signed(id, now_us() / 1_000_000, &payment(id, amount), SECRET)
    }

    async fn to(&self, address: &str) -> u16 {
        let request = format!(
            "POST / HTTP/1.1\r\nHost: {address}\r\nwebhook-id: {}\r\nwebhook-timestamp: {}\r\nwebhook-signature: {}\r\n\
             Content-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{}",
            self.id,
            self.sent_at,
            self.signature,
            self.body.len(),
            self.body
        );
        let mut stream = TcpStream::connect(address).await.expect("the receiver listens");
        stream.write_all(request.as_bytes()).await.expect("it reads");
        let answer: Option<Message> = Reader::new(stream).message().await.expect("an answer");
        answer.expect("an answer").status()
    }
}

fn payment(id: &str, amount: u32) -> String {
    format!(r#"{{"type":"payment.received","data":{{"id":"{id}","amount":{amount}}}}}"#)
}

/// RFC 2104, by hand: the receiver's package must not check itself.
fn hmac(key: &[u8], message: &[u8]) -> [u8; 32] {
    let mut pads = [[0x36_u8; 64], [0x5c_u8; 64]];
    for pad in &mut pads {
        pad.iter_mut().zip(key).for_each(|(byte, key)| *byte ^= key);
    }
    let inner = Sha256::new().chain_update(pads[0]).chain_update(message).finalize();
    Sha256::new().chain_update(pads[1]).chain_update(inner).finalize().into()
}

async fn receives_what_is_signed_once(shop: Shop) {
    let config = shop.configure("worker", "");
    shop.migrate(&config).await;
    let mut command = Command::new(environment::python());
    command.arg(environment::example("webhook_receiver.py")).arg("0");
    command.env("DATABASE_URL", shop.database.url());
    command.env("WEBHOOK_SECRET", format!("whsec_{}", STANDARD.encode(SECRET)));
    let mut receiver = Process::spawn("receiver", &mut command, &shop.path("receiver.log"));
    let address = address(&mut receiver).await;

    let honest = Delivery::honest("evt-1", 1_500);
    let (now, body) = (honest.sent_at, honest.body.clone());
    let replayed = Delivery::signed("evt-1", now + 1, &body, SECRET);
    for (delivery, what) in
        [(&honest, "the first"), (&honest, "the same bytes again"), (&replayed, "a retry")]
    {
        assert_eq!(delivery.to(&address).await, 200, "{what}: {}", receiver.output());
    }
    let refused = [
        ("forged", Delivery::signed("evt-2", now, &payment("evt-2", 1), b"somebody else's")),
        ("stale", Delivery::signed("evt-2", now - 3_600, &payment("evt-2", 1), SECRET)),
        ("from the future", Delivery::signed("evt-2", now + 3_600, &payment("evt-2", 1), SECRET)),
        ("tampered with", Delivery { body: payment("evt-2", 9_999), ..Delivery::honest("evt-2", 1) }),
        ("under another id", Delivery { id: "evt-2".to_owned(), ..honest.clone() }),
        ("under another time", Delivery { sent_at: now + 2, ..honest.clone() }),
        ("unsigned", Delivery { signature: String::new(), ..Delivery::honest("evt-2", 1) }),
        ("no JSON, and not signed", Delivery { body: "{".to_owned(), ..Delivery::honest("evt-2", 1) }),
    ];
    for (what, delivery) in &refused {
        assert_eq!(delivery.to(&address).await, 401, "{what}: {}", receiver.output());
    }
    let received = "SELECT count(*) FROM received_payments";
    assert_eq!(number(&shop, received).await, 1);
    // What was refused has left nothing behind that could stand in the way of the honest one.
    assert_eq!(Delivery::honest("evt-2", 1).to(&address).await, 200, "{}", receiver.output());
    assert_eq!(number(&shop, received).await, 2);
    assert_eq!(number(&shop, "SELECT sum(amount) FROM received_payments").await, 1_501);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_read_when_it_is_signed_and_acted_on_once_on_postgresql() {
    receives_what_is_signed_once(Shop::on_postgres("webhooks").await).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_webhook_is_read_when_it_is_signed_and_acted_on_once_on_sqlite() {
    receives_what_is_signed_once(Shop::on_sqlite().await).await;
}
