//! `bench redis`: effects into a stream, each with its marker, beside bare `XADD`s.

use ::redis::{AsyncConnectionConfig, aio::MultiplexedConnection};
use anyhow::Context as _;
use clap::Args;
use tokio::task::JoinSet;

use super::{
    Context, Exit,
    brokers::{self, Broker, BrokerArgs, share},
    payload,
};

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one. It makes a stream of its own, and
deletes it afterwards; markers live for two minutes.

Example:
  aftercommit bench redis --url redis://localhost --database sqlite:b.db")]
pub(crate) struct RedisArgs {
    /// The Redis server
    #[arg(long, value_name = "URL", default_value = "redis://localhost:6379")]
    url: String,
    #[command(flatten)]
    broker: BrokerArgs,
}

pub(super) async fn run(context: &Context, args: &RedisArgs) -> anyhow::Result<Exit> {
    // Another bench may measure the same server.
    let stream = format!("aftercommit-bench-{}", std::process::id());
    let bench = Bench { url: args.url.clone(), stream };
    let exit = brokers::run(context, &args.broker, &bench).await;
    // Whatever was found, nothing is left behind.
    bench.emptied().await.ok();
    exit
}

struct Bench {
    url: String,
    stream: String,
}

impl Bench {
    /// The error never repeats the URL.
    async fn connect(&self) -> anyhow::Result<MultiplexedConnection> {
        let unusable = |_error| anyhow::anyhow!("no connection to the Redis of --url");
        let client = ::redis::Client::open(self.url.as_str()).map_err(unusable)?;
        let config = AsyncConnectionConfig::new().set_response_timeout(None);
        client.get_multiplexed_async_connection_with_config(&config).await.map_err(unusable)
    }
}

impl Broker for Bench {
    const KIND: &'static str = "redis";

    fn settings(&self) -> Vec<(&'static str, String)> {
        vec![("stream", self.stream.clone())]
    }

    fn url(&self) -> &str {
        &self.url
    }

    async fn bare_loop(&self, args: &BrokerArgs) -> anyhow::Result<()> {
        let connection = self.connect().await?;
        let lanes = u64::from(args.concurrency);
        let text = payload(0, args.common.payload_bytes);
        let mut tasks = JoinSet::new();
        for lane in 0..lanes {
            let (mut connection, text) = (connection.clone(), text.clone());
            let stream = self.stream.clone();
            let entries = share(args.effects, lane, lanes);
            tasks.spawn(async move {
                for n in 0..entries {
                    let mut command = ::redis::cmd("XADD");
                    command.arg(&stream).arg("*").arg("key").arg(format!("loop-{lane}-{n}"));
                    command.arg("content_type").arg("application/json").arg("body").arg(text.as_str());
                    command.query_async::<::redis::Value>(&mut connection).await?;
                }
                Ok::<(), ::redis::RedisError>(())
            });
        }
        while let Some(task) = tasks.join_next().await {
            task.context("a loop ended in a panic")?.context("the bare loop of the client")?;
        }
        Ok(())
    }

    async fn emptied(&self) -> anyhow::Result<u64> {
        let mut connection = self.connect().await?;
        let entries: u64 = ::redis::cmd("XLEN")
            .arg(&self.stream)
            .query_async(&mut connection)
            .await
            .context("counting entries")?;
        ::redis::cmd("DEL")
            .arg(&self.stream)
            .query_async::<::redis::Value>(&mut connection)
            .await
            .context("deleting the bench's stream")?;
        Ok(entries)
    }
}
