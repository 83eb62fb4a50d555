//! What is known of workers and of the downstreams that they serve.

use sqlx::SqliteConnection;

use crate::{
    clock::{Timestamp, duration_micros},
    contract::{Dedupe, KeyCharset, Window},
    error::StoreError,
    store::{RegisteredDownstream, RegisteredTerms, Registration, TermsIds},
};

/// Makes downstreams, terms and the worker known.
pub(super) async fn register(
    conn: &mut SqliteConnection,
    registration: &Registration,
    now: Timestamp,
) -> Result<TermsIds, StoreError> {
    if let Some(kept) = registration.requests {
        super::received::keep_requests(conn, kept).await?;
    }
    let mut ids = TermsIds::new();
    for downstream in &registration.downstreams {
        register_downstream(conn, downstream, now).await?;
        super::budget::register(conn, downstream).await?;
        for (operation, terms, request) in &downstream.operations {
            let id = register_terms(conn, &downstream.name, operation.as_deref(), terms, request).await?;
            ids.push((downstream.name.clone(), operation.clone(), id));
        }
        forget_operations(conn, downstream).await?;
        narrow(conn, &downstream.name).await?;
    }
    if let Some(worker) = &registration.worker {
        let names: Vec<&str> = registration.downstreams.iter().map(|served| &*served.name).collect();
        sqlx::query(
            "INSERT INTO aftercommit_workers (name, version, started_at, seen_at, downstreams) \
             VALUES (?1, ?2, ?3, ?3, ?4) ON CONFLICT (name) DO UPDATE SET version = excluded.version, \
                 seen_at = excluded.seen_at, downstreams = excluded.downstreams",
        )
        .bind(worker.to_string())
        .bind(registration.version)
        .bind(now.micros())
        .bind(serde_json::to_string(&names).expect("names always serialise"))
        .execute(conn)
        .await
        .map_err(StoreError::during("registering a worker"))?;
    }
    Ok(ids)
}

async fn register_downstream(
    conn: &mut SqliteConnection,
    downstream: &RegisteredDownstream,
    now: Timestamp,
) -> Result<(), StoreError> {
    let charset = match downstream.key.charset {
        KeyCharset::Printable => "printable",
        KeyCharset::Token => "token",
        KeyCharset::Uuid => "uuid",
    };
    sqlx::query(
        "INSERT INTO aftercommit_downstreams \
             (name, kind, key_prefix, key_min_len, key_max_len, key_charset, registered_at) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT (name) DO UPDATE SET kind = excluded.kind, \
             key_prefix = excluded.key_prefix, key_min_len = excluded.key_min_len, \
             key_max_len = excluded.key_max_len, key_charset = excluded.key_charset, \
             registered_at = excluded.registered_at",
    )
    .bind(downstream.name.to_string())
    .bind(downstream.kind)
    .bind(downstream.key_prefix.clone())
    .bind(i64::from(downstream.key.min_len))
    .bind(i64::from(downstream.key.max_len))
    .bind(charset)
    .bind(now.micros())
    .execute(conn)
    .await
    .map_err(StoreError::during("registering a downstream"))?;
    Ok(())
}

/// Equal terms keep their number: the second statement finds what the first did not need to write. Those of a configuration
/// that came back are not retired any more, before anybody claims under them.
async fn register_terms(
    conn: &mut SqliteConnection,
    downstream: &str,
    operation: Option<&str>,
    terms: &RegisteredTerms,
    request: &[u8; 32],
) -> Result<i64, StoreError> {
    let doing = "registering terms";
    let dedupe = match terms.contract.dedupe {
        Dedupe::Key => "key",
        Dedupe::Lookup => "lookup",
        Dedupe::None => "none",
    };
    let contract = serde_json::to_string(&terms.contract).expect("a contract always serialises");
    let policy = serde_json::to_string(&terms.policy).expect("a policy always serialises");
    let operation = operation.unwrap_or_default();
    sqlx::query(
        "INSERT INTO aftercommit_terms (downstream, operation, request_sha256, contract, policy, timeout_us, \
             window_us, margin_us, dedupe) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9) \
         ON CONFLICT DO UPDATE SET retired_at = NULL WHERE retired_at IS NOT NULL",
    )
    .bind(downstream.to_owned())
    .bind(operation.to_owned())
    .bind(request.to_vec())
    .bind(contract.clone())
    .bind(policy.clone())
    .bind(duration_micros(terms.timeout))
    .bind(terms.contract.window.map(Window::micros))
    .bind(duration_micros(terms.contract.margin))
    .bind(dedupe)
    .execute(&mut *conn)
    .await
    .map_err(StoreError::during(doing))?;
    sqlx::query_scalar(
        "INSERT INTO aftercommit_operations (downstream, operation, terms) \
         SELECT downstream, operation, id FROM aftercommit_terms WHERE downstream = ?1 AND operation = ?2 \
             AND request_sha256 = ?3 AND contract = ?4 AND policy = ?5 AND timeout_us = ?6 \
         ON CONFLICT (downstream, operation) DO UPDATE SET terms = excluded.terms RETURNING terms",
    )
    .bind(downstream.to_owned())
    .bind(operation.to_owned())
    .bind(request.to_vec())
    .bind(contract)
    .bind(policy)
    .bind(duration_micros(terms.timeout))
    .fetch_one(conn)
    .await
    .map_err(StoreError::during(doing))
}

/// What the configuration no longer has is no operation of today: nothing that was sent under it would be rendered as it was.
async fn forget_operations(
    conn: &mut SqliteConnection,
    downstream: &RegisteredDownstream,
) -> Result<(), StoreError> {
    let known = downstream.operations.iter().map(|(operation, ..)| operation).chain(&downstream.kept);
    let names: Vec<&str> = known.map(|operation| operation.as_deref().unwrap_or_default()).collect();
    sqlx::query(
        "DELETE FROM aftercommit_operations \
         WHERE downstream = ?1 AND operation NOT IN (SELECT value FROM json_each(?2))",
    )
    .bind(downstream.name.to_string())
    .bind(serde_json::to_string(&names).expect("names always serialise"))
    .execute(conn)
    .await
    .map_err(StoreError::during("registering terms"))?;
    Ok(())
}

/// Where a window became narrower, the sweep looks at its uncertain effects earlier.
async fn narrow(conn: &mut SqliteConnection, downstream: &str) -> Result<(), StoreError> {
    // A key that promises nothing any more (no window is published, or it does not deduplicate): looked at at once.
    sqlx::query(
        "WITH promised AS ( \
             SELECT q.id, q.first_sent_at, today.margin_us + today.timeout_us AS ahead, \
                 CASE WHEN today.dedupe = 'key' THEN coalesce(today.window_us, 0) ELSE 0 END AS window_us \
             FROM aftercommit_queue AS q JOIN aftercommit_effects AS e ON e.id = q.id \
             JOIN aftercommit_operations AS op \
                 ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '') \
             JOIN aftercommit_terms AS today ON today.id = op.terms \
             JOIN aftercommit_terms AS sent ON sent.id = q.terms \
             WHERE q.downstream = ?1 AND q.uncertain = 1 AND q.lane IN ('r', 't') AND q.resend = 0 \
                 AND q.first_sent_at IS NOT NULL AND 'key' IN (sent.dedupe, today.dedupe)) \
         UPDATE aftercommit_queue SET sweep_at = p.first_sent_at + p.window_us - p.ahead FROM promised AS p \
         WHERE p.id = aftercommit_queue.id \
             AND p.window_us < coalesce(sweep_at, 9223372036854775807) - p.first_sent_at + p.ahead",
    )
    .bind(downstream.to_owned())
    .execute(conn)
    .await
    .map_err(StoreError::during("registering terms"))?;
    Ok(())
}

/// Forgets a worker.
pub(super) async fn leave(conn: &mut SqliteConnection, worker: String) -> Result<(), StoreError> {
    sqlx::query("DELETE FROM aftercommit_workers WHERE name = ?1")
        .bind(worker)
        .execute(conn)
        .await
        .map_err(StoreError::during("leaving"))?;
    Ok(())
}

/// Today's terms of an operation; of one that the configuration lost, the last; of one that it never had, the default
/// operation's: what is left of either must be swept, too.
pub(super) async fn terms(
    conn: &mut SqliteConnection,
    downstream: &str,
    operation: Option<&str>,
) -> Result<Option<RegisteredTerms>, StoreError> {
    let row = sqlx::query(
        "SELECT t.id, t.contract, t.policy, t.timeout_us FROM aftercommit_terms AS t \
         LEFT JOIN aftercommit_operations AS op ON op.terms = t.id \
         WHERE t.downstream = ?1 AND t.operation IN (?2, '') \
         ORDER BY t.operation <> ?2, op.terms IS NULL, t.id DESC LIMIT 1",
    )
    .bind(downstream.to_owned())
    .bind(operation.unwrap_or_default().to_owned())
    .fetch_optional(conn)
    .await
    .map_err(StoreError::during("reading terms"))?;
    row.as_ref().map(super::row::terms).transpose()
}
