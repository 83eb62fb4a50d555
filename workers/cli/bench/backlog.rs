//! `bench backlog`: what a claim costs with few and with many effects pending.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use aftercommit::{
    clock::{Clock as _, SystemClock},
    decision::Decision,
    store::{AttemptLog, Claim, Next, Settlement, Store, Want},
};
use anyhow::Context as _;
use clap::Args;
use serde_json::json;
use sqlx::{Connection as _, PgConnection};

use super::{
    Common, Context, Exit, Found, NAME, Place, Times, fail, payload, plural, rounded,
    sink::{applied, register},
    talk,
};
use crate::cli::{open_sqlite, worker_name};

/// The few: what a service that keeps up has at its busiest.
const FEW: u64 = 10_000;
/// Rows per statement when the backlog is written.
const FILL: u64 = 50_000;
/// Claims that warm up caches and plans before any is measured.
const WARM_UP: u32 = 20;

#[derive(Debug, Args)]
#[command(after_help = "\
It writes to the database, and leaves the backlog there: use one that you can
drop.

Example:
  aftercommit bench backlog --effects 10000000 --database postgres://localhost/b")]
pub(crate) struct BacklogArgs {
    /// How many effects are pending at the end
    #[arg(long, value_name = "N", default_value_t = 1_000_000, value_parser = clap::value_parser!(u64).range(20_000..))]
    effects: u64,
    /// Claims that are measured each time
    #[arg(long, value_name = "N", default_value_t = 200, value_parser = clap::value_parser!(u32).range(1..))]
    claims: u32,
    /// Effects per claim
    #[arg(long, value_name = "N", default_value_t = 25, value_parser = clap::value_parser!(u32).range(1..))]
    batch: u32,
    #[command(flatten)]
    common: Common,
}

pub(super) async fn run(context: &Context, args: &BacklogArgs) -> anyhow::Result<Exit> {
    let taken = u64::from(args.claims + WARM_UP) * u64::from(args.batch);
    if taken >= FEW {
        return Err(fail(Exit::Usage, format!("--claims times --batch must stay below {FEW}")));
    }
    let place = Place::open(context, &args.common).await?;
    let claimer = Claimer::register(&place).await?;
    write(&place, FEW, args.common.payload_bytes).await?;
    let few = claimer.measure(args).await?;
    let more = args.effects - (FEW - taken);
    talk!("Writing {} …", plural(more, "effect"));
    write(&place, more, args.common.payload_bytes).await?;
    rest(&place).await?;
    let start = SystemClock.boot();
    let many = claimer.measure(args).await?;
    let seconds = (SystemClock.boot() - start).as_secs_f64();
    let ratio = many.ms(990) / few.ms(990).max(0.001);
    let text = format!(
        "Claims of {}, {} each time\n\
         {FEW:>9} pending: p50 {:.2} ms, p99 {:.2} ms\n\
         {:>9} pending: p50 {:.2} ms, p99 {:.2} ms, {ratio:.2} of that",
        args.batch,
        args.claims,
        few.ms(500),
        few.ms(990),
        args.effects,
        many.ms(500),
        many.ms(990),
    );
    let found = Found {
        bench: "backlog",
        effects: u64::from(args.claims) * u64::from(args.batch),
        seconds,
        more: json!({ "claim": many.summary(), "p99_of_few": rounded(ratio) }),
        limits: json!({ "claim_at_10000": few.summary() }),
        settings: json!({
            "pending": args.effects,
            "batch": args.batch,
            "claims": args.claims,
            "payload_bytes": args.common.payload_bytes,
        }),
        text,
    };
    found.print(context, &place)
}

/// A worker reduced to its claims and settles.
struct Claimer {
    store: Arc<dyn Store>,
    worker: Arc<str>,
    terms: Vec<(Option<String>, i64)>,
}

impl Claimer {
    async fn register(place: &Place) -> anyhow::Result<Self> {
        let worker = worker_name();
        let ids = register(place.store.as_ref(), Some(worker.clone())).await?;
        let terms = ids.into_iter().map(|(_, operation, id)| (operation, id)).collect();
        Ok(Self { store: place.store.clone(), worker, terms })
    }

    async fn measure(&self, args: &BacklogArgs) -> anyhow::Result<Times> {
        let want = [Want {
            downstream: NAME.into(),
            slots: args.batch,
            lease: Duration::from_secs(60),
            terms: self.terms.clone(),
            origin: None,
            trial: false,
        }];
        let mut times = Vec::new();
        for round in 0..args.claims + WARM_UP {
            let start = SystemClock.boot();
            let claims = self.store.claim(&self.worker, &want).await.context("claiming")?;
            let took = SystemClock.boot() - start;
            if claims.len() < args.batch as usize {
                return Err(fail(Exit::Failure, format!("a claim of {} found {}", args.batch, claims.len())));
            }
            if round >= WARM_UP {
                times.push(took);
            }
            self.settle(&claims).await?;
        }
        Ok(Times::new(times))
    }

    async fn settle(&self, claims: &[Claim]) -> anyhow::Result<()> {
        let batch: Vec<Settlement> = claims.iter().map(|claim| self.succeeded(claim)).collect();
        let tokens: Vec<_> = claims.first().map(Claim::token).into_iter().collect();
        self.store.settle(&batch, &tokens).await.context("settling")?;
        Ok(())
    }

    fn succeeded(&self, claim: &Claim) -> Settlement {
        let outcome = applied();
        let at = claim.claimed_at;
        Settlement {
            id: claim.effect.id,
            token: claim.token(),
            decision: Next::Decided(Decision::Succeed),
            attempt: Some(AttemptLog::of(claim.number, self.worker.clone(), &outcome, at, at)),
            counts: true,
            uncertain: false,
            quiet_at: None,
            sweep_at: None,
            response: outcome.response,
            refusal_stored: false,
        }
    }
}

/// Lets the database finish with what was written, as it would have long before anybody has so much pending: else the claims
/// are measured beside a checkpoint and an autovacuum of the load.
async fn rest(place: &Place) -> anyhow::Result<()> {
    if place.is_sqlite() {
        return Ok(());
    }
    talk!("Letting the database come to rest …");
    let mut connection = PgConnection::connect(&place.url).await?;
    for table in ["queue", "effects", "outcomes"] {
        let sql = format!("VACUUM (ANALYZE) aftercommit.{table}");
        sqlx::raw_sql(sqlx::AssertSqlSafe(sql)).execute(&mut connection).await.context("vacuuming")?;
    }
    // Not everybody may ask for a checkpoint; the next one then falls into the measurement.
    if let Err(error) = sqlx::raw_sql("CHECKPOINT").execute(&mut connection).await {
        talk!("No checkpoint before the claims are measured: {error}");
    }
    Ok(())
}

/// Writes `effects` inside the database: no client could send ten million rows in the time that anybody waits.
async fn write(place: &Place, effects: u64, payload_bytes: usize) -> anyhow::Result<()> {
    let run = SystemClock.wall().micros();
    let payload = payload(0, payload_bytes);
    let mut statements: BTreeMap<u64, u64> = BTreeMap::new();
    let mut written = 0;
    while written < effects {
        let end = effects.min(written + FILL);
        statements.insert(written, end);
        written = end;
    }
    if place.is_sqlite() {
        let mut connection = open_sqlite(&place.url).await?;
        for (from, to) in statements {
            sqlx::query(
                "WITH RECURSIVE n (n) AS (SELECT ?1 UNION ALL SELECT n + 1 FROM n WHERE n + 1 < ?2)
                 INSERT INTO aftercommit_effects (downstream, idempotency_key, payload)
                 SELECT ?3, 'backlog-' || ?4 || '-' || n, ?5 FROM n",
            )
            .bind(i64::try_from(from)?)
            .bind(i64::try_from(to)?)
            .bind(NAME)
            .bind(run)
            .bind(&payload)
            .execute(&mut connection)
            .await
            .context("writing the backlog")?;
        }
        return Ok(());
    }
    let mut connection = PgConnection::connect(&place.url).await?;
    for (from, to) in statements {
        sqlx::query(
            "INSERT INTO aftercommit.effects (downstream, idempotency_key, payload)
             SELECT $3, 'backlog-' || $4::int8 || '-' || n, $5::json FROM generate_series($1::int8, $2::int8 - 1) AS g (n)",
        )
        .bind(i64::try_from(from)?)
        .bind(i64::try_from(to)?)
        .bind(NAME)
        .bind(run)
        .bind(&payload)
        .execute(&mut connection)
        .await
        .context("writing the backlog")?;
    }
    Ok(())
}
