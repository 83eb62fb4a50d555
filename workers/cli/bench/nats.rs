//! `bench nats`: effects into a JetStream stream.

use std::time::Duration;

use anyhow::Context as _;
use async_nats::{ConnectOptions, HeaderMap, jetstream};
use clap::Args;
use tokio::task::JoinSet;

use super::{
    Context, Exit,
    brokers::{self, Broker, BrokerArgs, share},
    payload,
};

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one. It makes a stream of its own (in
files), and deletes it afterwards.

Example:
  aftercommit bench nats --url nats://localhost --database sqlite:b.db")]
pub(crate) struct NatsArgs {
    /// The NATS server, with JetStream
    #[arg(long, value_name = "URL", default_value = "nats://localhost:4222")]
    url: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

pub(super) async fn run(context: &Context, args: &NatsArgs) -> anyhow::Result<Exit> {
    let jetstream = jetstream::new(connect(&args.url).await?);
    // Another bench may measure the same server.
    let me = std::process::id();
    let (stream, subject) = (format!("AFTERCOMMIT_BENCH_{me}"), format!("aftercommit.bench.{me}"));
    let bench = Bench { url: args.url.clone(), jetstream, stream, subject };
    let exit = brokers::run(context, &args.broker, &bench).await;
    // Whatever was found, nothing is left behind; a stream that is not there needs no deletion.
    bench.jetstream.delete_stream(&bench.stream).await.ok();
    exit
}

/// The client takes no credentials from an address. The error never repeats the URL.
async fn connect(url: &str) -> anyhow::Result<async_nats::Client> {
    let unusable = || anyhow::anyhow!("--url is no URL such as nats://localhost:4222");
    let mut url = url::Url::parse(url).map_err(|_error| unusable())?;
    let options = match (url.username().to_owned(), url.password().map(str::to_owned)) {
        (user, Some(password)) => ConnectOptions::with_user_and_password(user, password),
        (user, None) if user.is_empty() => ConnectOptions::new(),
        (token, None) => ConnectOptions::with_token(token),
    };
    url.set_username("").and_then(|()| url.set_password(None)).map_err(|()| unusable())?;
    let connected = options.connect(url.as_str()).await;
    connected.map_err(|error| anyhow::anyhow!("no connection to the NATS server of --url: {}", error.kind()))
}

struct Bench {
    url: String,
    jetstream: jetstream::Context,
    stream: String,
    subject: String,
}

impl Broker for Bench {
    const KIND: &'static str = "nats";

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("stream", self.stream.clone()), ("subject", self.subject.clone())]
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn bare_loop(&self, args: &BrokerArgs) -> anyhow::Result<()> {
        let client = connect(&self.url).await?;
        let lanes = u64::from(args.concurrency);
        let text = bytes::Bytes::from(payload(0, args.common.payload_bytes));
        let mut tasks = JoinSet::new();
        for lane in 0..lanes {
            let (client, text) = (client.clone(), text.clone());
            let (stream, subject) = (self.stream.clone(), self.subject.clone());
            let messages = share(args.effects, lane, lanes);
            tasks.spawn(async move {
                for n in 0..messages {
                    let mut headers = HeaderMap::new();
                    headers.insert("Nats-Msg-Id", format!("loop-{lane}-{n}"));
                    headers.insert("Nats-Expected-Stream", stream.as_str());
                    headers.insert("Content-Type", "application/json");
                    let request = async_nats::Request::new().headers(headers).payload(text.clone());
                    client.send_request(subject.clone(), request).await?;
                }
                Ok::<(), async_nats::RequestError>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.context("a loop ended in a panic")?.context("the bare loop of the client")?;
        }
        Ok(())
    }

    async fn emptied(&self) -> anyhow::Result<u64> {
        let messages = match self.jetstream.get_stream(&self.stream).await {
            Ok(mut stream) => stream.info().await.context("reading the stream")?.state.messages,
            Err(_missing) => 0,
        };
        self.jetstream.delete_stream(&self.stream).await.ok();
        let config = jetstream::stream::Config {
            name: self.stream.clone(),
            subjects: vec![self.subject.clone()],
            duplicate_window: Duration::from_secs(120),
            ..jetstream::stream::Config::default()
        };
        self.jetstream.create_stream(config).await.context("making the bench's stream")?;
        Ok(messages)
    }
}
