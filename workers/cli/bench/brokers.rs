//! What the benches of brokers share: a drain into the broker, beside a bare loop of its client with as many messages
//! outstanding and a drain into a downstream that costs nothing, all in one run.

use std::time::Duration;

use aftercommit::{
    clock::{Clock as _, SystemClock},
    engine::Stop,
    state::State,
};
use aftercommit_workers::config::{Settings, Sources};
use anyhow::Context as _;
use clap::Args;
use serde_json::json;

use super::{Common, Context, Exit, Found, NAME, Place, fail, plural, rate, rounded, sink, talk};

#[derive(Clone, Debug, Args)]
pub(super) struct BrokerArgs {
    /// How many effects
    #[arg(long, value_name = "N", default_value_t = 20_000, value_parser = clap::value_parser!(u64).range(1..))]
    pub(super) effects: u64,
    /// Messages in flight at one time
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub(super) concurrency: u32,
    #[command(flatten)]
    pub(super) common: Common,
}

/// A broker, as a bench needs it.
pub(super) trait Broker {
    /// The kind.
    const KIND: &'static str;
    /// Its table in the configuration, without `kind`, `url` and `concurrency`: keys and values.
    fn settings(&self) -> Vec<(&'static str, String)>;
    /// Where it is, perhaps with a password.
    fn url(&self) -> &str;
    /// Sends `args.effects` messages with nothing but its client, as many at a time as the drain has slots.
    async fn bare_loop(&self, args: &BrokerArgs) -> anyhow::Result<()>;
    /// How many messages it has; then it has none.
    async fn emptied(&self) -> anyhow::Result<u64>;
}

pub(super) async fn run<B: Broker>(context: &Context, args: &BrokerArgs, broker: &B) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let clock = SystemClock;
    broker.emptied().await?;
    talk!("Measuring the limits: a bare loop of the client, and a drain that costs nothing …");
    let start = clock.boot();
    broker.bare_loop(args).await?;
    let bare = rate(args.effects, (clock.boot() - start).as_secs_f64());
    let sent = broker.emptied().await?;
    sink::whole(sent, args.effects)?;
    place.fill(args.effects, &args.common).await?;
    let drain = sink::drain(place.store.clone(), args.effects, args.concurrency).await?.rate();
    let harmonic = 1.0 / (1.0 / bare + 1.0 / drain);
    let before = not_succeeded(&place).await?;
    place.fill(args.effects, &args.common).await?;
    talk!("Draining …");
    let served = served(broker, args.concurrency)?;
    let engine = sink::engine(place.store.clone(), served, args.concurrency, Duration::from_millis(20))?;
    let start = clock.boot();
    engine.run_until_idle(Stop::default()).await.context("draining")?;
    let seconds = (clock.boot() - start).as_secs_f64();
    let delivered = broker.emptied().await?;
    sink::whole(delivered, args.effects)?;
    let others = not_succeeded(&place).await?.saturating_sub(before);
    if others > 0 {
        let what = plural(others, "effect");
        return Err(fail(Exit::Failure, format!("{what} did not succeed; `effects list` shows which")));
    }
    let reached = rate(delivered, seconds) / harmonic;
    let text = format!(
        "Drained {} into {} in {seconds:.2} s: {:.0} effects/s\n\
         Limit   {harmonic:.0} effects/s (bare client {bare:.0} messages/s, a drain that costs nothing {drain:.0} effects/s); the drain reached {reached:.2} of it",
        plural(delivered, "effect"),
        B::KIND,
        rate(delivered, seconds),
    );
    let found = Found {
        bench: B::KIND,
        effects: delivered,
        seconds,
        more: json!({ "of_limit": rounded(reached) }),
        limits: json!({
            "bare_client_per_s": bare.round(),
            "drain_per_s": drain.round(),
            "harmonic_per_s": harmonic.round(),
        }),
        settings: json!({ "concurrency": args.concurrency, "payload_bytes": args.common.payload_bytes }),
        text,
    };
    found.print(context, &place)
}

/// A message that arrived is not yet an effect that is known to have been carried out: one in doubt is no throughput.
async fn not_succeeded(place: &Place) -> anyhow::Result<u64> {
    let counts = place.store.counts().await?;
    let others = counts.iter().filter(|count| count.downstream == NAME && count.state != State::Succeeded);
    Ok(others.map(|count| count.effects).sum())
}

/// The kind, as a configuration would make it.
fn served<B: Broker>(broker: &B, concurrency: u32) -> anyhow::Result<aftercommit::downstream::Served> {
    const URL: &str = "AFTERCOMMIT_BENCH_URL";
    let set = |(key, value): (&str, String)| (format!("downstream.{NAME}.{key}"), value);
    let common = [
        ("kind", B::KIND.to_owned()),
        ("url.env", URL.to_owned()),
        ("concurrency", concurrency.to_string()),
        ("contract.dedupe", "key".to_owned()),
        ("contract.window", "2m".to_owned()),
        ("contract.margin", "10s".to_owned()),
    ];
    let overrides = common.into_iter().chain(broker.settings()).map(set).collect();
    // As a secret: it may hold a password.
    let env = vec![(URL.to_owned(), broker.url().to_owned())];
    let mut served = Settings::load(&Sources { file: None, env, overrides, dev: true })?.serve(None)?;
    served.pop().ok_or_else(|| fail(Exit::Failure, "the bench's downstream was not built"))
}

/// How many messages lane `lane` of `lanes` sends of `all`.
pub(super) const fn share(all: u64, lane: u64, lanes: u64) -> u64 {
    let rest = if lane < all % lanes { 1 } else { 0 };
    all / lanes + rest
}
