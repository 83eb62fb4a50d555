//! A server that speaks as much AMQP 0-9-1 as a publisher hears, and does what a test tells it.

use std::{
    collections::HashMap,
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use tokio::{
    io::{AsyncReadExt as _, AsyncWriteExt as _},
    net::{TcpListener, TcpStream},
    task::JoinSet,
};

/// A broker that lives as long as this value.
pub(super) struct Broker {
    pub(super) place: String,
    /// Connections that were accepted.
    pub(super) accepted: Arc<AtomicUsize>,
    _tasks: JoinSet<()>,
}

/// A message that a publisher sent.
#[derive(Clone, Debug)]
pub(super) struct Published {
    pub(super) channel: u16,
    pub(super) tag: u64,
    pub(super) exchange: String,
    pub(super) routing_key: String,
    pub(super) mandatory: bool,
    pub(super) delivery_mode: u8,
    pub(super) message_id: String,
    pub(super) body: Vec<u8>,
}

/// One accepted connection.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    /// Which one it is, from 0.
    pub(super) number: usize,
    tags: HashMap<u16, u64>,
    /// Confirm the message that looks for an alarm: what every healthy broker does.
    pub(super) confirms_looks: bool,
    /// Block the connection on that message: what a broker with an alarm does.
    pub(super) alarm: Option<&'static str>,
}

impl Broker {
    pub(super) async fn start<F, Fut>(behaviour: F) -> Self
    where
        F: Fn(Connection) -> Fut + Send + Sync + 'static,
        Fut: Future<Output = ()> + Send + 'static,
    {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = listener.local_addr().unwrap().to_string();
        let accepted = Arc::new(AtomicUsize::new(0));
        let counter = accepted.clone();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            let mut connections = JoinSet::new();
            while let Ok((stream, _)) = listener.accept().await {
                let number = counter.fetch_add(1, Ordering::SeqCst);
                let (tags, confirms_looks, alarm) = (HashMap::new(), true, None);
                connections.spawn(behaviour(Connection { stream, number, tags, confirms_looks, alarm }));
            }
        });
        Self { place, accepted, _tasks: tasks }
    }

    pub(super) fn accepted(&self) -> usize {
        self.accepted.load(Ordering::SeqCst)
    }
}

fn short(text: &str) -> Vec<u8> {
    [&[u8::try_from(text.len()).unwrap()], text.as_bytes()].concat()
}

fn method(class: u16, method: u16, arguments: &[u8]) -> Vec<u8> {
    [&class.to_be_bytes()[..], &method.to_be_bytes(), arguments].concat()
}

fn read_short(bytes: &mut &[u8]) -> String {
    let (len, rest) = bytes.split_first().unwrap();
    let (text, rest) = rest.split_at(usize::from(*len));
    *bytes = rest;
    String::from_utf8(text.to_vec()).unwrap()
}

fn read_u16(bytes: &mut &[u8]) -> u16 {
    let (number, rest) = bytes.split_at(2);
    *bytes = rest;
    u16::from_be_bytes(number.try_into().unwrap())
}

impl Connection {
    async fn frame(&mut self, kind: u8, channel: u16, payload: &[u8]) {
        let mut frame = vec![kind];
        frame.extend(channel.to_be_bytes());
        frame.extend(u32::try_from(payload.len()).unwrap().to_be_bytes());
        frame.extend(payload);
        frame.push(0xCE);
        // The client may be gone: what it does then is what the test looks at.
        self.stream.write_all(&frame).await.ok();
    }

    async fn say(&mut self, channel: u16, method: &[u8]) {
        self.frame(1, channel, method).await;
    }

    async fn read(&mut self) -> Option<(u8, u16, Vec<u8>)> {
        let mut head = [0; 7];
        self.stream.read_exact(&mut head).await.ok()?;
        let len = u32::from_be_bytes(head[3..7].try_into().unwrap());
        let mut payload = vec![0; usize::try_from(len).unwrap() + 1];
        self.stream.read_exact(&mut payload).await.ok()?;
        payload.pop();
        Some((head[0], u16::from_be_bytes(head[1..3].try_into().unwrap()), payload))
    }

    /// Lets the client in.
    pub(super) async fn greet(&mut self) {
        let mut header = [0; 8];
        if self.stream.read_exact(&mut header).await.is_err() {
            return;
        }
        let mut start = vec![0, 9, 0, 0, 0, 0];
        for text in ["PLAIN", "en_US"] {
            start.extend(u32::try_from(text.len()).unwrap().to_be_bytes());
            start.extend(text.as_bytes());
        }
        self.say(0, &method(10, 10, &start)).await;
        self.read().await;
        let tune = [&2047_u16.to_be_bytes()[..], &131_072_u32.to_be_bytes(), &60_u16.to_be_bytes()].concat();
        self.say(0, &method(10, 30, &tune)).await;
        self.read().await; // tune-ok
        self.read().await; // open
        self.say(0, &method(10, 41, &short(""))).await;
    }

    /// The next message; whatever else the client asks for, it gets. `None`: it left.
    pub(super) async fn next(&mut self) -> Option<Published> {
        loop {
            let (kind, channel, payload) = self.read().await?;
            if kind != 1 {
                continue;
            }
            let mut rest = &payload[..];
            match (read_u16(&mut rest), read_u16(&mut rest)) {
                (20, 10) => self.say(channel, &method(20, 11, &[0, 0, 0, 0])).await,
                (20, 40) => self.say(channel, &method(20, 41, &[])).await,
                (40, 10) => self.say(channel, &method(40, 11, &[])).await,
                (85, 10) => {
                    self.tags.insert(channel, 0);
                    self.say(channel, &method(85, 11, &[])).await;
                }
                (10, 50) => {
                    self.say(0, &method(10, 51, &[])).await;
                    return None;
                }
                (60, 40) => {
                    let published = self.published(channel, rest).await?;
                    if published.message_id.is_empty() && published.exchange.is_empty() {
                        if let Some(why) = self.alarm {
                            self.block(why).await;
                        } else if self.confirms_looks {
                            self.ack(channel, published.tag, false).await;
                        }
                        continue;
                    }
                    return Some(published);
                }
                _ => {}
            }
        }
    }

    async fn published(&mut self, channel: u16, mut rest: &[u8]) -> Option<Published> {
        read_u16(&mut rest);
        let (exchange, routing_key) = (read_short(&mut rest), read_short(&mut rest));
        let mandatory = rest[0] & 1 == 1;
        let (_, _, header) = self.read().await?;
        let len = u64::from_be_bytes(header[4..12].try_into().unwrap());
        let mut properties = &header[12..];
        let flags = read_u16(&mut properties);
        let has = |bit: u16| flags & (1 << bit) != 0;
        for bit in [15, 14] {
            if has(bit) {
                read_short(&mut properties);
            }
        }
        if has(13) {
            let table = u32::from_be_bytes(properties[..4].try_into().unwrap());
            properties = &properties[4 + usize::try_from(table).unwrap()..];
        }
        let mut delivery_mode = 0;
        if has(12) {
            (delivery_mode, properties) = (properties[0], &properties[1..]);
        }
        let message_id = if has(7) { read_short(&mut properties) } else { String::new() };
        let mut body = Vec::new();
        while u64::try_from(body.len()).unwrap() < len {
            body.extend(self.read().await?.2);
        }
        let tag = self.tags.entry(channel).or_default();
        *tag += 1;
        let tag = *tag;
        Some(Published { channel, tag, exchange, routing_key, mandatory, delivery_mode, message_id, body })
    }

    /// The next `count` messages.
    pub(super) async fn take(&mut self, count: usize) -> Vec<Published> {
        let mut messages = Vec::new();
        while messages.len() < count {
            messages.extend(Some(self.next().await.expect("the client leaves before it sent them all")));
        }
        messages
    }

    /// Lets the client in, and takes and confirms its first message: from then on many may be under way.
    pub(super) async fn prove(&mut self) {
        self.greet().await;
        let first = self.next().await.expect("a first message");
        self.ack(first.channel, first.tag, false).await;
    }

    pub(super) async fn ack(&mut self, channel: u16, tag: u64, multiple: bool) {
        let arguments = [&tag.to_be_bytes()[..], &[u8::from(multiple)]].concat();
        self.say(channel, &method(60, 80, &arguments)).await;
    }

    pub(super) async fn nack(&mut self, channel: u16, tag: u64) {
        self.say(channel, &method(60, 120, &[&tag.to_be_bytes()[..], &[0]].concat())).await;
    }

    pub(super) async fn give_back(&mut self, message: &Published) {
        let arguments = [
            &312_u16.to_be_bytes()[..],
            &short("NO_ROUTE"),
            &short(&message.exchange),
            &short(&message.routing_key),
        ]
        .concat();
        self.say(message.channel, &method(60, 50, &arguments)).await;
        let size = u64::try_from(message.body.len()).unwrap();
        let flags = 1_u16 << 7;
        let header = [
            &60_u16.to_be_bytes()[..],
            &[0, 0],
            &size.to_be_bytes(),
            &flags.to_be_bytes(),
            &short(&message.message_id),
        ]
        .concat();
        self.frame(2, message.channel, &header).await;
        if !message.body.is_empty() {
            self.frame(3, message.channel, &message.body).await;
        }
    }

    pub(super) async fn close_channel(&mut self, channel: u16, code: u16, text: &str) {
        let arguments = [&code.to_be_bytes()[..], &short(text), &[0, 60, 0, 40]].concat();
        self.say(channel, &method(20, 40, &arguments)).await;
    }

    pub(super) async fn block(&mut self, why: &str) {
        self.say(0, &method(10, 60, &short(why))).await;
    }

    pub(super) async fn unblock(&mut self) {
        self.say(0, &method(10, 61, &[])).await;
    }

    /// Takes whatever comes, confirms nothing, until the client leaves.
    pub(super) async fn swallow(&mut self) {
        while self.next().await.is_some() {}
    }

    /// Confirms whatever comes, until the client leaves.
    pub(super) async fn confirm_all(&mut self) {
        while let Some(message) = self.next().await {
            self.ack(message.channel, message.tag, false).await;
        }
    }
}
