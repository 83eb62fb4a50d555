//! `bench horizon`: what a snapshot that somebody holds open costs. It keeps the database from cleaning up behind the queue.

use clap::Args;
use serde_json::json;

use super::{Common, Context, Exit, Found, Place, limits, rounded, sink, talk};

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one.

Example:
  aftercommit bench horizon --effects 1000000 --database postgres://localhost/b")]
pub(crate) struct HorizonArgs {
    /// How many effects, each time
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(10..))]
    effects: u64,
    /// Effects in flight at one time
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &HorizonArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    place.fill(args.effects, &args.common).await?;
    talk!("Draining without a snapshot …");
    let free = sink::drain(place.store.clone(), args.effects, args.concurrency).await?;
    place.fill(args.effects, &args.common).await?;
    talk!("Draining with a snapshot held …");
    let snapshot = limits::Snapshot::hold(&place.url).await?;
    let held = sink::drain(place.store.clone(), args.effects, args.concurrency).await?;
    drop(snapshot);
    let first = held.tenths.first().copied().unwrap_or_default();
    let last = held.tenths.last().copied().unwrap_or_default();
    let (last_of_first, of_free) = (last / first.max(1.0), held.rate() / free.rate());
    let text = format!(
        "Without a snapshot {:.0} effects/s\n\
         With one held      {:.0} effects/s, {of_free:.2} of that; its last tenth {last_of_first:.2} of its first",
        free.rate(),
        held.rate(),
    );
    let found = Found {
        bench: "horizon",
        effects: held.delivered,
        seconds: held.seconds,
        more: json!({
            "of_limit": rounded(of_free),
            "last_tenth_of_first": rounded(last_of_first),
            "tenths_per_s": held.tenths,
        }),
        limits: json!({ "without_snapshot_per_s": free.rate().round(), "without_snapshot_tenths_per_s": free.tenths }),
        settings: json!({ "concurrency": args.concurrency, "payload_bytes": args.common.payload_bytes }),
        text,
    };
    found.print(context, &place)
}
