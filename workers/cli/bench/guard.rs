//! `bench guard`: guarded requests beside the same transaction with two bare single-row writes, which is the least that a
//! record of requests can be made of.

use std::{sync::Arc, time::Duration};

use aftercommit::{
    clock::{Boot, Clock as _, SystemClock},
    guard::{Answer, Begun, Fingerprint, Request, RequestKey, Requests, Scope},
};
use anyhow::{Context as _, bail};
use clap::Args;
use serde_json::{Value, json};
use sqlx::{Connection as _, PgConnection, SqliteConnection};
use tokio::task::JoinSet;

use super::{
    Common, Context, Exit, Found, Place, join, median, payload, rate, rounded, scratch::Scratch, talk,
};
use crate::cli::open_sqlite;

/// Clients that send one request after the other. SQLite has one writer.
const CLIENTS: [usize; 3] = [1, 8, 32];

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database: use an empty one.

Example:
  aftercommit bench guard --database postgres://localhost/b")]
pub(crate) struct GuardArgs {
    /// Milliseconds for each measurement
    #[arg(long, value_name = "MS", default_value_t = 2000, value_parser = clap::value_parser!(u64).range(1..))]
    each_ms: u64,
    /// Measurements of each kind; their median counts
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..))]
    rounds: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &GuardArgs) -> anyhow::Result<Exit> {
    let place = Place::open(context, &args.common).await?;
    let scratch = Scratch::create(&place).await?;
    let (mut requests, mut lines, mut last) = (Vec::new(), Vec::new(), (0, 0.0, 0.0));
    for clients in CLIENTS.into_iter().take(if place.is_sqlite() { 1 } else { CLIENTS.len() }) {
        talk!("Committing requests from {clients} clients …");
        let (mut bare, mut guarded, mut count) = (Vec::new(), Vec::new(), 0);
        for _ in 0..args.rounds {
            bare.push(commits(&place, args, clients, Kind::Bare).await?.1);
            let (n, figure) = commits(&place, args, clients, Kind::Guarded).await?;
            count += n;
            guarded.push(figure);
        }
        let (bare, guarded) = (median(bare), median(guarded));
        last = (last.0 + count, guarded, bare);
        requests.push(json!({
            "clients": clients,
            "guarded_per_s": guarded.round(),
            "with_two_bare_writes_per_s": bare.round(),
            "of_two_bare_writes": rounded(guarded / bare),
        }));
        lines.push(format!(
            "{clients:>2} clients: {guarded:.0} guarded requests/s, {:.2} of {bare:.0} transactions/s with two bare writes instead",
            guarded / bare
        ));
    }
    scratch.drop().await?;
    let (count, guarded, bare) = last;
    let found = Found {
        bench: "guard",
        effects: count,
        seconds: rate(count, guarded),
        more: json!({ "requests": Value::Array(requests), "of_limit": rounded(guarded / bare) }),
        limits: json!({ "two_bare_writes_per_s": bare.round() }),
        settings: json!({
            "each_ms": args.each_ms,
            "rounds": args.rounds,
            "payload_bytes": args.common.payload_bytes,
        }),
        text: lines.join("\n"),
    };
    found.print(context, &place)
}

/// What stands around the business row.
#[derive(Clone, Copy, Debug)]
enum Kind {
    Bare,
    Guarded,
}

/// Requests committed, and how many a second, of so many clients.
async fn commits(place: &Place, args: &GuardArgs, clients: usize, kind: Kind) -> anyhow::Result<(u64, f64)> {
    let run = SystemClock.wall().micros();
    let each = Duration::from_millis(args.each_ms);
    let body: Arc<str> = payload(0, args.common.payload_bytes).into();
    let ready = Arc::new(tokio::sync::Barrier::new(clients));
    let mut lanes = JoinSet::new();
    for client in 0..clients {
        let (url, body, ready) = (place.url.clone(), body.clone(), ready.clone());
        let sqlite = place.is_sqlite();
        lanes.spawn(async move {
            let name = format!("{run}-{client}");
            let mut client = if sqlite {
                Client::Sqlite(open_sqlite(&url).await?)
            } else {
                Client::Postgres(PgConnection::connect(&url).await?)
            };
            ready.wait().await;
            let start: Boot = SystemClock.boot();
            let mut count = 0;
            while SystemClock.boot() - start < each {
                client.request(&format!("request-{name}-{count}"), &body, kind).await?;
                count += 1;
            }
            Ok((count, SystemClock.boot() - start))
        });
    }
    let counts: Vec<(u64, Duration)> = join(lanes).await?;
    let per_s = counts.iter().map(|(count, took)| rate(*count, took.as_secs_f64())).sum();
    Ok((counts.iter().map(|(count, _)| count).sum(), per_s))
}

enum Client {
    Postgres(PgConnection),
    Sqlite(SqliteConnection),
}

impl Client {
    async fn request(&mut self, key: &str, body: &str, kind: Kind) -> anyhow::Result<()> {
        let request = Request {
            scope: Scope::parse("bench")?,
            key: RequestKey::parse(key)?,
            fingerprint: Fingerprint::of("POST", "/orders", [], body.as_bytes()),
            ttl: None,
        };
        let lines = Answer::lines([("content-type", b"application/json".as_slice())]);
        let answer = Answer { status: 201, headers: lines, body: body.as_bytes().to_vec() };
        match (self, kind) {
            (Self::Postgres(connection), Kind::Bare) => bare_on_postgres(connection, &request, &answer).await,
            (Self::Sqlite(connection), Kind::Bare) => bare_on_sqlite(connection, &request, &answer).await,
            (Self::Postgres(connection), Kind::Guarded) => {
                let mut tx = connection.begin().await?;
                begin(&mut *tx, &request).await?;
                sqlx::query(ORDER_ON_POSTGRES).bind(key).execute(&mut *tx).await?;
                tx.finish_request(&request, &answer).await?;
                Ok(tx.commit().await?)
            }
            (Self::Sqlite(connection), Kind::Guarded) => {
                let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
                begin(&mut *tx, &request).await?;
                sqlx::query(ORDER_ON_SQLITE).bind(key).execute(&mut *tx).await?;
                tx.finish_request(&request, &answer).await?;
                Ok(tx.commit().await?)
            }
        }
    }
}

const ORDER_ON_POSTGRES: &str = "INSERT INTO aftercommit.bench_orders (name, amount) VALUES ($1, 1500)";
const ORDER_ON_SQLITE: &str = "INSERT INTO aftercommit_bench_orders (name, amount) VALUES (?1, 1500)";

async fn begin<C: Requests>(connection: &mut C, request: &Request) -> anyhow::Result<()> {
    match connection.begin_request(request).await? {
        Begun::New => Ok(()),
        other @ (Begun::Replay(_) | Begun::InProgress | Begun::Mismatch) => {
            bail!("a request of the bench was not new: {other:?}")
        }
    }
}

/// The key's row, then the answer's: written without a look at what is there.
async fn bare_on_postgres(
    connection: &mut PgConnection,
    request: &Request,
    answer: &Answer,
) -> anyhow::Result<()> {
    let mut tx = connection.begin().await?;
    sqlx::query("INSERT INTO aftercommit.bench_requests (scope, key, fingerprint) VALUES ($1, $2, $3)")
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(request.fingerprint.as_str())
        .execute(&mut *tx)
        .await?;
    sqlx::query(ORDER_ON_POSTGRES).bind(request.key.as_str()).execute(&mut *tx).await?;
    sqlx::query("INSERT INTO aftercommit.bench_answers (scope, key, status, headers, body) VALUES ($1, $2, $3, $4, $5)")
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(i32::from(answer.status))
        .bind(&answer.headers)
        .bind(&answer.body)
        .execute(&mut *tx)
        .await?;
    tx.commit().await.context("committing")
}

async fn bare_on_sqlite(
    connection: &mut SqliteConnection,
    request: &Request,
    answer: &Answer,
) -> anyhow::Result<()> {
    let mut tx = connection.begin_with("BEGIN IMMEDIATE").await?;
    sqlx::query("INSERT INTO aftercommit_bench_requests (scope, key, fingerprint) VALUES (?1, ?2, ?3)")
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(request.fingerprint.as_str())
        .execute(&mut *tx)
        .await?;
    sqlx::query(ORDER_ON_SQLITE).bind(request.key.as_str()).execute(&mut *tx).await?;
    sqlx::query("INSERT INTO aftercommit_bench_answers (scope, key, status, headers, body) VALUES (?1, ?2, ?3, ?4, ?5)")
        .bind(request.scope.as_str())
        .bind(request.key.as_str())
        .bind(i64::from(answer.status))
        .bind(&answer.headers)
        .bind(&answer.body)
        .execute(&mut *tx)
        .await?;
    tx.commit().await.context("committing")
}
