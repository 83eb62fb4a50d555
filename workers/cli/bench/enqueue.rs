//! `bench enqueue`: effects in bulk, and one in each business transaction, beside bare INSERTs of the same rows.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::{Boot, Clock as _, SystemClock},
    store::Pooler,
};
use anyhow::Context as _;
use clap::Args;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tokio::task::JoinSet;

use super::{
    Common, Context, ENQUEUE_BATCH, Exit, Found, NAME, Place, Writer, batch, join, median, payload, rate,
    rounded, scratch::Scratch, talk, write_batch,
};
use crate::cli::open_sqlite;

/// Connections that write in bulk.
const WRITERS: u64 = 2;
/// Clients that commit one transaction after the other.
const CLIENTS: [usize; 3] = [1, 8, 32];
/// Clients while wake-ups are compared: enough that a lock at commit would show.
const WAKING: usize = 64;

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one.

Example:
  aftercommit bench enqueue --effects 100000 --database postgres://localhost/b")]
pub(crate) struct EnqueueArgs {
    /// How many effects are written in bulk
    #[arg(long, value_name = "N", default_value_t = 50_000, value_parser = clap::value_parser!(u64).range(2..))]
    effects: u64,
    /// Milliseconds for each measurement of transactions
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    each_ms: u64,
    /// Measurements of each kind; their median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &EnqueueArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let scratch = Scratch::create(&place).await?;
    talk!("Writing in bulk …");
    let (mut bare, mut ours) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        bare.push(bulk(&place, args, Kind::Bare).await?);
        ours.push(bulk(&place, args, Kind::Effect).await?);
    }
    let (bare, ours) = (median(bare), median(ours));
    let mut lines = vec![format!(
        "In bulk, {ENQUEUE_BATCH} a transaction: {ours:.0} effects/s, {:.2} of a bare INSERT's {bare:.0} rows/s",
        ours / bare
    )];
    let mut transactions = Vec::new();
    for clients in CLIENTS.into_iter().take(if place.is_sqlite() { 1 } else { CLIENTS.len() }) {
        let (value, line) = beside_bare(&place, args, clients).await?;
        transactions.push(value);
        lines.push(line);
    }
    let waking = if place.is_sqlite() { None } else { Some(wake_ups(&place, args).await?) };
    lines.extend(waking.as_ref().map(|(_, line)| line.clone()));
    scratch.drop().await?;
    let written = args.effects * u64::from(args.rounds);
    let found = Found {
        bench: "enqueue",
        effects: written,
        seconds: rate(written, ours),
        more: json!({
            "of_limit": rounded(ours / bare),
            "transactions": transactions,
            "wake_ups": waking.map(|(value, _)| value),
        }),
        limits: json!({ "bare_bulk_insert_per_s": bare.round() }),
        settings: json!({
            "batch": ENQUEUE_BATCH,
            "each_ms": args.each_ms,
            "rounds": args.rounds,
            "payload_bytes": args.common.payload_bytes,
        }),
        text: lines.join("\n"),
    };
    found.print(context, &place)
}

/// What is written besides the business row, if anything.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Alone,
    Bare,
    Effect,
}

/// Rows per second in bulk.
async fn bulk(place: &Place, args: &EnqueueArgs, kind: Kind) -> anyhow::Result<f64> {
    let run = SystemClock.wall().micros();
    let writers = if place.is_sqlite() { 1 } else { WRITERS };
    let start = SystemClock.boot();
    let mut lanes = JoinSet::new();
    for lane in 0..writers {
        let range = args.effects * lane / writers..args.effects * (lane + 1) / writers;
        lanes.spawn(bulk_lane(place.url.clone(), run, range, (kind, args.common.payload_bytes)));
    }
    join(lanes).await?;
    Ok(rate(args.effects, (SystemClock.boot() - start).as_secs_f64()))
}

async fn bulk_lane(
    url: String,
    run: i64,
    range: std::ops::Range<u64>,
    (kind, payload_bytes): (Kind, usize),
) -> anyhow::Result<()> {
    let mut writer = Writer::connect(&url, &Pooler::None).await?;
    let mut from = range.start;
    while from < range.end {
        let part = from..range.end.min(from + ENQUEUE_BATCH);
        from = part.end;
        if kind == Kind::Effect {
            write_batch(&mut writer, batch(run, part, payload_bytes)?).await?;
            continue;
        }
        let keys: Vec<String> = part.clone().map(|n| format!("bench-{run}-{n}")).collect();
        let payloads: Vec<String> = part.map(|n| payload(n, payload_bytes)).collect();
        match &mut writer {
            Writer::Postgres(connection) | Writer::Pooled(connection) => {
                bare_bulk(connection, &keys, &payloads).await?
            }
            Writer::Sqlite(connection) => bare_rows(connection, &keys, &payloads).await?,
        }
    }
    Ok(())
}

async fn bare_bulk(
    connection: &mut PgConnection,
    keys: &[String],
    payloads: &[String],
) -> Result<(), sqlx::Error> {
    sqlx::query(
        "INSERT INTO aftercommit.bench_bare (downstream, idempotency_key, payload)
         SELECT $1, k, p::json FROM unnest($2::text[], $3::text[]) AS n (k, p)",
    )
    .bind(NAME)
    .bind(keys)
    .bind(payloads)
    .execute(connection)
    .await
    .map(drop)
}

async fn bare_rows(
    connection: &mut SqliteConnection,
    keys: &[String],
    payloads: &[String],
) -> Result<(), sqlx::Error> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    for (key, payload) in keys.iter().zip(payloads) {
        sqlx::query(
            "INSERT INTO aftercommit_bench_bare (downstream, idempotency_key, payload) VALUES (?1, ?2, ?3)",
        )
        .bind(NAME)
        .bind(key)
        .bind(payload)
        .execute(&mut *tx)
        .await?;
    }
    tx.commit().await
}

/// A business transaction with an effect beside one with a bare INSERT, measured in turns.
async fn beside_bare(place: &Place, args: &EnqueueArgs, clients: usize) -> anyhow::Result<(Value, String)> {
    talk!("Committing transactions from {clients} clients …");
    let (mut alone, mut bare, mut ours) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        alone.push(commits(place, args, clients, Kind::Alone).await?);
        bare.push(commits(place, args, clients, Kind::Bare).await?);
        ours.push(commits(place, args, clients, Kind::Effect).await?);
    }
    let (alone, bare, ours) = (median(alone), median(bare), median(ours));
    let line = format!(
        "{clients:>2} clients: {ours:.0} transactions/s with an effect, {:.2} of those with a bare INSERT ({bare:.0}), {:.2} of those with neither ({alone:.0})",
        ours / bare,
        ours / alone
    );
    let value = json!({
        "clients": clients,
        "with_effect_per_s": ours.round(),
        "with_bare_insert_per_s": bare.round(),
        "alone_per_s": alone.round(),
        "of_bare_insert": rounded(ours / bare),
        "of_alone": rounded(ours / alone),
    });
    Ok((value, line))
}

/// Producers that wake workers beside producers that cannot: the hint must not cost what NOTIFY at each commit does.
async fn wake_ups(place: &Place, args: &EnqueueArgs) -> anyhow::Result<(Value, String)> {
    talk!("Committing transactions from {WAKING} clients, with wake-ups and without …");
    let mut listener = sqlx::postgres::PgListener::connect(&place.url).await?;
    listener.listen("aftercommit_work").await?;
    let (mut on, mut off) = (Vec::new(), Vec::new());
    for _ in 0..args.rounds {
        on.push(commits(place, args, WAKING, Kind::Effect).await?);
        let mute = Mute::hold(&place.url, Duration::from_millis(args.each_ms)).await?;
        off.push(commits(place, args, WAKING, Kind::Effect).await?);
        drop(mute);
    }
    let (on, off) = (median(on), median(off));
    let line = format!(
        "{WAKING} clients: {on:.0} transactions/s with wake-ups, {:.2} of {off:.0} without",
        on / off
    );
    let value = json!({
        "clients": WAKING,
        "on_per_s": on.round(),
        "off_per_s": off.round(),
        "of_off": rounded(on / off),
    });
    Ok((value, line))
}

/// Holds the locks under which producers would notify, of every tenth of a second to come, so that none of them does.
struct Mute(#[expect(dead_code, reason = "held, not used: dropping it frees the locks")] PgConnection);

impl Mute {
    async fn hold(url: &str, length: Duration) -> anyhow::Result<Self> {
        let mut connection = PgConnection::connect(url).await?;
        let tenths = i64::try_from(length.as_millis() / 100)? + 100;
        sqlx::query(
            "SELECT count(pg_advisory_lock(1668179321, ((floor(extract(epoch FROM clock_timestamp()) * 10)::bigint + n) % 2147483647)::integer))
             FROM generate_series(0, $1) AS g (n)",
        )
        .bind(tenths)
        .fetch_one(&mut connection)
        .await
        .context("holding the locks of the wake-ups")?;
        Ok(Self(connection))
    }
}

/// Commits per second of so many clients.
async fn commits(place: &Place, args: &EnqueueArgs, clients: usize, kind: Kind) -> anyhow::Result<f64> {
    let run = SystemClock.wall().micros();
    let each = Duration::from_millis(args.each_ms);
    let text: Arc<str> = payload(0, args.common.payload_bytes).into();
    let ready = Arc::new(tokio::sync::Barrier::new(clients));
    let mut lanes = JoinSet::new();
    for client in 0..clients {
        let (url, text, ready) = (place.url.clone(), text.clone(), ready.clone());
        let sqlite = place.is_sqlite();
        lanes.spawn(async move {
            let name = format!("{run}-{client}");
            if sqlite {
                let mut connection = open_sqlite(&url).await?;
                ready.wait().await;
                return sqlite_client(&mut connection, &name, &text, (kind, each)).await;
            }
            let mut connection = PgConnection::connect(&url).await?;
            ready.wait().await;
            postgres_client(&mut connection, &name, &text, (kind, each)).await
        });
    }
    let counts = join(lanes).await?;
    Ok(counts.into_iter().map(|(count, took)| rate(count, took.as_secs_f64())).sum())
}

/// Transactions committed, and the time they took.
type Committed = (u64, Duration);

async fn postgres_client(
    connection: &mut PgConnection,
    name: &str,
    text: &str,
    (kind, each): (Kind, Duration),
) -> anyhow::Result<Committed> {
    let start: Boot = SystemClock.boot();
    let mut count = 0;
    while SystemClock.boot() - start < each {
        let key = format!("tx-{name}-{count}");
        let mut tx = connection.begin().await?;
        sqlx::query("INSERT INTO aftercommit.bench_orders (name, amount) VALUES ($1, 1500)")
            .bind(&key)
            .execute(&mut *tx)
            .await?;
        let besides = match kind {
            Kind::Alone => None,
            Kind::Bare => Some(
                "INSERT INTO aftercommit.bench_bare (downstream, operation, idempotency_key, payload) VALUES ($1, 'charge', $2, $3::json)",
            ),
            Kind::Effect => Some(
                "INSERT INTO aftercommit.effects (downstream, operation, idempotency_key, payload) VALUES ($1, 'charge', $2, $3::json)",
            ),
        };
        if let Some(sql) = besides {
            sqlx::query(sql).bind(NAME).bind(&key).bind(text).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        count += 1;
    }
    Ok((count, SystemClock.boot() - start))
}

async fn sqlite_client(
    connection: &mut SqliteConnection,
    name: &str,
    text: &str,
    (kind, each): (Kind, Duration),
) -> anyhow::Result<Committed> {
    let start: Boot = SystemClock.boot();
    let mut count = 0;
    while SystemClock.boot() - start < each {
        let key = format!("tx-{name}-{count}");
        let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
        sqlx::query("INSERT INTO aftercommit_bench_orders (name, amount) VALUES (?1, 1500)")
            .bind(&key)
            .execute(&mut *tx)
            .await?;
        let besides = match kind {
            Kind::Alone => None,
            Kind::Bare => Some(
                "INSERT INTO aftercommit_bench_bare (downstream, operation, idempotency_key, payload) VALUES (?1, 'charge', ?2, ?3)",
            ),
            Kind::Effect => Some(
                "INSERT INTO aftercommit_effects (downstream, operation, idempotency_key, payload) VALUES (?1, 'charge', ?2, ?3)",
            ),
        };
        if let Some(sql) = besides {
            sqlx::query(sql).bind(NAME).bind(&key).bind(text).execute(&mut *tx).await?;
        }
        tx.commit().await?;
        count += 1;
    }
    Ok((count, SystemClock.boot() - start))
}
