//! `bench drain`: claim and settle, with a downstream that costs nothing.

use clap::Args;
use serde_json::json;

use super::{Common, Context, Exit, Found, Place, limits, plural, rate, rounded, sink, talk};

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one. Where there is no schema, it makes
one.

Examples:
  aftercommit bench drain --effects 100000 --database postgres://localhost/bench
  aftercommit bench drain --effects 20000 --database sqlite:bench.db --json")]
pub(crate) struct DrainArgs {
    /// How many effects
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u64).range(1..))]
    effects: u64,
    /// Rows per statement in the limit that it is compared with
    #[arg(long, value_name = "N", default_value_t = 500, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    /// Effects in flight at one time [default: twice the batch]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    concurrency: Option<u32>,
    /// Keep a snapshot open in another session all the while, as a long report would
    #[arg(long)]
    hold_snapshot: bool,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &DrainArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let enqueue = place.fill(args.effects, &args.common).await?.as_secs_f64();
    talk!("Measuring the limit: UPDATE + DELETE in batches of {} …", args.batch);
    let limit = limits::update_delete(&place, args.effects, args.batch, args.common.payload_bytes).await?;
    talk!("Draining …");
    let snapshot = if args.hold_snapshot { Some(limits::Snapshot::hold(&place.url).await?) } else { None };
    let concurrency = args.concurrency.unwrap_or(args.batch.saturating_mul(2));
    let drained = sink::drain(place.store.clone(), args.effects, concurrency).await?;
    drop(snapshot);
    let reached = drained.rate() / limit;
    let text = format!(
        "Drained {} in {:.2} s: {:.0} effects/s\n\
         Limit   {limit:.0} rows/s (UPDATE + DELETE, batches of {}); the drain reached {reached:.2} of it\n\
         Written {:.0} effects/s by one connection in transactions of {}",
        plural(drained.delivered, "effect"),
        drained.seconds,
        drained.rate(),
        args.batch,
        rate(args.effects, enqueue),
        super::ENQUEUE_BATCH,
    );
    let found = Found {
        bench: "drain",
        effects: drained.delivered,
        seconds: drained.seconds,
        more: json!({
            "enqueue_per_s": rate(args.effects, enqueue).round(),
            "tenths_per_s": drained.tenths,
            "of_limit": rounded(reached),
        }),
        limits: json!({ "update_delete_per_s": limit.round() }),
        settings: json!({
            "batch": args.batch,
            "concurrency": concurrency,
            "payload_bytes": args.common.payload_bytes,
            "hold_snapshot": args.hold_snapshot,
        }),
        text,
    };
    found.print(context, &place)
}
