//! Workers and what they serve: registration, leases kept alive, leaving.

use std::{collections::BTreeMap, sync::Arc, time::Duration};

use sha2::{Digest, Sha256};

use super::{PgStore, Tx, budget, durable, row, statement::sql};
use crate::{
    clock::duration_micros,
    contract::{Dedupe, KeyCharset, Window},
    error::StoreError,
    store::{RegisteredDownstream, RegisteredTerms, Registration, TermsIds, Token},
};

/// Registrations of a fleet that starts at once run one after another: they write the same rows.
const LOCK: &str = "SELECT pg_advisory_xact_lock(7022364301936348006)";

/// A worker that starts under a name that is known keeps when it first started.
const WORKER: &str = "INSERT INTO aftercommit.workers (name, version, started_at, seen_at, downstreams)
VALUES ($1, $2, clock_timestamp(), clock_timestamp(), $3)
ON CONFLICT (name) DO UPDATE
SET version = excluded.version, seen_at = excluded.seen_at, downstreams = excluded.downstreams";

const DOWNSTREAM: &str = "INSERT INTO aftercommit.downstreams AS d
  (name, kind, key_prefix, key_min_len, key_max_len, key_charset, registered_at)
VALUES ($1, $2, $3, $4, $5, $6, clock_timestamp())
ON CONFLICT (name) DO UPDATE
SET kind = excluded.kind, key_prefix = excluded.key_prefix, key_min_len = excluded.key_min_len,
    key_max_len = excluded.key_max_len, key_charset = excluded.key_charset, registered_at = excluded.registered_at";

/// Those of a configuration that came back are not retired any more, before anybody claims under them.
const TERMS: &str = "INSERT INTO aftercommit.terms AS t
  (downstream, operation, request_sha256, contract, policy, timeout_us, window_us, margin_us, dedupe, digest)
VALUES ($1, $2, $3, $4::json, $5::json, $6, $7, $8, $9, $10)
ON CONFLICT (digest) DO UPDATE SET retired_at = NULL WHERE t.retired_at IS NOT NULL";

/// What an operation was sent under until now.
const TODAY: &str = "SELECT t.id, t.dedupe, t.window_us, t.margin_us FROM aftercommit.operations AS o
JOIN aftercommit.terms AS t ON t.id = o.terms WHERE o.downstream = $1 AND o.operation = $2";

const OPERATION: &str =
    "INSERT INTO aftercommit.operations (downstream, operation, terms) VALUES ($1, $2, $3)
ON CONFLICT (downstream, operation) DO UPDATE SET terms = excluded.terms";

/// What the configuration no longer has is no operation of today: nothing that was sent under it would be rendered as it was.
const FORGET: &str =
    "DELETE FROM aftercommit.operations WHERE downstream = $1 AND operation <> ALL ($2::text[])";

/// When an uncertain effect could last be sent under a narrower window; a window that is not there any more ended long ago.
/// A person's one resend that was confirmed does not ask for it.
const NARROW: &str = "UPDATE aftercommit.queue AS q
SET sweep_at = least(q.sweep_at, CASE WHEN $3::int8 IS NULL THEN '-infinity'::timestamptz
  ELSE q.first_sent_at + least(sent.window_us, $3::int8, 3155760000000000) * interval '1 microsecond'
       - least($4::int8, 3155760000000000) * interval '1 microsecond'
       - $5::int8 * interval '1 microsecond' END)
FROM aftercommit.terms AS sent
WHERE sent.id = q.terms AND q.downstream = $1 AND coalesce(q.operation, '') = $2 AND q.uncertain AND q.lane <> 'd'
  AND NOT q.resend AND q.first_sent_at IS NOT NULL";

const RENEW: &str = concat!(
    "WITH seen AS (
  UPDATE aftercommit.workers SET seen_at = clock_timestamp() WHERE name = $1
)
UPDATE aftercommit.claims AS c
SET lease_until = greatest(c.lease_until, clock_timestamp() + l.lease_us * interval '1 microsecond')
FROM unnest($2::int8[], $3::int8[]) AS l (token, lease_us), (SELECT ",
    durable!(),
    ") AS d (durable)
WHERE c.token = l.token AND c.worker = $1 AND c.lease_until > clock_timestamp()
RETURNING c.token"
);

impl PgStore {
    pub(super) async fn register_terms(&self, registration: &Registration) -> Result<TermsIds, StoreError> {
        let doing = "registering";
        let mut tx = Tx::begin(&self.pool).await.map_err(StoreError::during(doing))?;
        // A window that became narrower may move a large backlog; who starts waits for it.
        tx.set("SET LOCAL statement_timeout = '10min'").await.map_err(StoreError::during(doing))?;
        let ids = register(&mut tx, registration).await.map_err(StoreError::during(doing))?;
        tx.commit().await.map_err(StoreError::during(doing))?;
        Ok(ids)
    }

    pub(super) async fn renew_leases(
        &self,
        worker: &str,
        tokens: &[(Token, Duration)],
    ) -> Result<Vec<Token>, StoreError> {
        let doing = "renewing leases";
        let taken = self.renewing.lock().await.take();
        let mut connection = match taken {
            Some(connection) => connection,
            None => {
                self.renewed.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                self.session.connect(&self.options).await.map_err(StoreError::during(doing))?
            }
        };
        let numbers: Vec<i64> = tokens.iter().map(|(token, _)| token.get()).collect();
        // Longer leases would not fit an interval's arithmetic.
        let leases: Vec<i64> =
            tokens.iter().map(|(_, lease)| duration_micros(*lease).min(315_360_000_000_000)).collect();
        let statement = sql(RENEW).bind(worker).bind(numbers).bind(leases);
        let held = self.session.all_on(&mut connection, statement).await;
        let held = held.map_err(StoreError::during(doing))?;
        // Only a connection that just worked is kept.
        *self.renewing.lock().await = Some(connection);
        held.iter().map(|row| row::get(row, "token").map(Token::new)).collect()
    }

    pub(super) async fn forget_worker(&self, worker: &str) -> Result<(), StoreError> {
        let statement = sql("DELETE FROM aftercommit.workers WHERE name = $1").bind(worker);
        self.execute(statement).await.map(drop).map_err(StoreError::during("leaving"))
    }
}

async fn register(tx: &mut Tx<'_>, registration: &Registration) -> Result<TermsIds, sqlx::Error> {
    tx.execute(sql(LOCK)).await?;
    if let Some(worker) = &registration.worker {
        let names: Vec<&str> = registration.downstreams.iter().map(|d| d.name.as_ref()).collect();
        tx.execute(sql(WORKER).bind(&**worker).bind(registration.version).bind(names)).await?;
    }
    if let Some(kept) = registration.requests {
        tx.execute(sql("SELECT aftercommit.keep_requests($1)").bind(duration_micros(kept))).await?;
    }
    let mut ids = TermsIds::new();
    // Two operations of one downstream with equal terms have two rows: each is looked up by its own name.
    let downstreams: BTreeMap<&str, &RegisteredDownstream> =
        registration.downstreams.iter().map(|downstream| (&*downstream.name, downstream)).collect();
    for downstream in downstreams.into_values() {
        register_downstream(tx, downstream).await?;
        budget::register(tx, downstream).await?;
        for (operation, terms, request) in &downstream.operations {
            let id = register_operation(tx, &downstream.name, operation.as_deref(), (terms, request)).await?;
            ids.push((Arc::clone(&downstream.name), operation.clone(), id));
        }
        let known = downstream.operations.iter().map(|(name, ..)| name).chain(&downstream.kept);
        let names: Vec<&str> = known.map(|name| name.as_deref().unwrap_or("")).collect();
        tx.execute(sql(FORGET).bind(&*downstream.name).bind(names)).await?;
    }
    Ok(ids)
}

async fn register_downstream(tx: &mut Tx<'_>, downstream: &RegisteredDownstream) -> Result<(), sqlx::Error> {
    let charset = match downstream.key.charset {
        KeyCharset::Printable => "printable",
        KeyCharset::Token => "token",
        KeyCharset::Uuid => "uuid",
    };
    let statement = sql(DOWNSTREAM)
        .bind(&*downstream.name)
        .bind(downstream.kind)
        .bind(&downstream.key_prefix)
        .bind(i32::from(downstream.key.min_len))
        .bind(i32::from(downstream.key.max_len))
        .bind(charset);
    tx.execute(statement).await.map(drop)
}

async fn register_operation(
    tx: &mut Tx<'_>,
    downstream: &str,
    operation: Option<&str>,
    (terms, request): (&RegisteredTerms, &[u8; 32]),
) -> Result<i64, sqlx::Error> {
    let contract =
        serde_json::to_string(&terms.contract).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let policy = serde_json::to_string(&terms.policy).map_err(|error| sqlx::Error::Encode(error.into()))?;
    let timeout_us = duration_micros(terms.timeout);
    let dedupe = match terms.contract.dedupe {
        Dedupe::Key => "key",
        Dedupe::Lookup => "lookup",
        Dedupe::None => "none",
    };
    let digest = digest(&[
        downstream.as_bytes(),
        &[u8::from(operation.is_some())],
        operation.unwrap_or("").as_bytes(),
        request,
        contract.as_bytes(),
        policy.as_bytes(),
        &timeout_us.to_be_bytes(),
    ]);
    let statement = sql(TERMS)
        .bind(downstream)
        .bind(operation)
        .bind(&request[..])
        .bind(&contract)
        .bind(&policy)
        .bind(timeout_us)
        .bind(terms.contract.window.map(Window::micros))
        .bind(duration_micros(terms.contract.margin))
        .bind(dedupe)
        .bind(&digest[..]);
    tx.execute(statement).await?;
    let known = sql("SELECT id FROM aftercommit.terms WHERE digest = $1");
    let id: i64 = tx.scalar(known.bind(&digest[..])).await?;
    let before = tx.optional(sql(TODAY).bind(downstream).bind(operation.unwrap_or(""))).await?;
    tx.execute(sql(OPERATION).bind(downstream).bind(operation.unwrap_or("")).bind(id)).await?;
    // One that was forgotten meanwhile may have promised more.
    if before.map_or(Ok(true), |before| is_narrower(terms, &before))? {
        narrow(tx, downstream, operation, terms).await?;
    }
    Ok(id)
}

/// Whether the key promises less than it did.
fn is_narrower(terms: &RegisteredTerms, before: &sqlx::postgres::PgRow) -> Result<bool, sqlx::Error> {
    use sqlx::Row;
    let promised = before.try_get::<&str, _>("dedupe")? == "key";
    let window = before.try_get::<Option<i64>, _>("window_us")?;
    let margin = before.try_get::<i64, _>("margin_us")?;
    let (Some(before), true) = (window, promised) else { return Ok(false) };
    let now = match (terms.contract.dedupe, terms.contract.window) {
        (Dedupe::Key, Some(window)) => window.micros(),
        (Dedupe::Key, None) | (Dedupe::Lookup | Dedupe::None, _) => return Ok(true),
    };
    Ok(now < before || duration_micros(terms.contract.margin) > margin)
}

async fn narrow(
    tx: &mut Tx<'_>,
    downstream: &str,
    operation: Option<&str>,
    terms: &RegisteredTerms,
) -> Result<(), sqlx::Error> {
    let window = match terms.contract.dedupe {
        Dedupe::Key => terms.contract.window.map(Window::micros),
        Dedupe::Lookup | Dedupe::None => None,
    };
    let statement = sql(NARROW)
        .bind(downstream)
        .bind(operation.unwrap_or(""))
        .bind(window)
        .bind(duration_micros(terms.contract.margin))
        .bind(duration_micros(terms.timeout));
    tx.execute(statement).await.map(drop)
}

/// Equal content has an equal digest, and no two contents share their bytes: each part has its length in front.
fn digest(parts: &[&[u8]]) -> [u8; 32] {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(u64::try_from(part.len()).unwrap_or(u64::MAX).to_be_bytes());
        hash.update(part);
    }
    hash.finalize().into()
}
