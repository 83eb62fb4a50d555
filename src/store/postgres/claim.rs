//! The claim: one statement, one round trip, durable before it returns.
//!
//! Ready rows are scanned by (xid, id) from a watermark, so that neither claimed nor dead rows are passed again. A
//! transaction that was still open when the watermark passed its number is remembered, and its rows are looked for by that
//! number once it has ended: late commits are found exactly. One hole is left: a claim that rolls back had its rows skipped
//! by everybody else; a second look from a floor (the oldest live row) finds them, once a second.

use std::{collections::HashMap, sync::Arc, time::Duration};

use sqlx::{Row, postgres::PgRow};
use tokio::{sync::Mutex, time::Instant};

use super::{
    PgStore, durable, row,
    scan::{Look, Scan, Snapshot, note_floor},
    statement::sql,
};
use crate::{
    clock::{Timestamp, duration_micros},
    contract::Window,
    effect::EffectId,
    error::StoreError,
    store::{Claim, Token, Want},
};

/// Longer leases would not fit an interval's arithmetic.
const LEASE_MAX: Duration = Duration::from_secs(10 * 365 * 24 * 3600);

/// How far this process has looked, and what it knows of the terms. Claims of one process run one after another.
#[derive(Debug, Default)]
pub(super) struct Watermarks(Mutex<Looked>);

#[derive(Debug, Default)]
struct Looked {
    downstreams: HashMap<Arc<str>, Scan>,
    /// Terms by number: their rows never change.
    terms: HashMap<i64, Pinned>,
    /// Whether due (timed) effects go first in the next claim: each lane is first every other time, so that neither starves.
    due_first: bool,
}

#[derive(Clone, Copy, Debug)]
struct Pinned {
    request_sha256: [u8; 32],
    window: Option<Window>,
}

/// Claims. `want` is one row per downstream; `picked` locks no more than the slots, because Append and LIMIT are lazy and
/// every part has its own limit; late rows are
/// looked for one transaction after the other, since `xid = ANY` becomes a filter over all that lies below the watermark;
/// the row is found by its address, which keeps the planner from scanning. The bound on
/// `due_at` is a sub-select, since a volatile function is no index condition. Only `token`, `claimed` and other unindexed
/// columns are written: a HOT update. Served by queue_ready and queue_timed.
const CLAIM: &str = concat!(
    "WITH want AS MATERIALIZED (
  SELECT w.ord, w.downstream, w.slots, w.lease_us, w.xid::xid8 AS xid, w.id, string_to_array(w.late, ',')::xid8[] AS late,
         w.relook
  FROM unnest($1::text[], $2::int4[], $3::int8[], $4::text[], $5::int8[], $6::text[], $7::bool[], $13::bool[], $14::text[])
       WITH ORDINALITY AS w (downstream, slots, lease_us, xid, id, late, relook, trial, origin, ord)
  -- Sub-selects, not joins: they are looked up row by row, whatever the planner thinks of the tables' sizes.
  WHERE NOT coalesce((SELECT d.paused_at IS NOT NULL FROM aftercommit.downstreams AS d WHERE d.name = w.downstream), false)
    AND NOT coalesce((
      SELECT coalesce(o.paused_until > clock_timestamp(), false) OR (o.open_until IS NOT NULL AND NOT w.trial)
      FROM aftercommit.origins AS o WHERE o.origin = w.origin), false)
    AND NOT EXISTS (SELECT FROM aftercommit.hold)
), moment AS MATERIALIZED (
  SELECT clock_timestamp() AS now_at, ",
    durable!(),
    " AS durable
), picked AS MATERIALIZED (
  SELECT p.tid, p.id, p.xid, p.src, w.ord FROM want AS w CROSS JOIN LATERAL (
    SELECT * FROM (
      SELECT * FROM (
        SELECT l.* FROM unnest(w.late) AS o (xid) CROSS JOIN LATERAL (
          SELECT q.ctid AS tid, q.id, q.xid, 'l' AS src FROM aftercommit.queue AS q
          WHERE q.downstream = w.downstream AND q.lane = 'r' AND q.xid = o.xid AND NOT q.claimed
          LIMIT w.slots FOR UPDATE SKIP LOCKED) AS l
        LIMIT w.slots) AS late
      UNION ALL
      SELECT * FROM (
        SELECT q.ctid, q.id, q.xid, 't' FROM aftercommit.queue AS q
        WHERE q.downstream = w.downstream AND q.lane = 't' AND q.due_at <= (SELECT now_at FROM moment) AND NOT q.claimed
        ORDER BY q.due_at, q.id LIMIT CASE WHEN $8 THEN w.slots ELSE 0 END FOR UPDATE SKIP LOCKED) AS due_first
      UNION ALL
      SELECT * FROM (
        SELECT q.ctid, q.id, q.xid, 'n' FROM aftercommit.queue AS q
        WHERE q.downstream = w.downstream AND q.lane = 'r' AND (q.xid, q.id) > (w.xid, w.id) AND NOT q.claimed
        ORDER BY q.xid, q.id LIMIT w.slots FOR UPDATE SKIP LOCKED) AS new
      UNION ALL
      SELECT * FROM (
        SELECT q.ctid, q.id, q.xid, 't' FROM aftercommit.queue AS q
        WHERE q.downstream = w.downstream AND q.lane = 't' AND q.due_at <= (SELECT now_at FROM moment) AND NOT q.claimed
        ORDER BY q.due_at, q.id LIMIT CASE WHEN $8 THEN 0 ELSE w.slots END FOR UPDATE SKIP LOCKED) AS due_last
    ) AS lanes LIMIT w.slots) AS p
), tok AS MATERIALIZED (
  SELECT ord, nextval('aftercommit.tokens') AS token FROM (SELECT DISTINCT ord FROM picked) AS ords
), held AS (
  INSERT INTO aftercommit.claims (token, worker, claimed_at, lease_until, ids)
  SELECT t.token, $9, m.now_at, m.now_at + w.lease_us * interval '1 microsecond', p.ids
  FROM (SELECT ord, array_agg(id) AS ids FROM picked GROUP BY ord) AS p
  JOIN tok AS t USING (ord) JOIN want AS w USING (ord) CROSS JOIN moment AS m
), u AS (
  UPDATE aftercommit.queue AS q
  SET token = t.token, claimed = true, swept = false, attempts = q.attempts + 1, tries = q.tries + 1, number = q.number + 1,
      started_at = coalesce(q.started_at, m.now_at), first_sent_at = coalesce(q.first_sent_at, m.now_at),
      terms = CASE WHEN q.uncertain THEN q.terms
                   ELSE ($11::int8[])[array_position($10::text[], q.downstream || chr(31) || coalesce(q.operation, ''))] END
  FROM picked AS p JOIN tok AS t USING (ord) CROSS JOIN moment AS m
  WHERE q.ctid = p.tid
  RETURNING q.id, q.token, q.attempts, q.tries, q.number, q.started_at, q.first_sent_at, q.terms, q.uncertain, q.sent_before,
    q.expires_at, q.resend, q.resend_unconfirmed, q.cancel_requested, q.applied_late, q.quiet_at, p.ord, p.src, p.xid
), head AS MATERIALIZED (
  SELECT m.now_at, m.durable, pg_current_snapshot()::text AS snapshot, (
    SELECT array_agg(w.ord || ':' || (
        SELECT q.xid::text || ':' || q.id FROM aftercommit.queue AS q
        WHERE q.downstream = w.downstream AND q.lane = 'r' AND (q.xid, q.id) > (w.xid, w.id)
        ORDER BY q.xid, q.id LIMIT 1))
    FROM want AS w WHERE w.relook) AS floors, (SELECT array_agg(w.ord) FROM want AS w) AS looked
  FROM moment AS m
)
SELECT CASE row_number() OVER () WHEN 1 THEN h.snapshot END AS snapshot,
       CASE row_number() OVER () WHEN 1 THEN h.floors END AS floors,
       CASE row_number() OVER () WHEN 1 THEN h.looked END AS looked,
       h.now_at, h.durable, u.id, u.token, u.attempts, u.tries, u.number, u.started_at, u.first_sent_at, u.terms, u.uncertain,
       u.sent_before, u.expires_at, u.resend, u.resend_unconfirmed, u.cancel_requested, u.applied_late, u.quiet_at, u.ord, u.src,
       u.xid::text AS xid,
       CASE WHEN u.terms <> ALL ($12::int8[]) THEN
         (SELECT t.request_sha256 FROM aftercommit.terms AS t WHERE t.id = u.terms) END AS request_sha256,
       CASE WHEN u.terms <> ALL ($12::int8[]) THEN
         (SELECT t.window_us FROM aftercommit.terms AS t WHERE t.id = u.terms) END AS window_us,
       e.downstream, e.operation, e.idempotency_key, e.payload::text AS payload, e.body, e.content_type,
       e.headers::text AS headers, e.target, e.metadata::text AS metadata, e.trace_context, e.created_at
FROM head AS h LEFT JOIN u ON true LEFT JOIN aftercommit.effects AS e ON e.id = u.id"
);

/// The arrays of one claim.
#[derive(Default)]
struct Arguments {
    downstreams: Vec<Arc<str>>,
    slots: Vec<i32>,
    leases: Vec<i64>,
    xids: Vec<String>,
    ids: Vec<i64>,
    late: Vec<String>,
    relook: Vec<bool>,
    trials: Vec<bool>,
    origins: Vec<Option<Arc<str>>>,
    operations: Vec<String>,
    terms: Vec<i64>,
}

impl Arguments {
    fn of(wants: &[&Want], looked: &mut Looked, now: Instant) -> Self {
        let mut arguments = Self::default();
        for want in wants {
            let scan = looked.downstreams.entry(Arc::clone(&want.downstream)).or_default();
            let relook = scan.relook_is_due(now);
            let (xid, id) = if relook { scan.floor } else { scan.watermark };
            let late = if relook { Vec::new() } else { scan.open.iter().map(u64::to_string).collect() };
            arguments.downstreams.push(Arc::clone(&want.downstream));
            arguments.slots.push(i32::try_from(want.slots).unwrap_or(i32::MAX));
            arguments.leases.push(duration_micros(want.lease.min(LEASE_MAX)));
            arguments.xids.push(xid.to_string());
            arguments.ids.push(id);
            arguments.late.push(late.join(","));
            arguments.relook.push(relook);
            arguments.trials.push(want.trial);
            arguments.origins.push(want.origin.clone());
            for (operation, terms) in &want.terms {
                arguments.operations.push(format!(
                    "{}\u{1f}{}",
                    want.downstream,
                    operation.as_deref().unwrap_or("")
                ));
                arguments.terms.push(*terms);
            }
        }
        arguments
    }
}

impl PgStore {
    pub(super) async fn claim_due(&self, worker: &str, wants: &[Want]) -> Result<Vec<Claim>, StoreError> {
        let wants: Vec<&Want> = wants.iter().filter(|want| want.slots > 0).collect();
        if wants.is_empty() {
            return Ok(Vec::new());
        }
        let mut looked = self.claims.0.lock().await;
        let asked_at = Instant::now();
        let arguments = Arguments::of(&wants, &mut looked, asked_at);
        let due_first = looked.due_first;
        looked.due_first = !due_first;
        let known: Vec<i64> = looked.terms.keys().copied().collect();
        let downstreams: Vec<&str> = arguments.downstreams.iter().map(AsRef::as_ref).collect();
        let origins: Vec<Option<&str>> = arguments.origins.iter().map(Option::as_deref).collect();
        let statement = sql(CLAIM)
            .bind(&downstreams)
            .bind(&arguments.slots)
            .bind(&arguments.leases)
            .bind(&arguments.xids)
            .bind(&arguments.ids)
            .bind(&arguments.late)
            .bind(&arguments.relook)
            .bind(due_first)
            .bind(worker)
            .bind(&arguments.operations)
            .bind(&arguments.terms)
            .bind(&known)
            .bind(&arguments.trials)
            .bind(&origins);
        let rows = self.all(statement).await.map_err(StoreError::during("claiming"))?;
        looked.take_in(&arguments, &rows, asked_at)?;
        let mut claims = Vec::with_capacity(rows.len());
        for row in &rows {
            if let Some(id) = row::get::<Option<i64>>(row, "id")? {
                match looked.claim(EffectId::new(id), row, &arguments) {
                    Ok(claim) => claims.push(claim),
                    // One row that cannot be read must not take the others with it; the sweep will come back to it.
                    Err(error) => tracing::error!(effect = id, %error, "a claimed effect cannot be read"),
                }
            }
        }
        claims.sort_unstable_by_key(|claim| claim.effect.id);
        Ok(claims)
    }
}

impl Looked {
    /// Moves the watermarks and learns new terms.
    fn take_in(
        &mut self,
        arguments: &Arguments,
        rows: &[PgRow],
        asked_at: Instant,
    ) -> Result<(), StoreError> {
        let mut looks: Vec<Look> = arguments.slots.iter().map(|_| Look::default()).collect();
        let mut snapshot = None;
        let mut looked = Vec::new();
        for row in rows {
            if let Some(text) = row::get::<Option<String>>(row, "snapshot")? {
                snapshot = Snapshot::parse(&text);
                looked = row::get::<Option<Vec<i64>>>(row, "looked")?.unwrap_or_default();
                for floor in row::get::<Option<Vec<Option<String>>>>(row, "floors")?.into_iter().flatten() {
                    note_floor(&mut looks, floor.as_deref());
                }
            }
            let Some(ord) = row::get::<Option<i64>>(row, "ord")? else { continue };
            let Some(look) = usize::try_from(ord - 1).ok().and_then(|ord| looks.get_mut(ord)) else {
                continue;
            };
            look.found += 1;
            let source: &str = row.try_get("src").map_err(StoreError::during("reading a row"))?;
            let xid: String = row::get(row, "xid")?;
            let position = (xid.parse().unwrap_or(0), row::get::<i64>(row, "id")?);
            match source {
                "l" => look.late += 1,
                "n" => look.last_new = look.last_new.max(Some(position)),
                _ => {}
            }
            self.learn_terms(row)?;
        }
        // A statement of its own cannot lack its snapshot; without one, only the look from the floor would find late rows.
        let Some(snapshot) = snapshot else { return Ok(()) };
        let now = Instant::now();
        // What is paused or held was not looked at: nothing of its scan may move, or rows would be passed unseen.
        let looked = looked.into_iter().filter_map(|ord| usize::try_from(ord - 1).ok());
        for index in looked.filter(|index| *index < looks.len()) {
            let look = &looks[index];
            let Some(scan) = self.downstreams.get_mut(&arguments.downstreams[index]) else { continue };
            let slots = u32::try_from(arguments.slots[index]).unwrap_or(u32::MAX);
            if arguments.relook[index] {
                scan.advance_from_floor(look, slots, &snapshot);
                scan.relooked(asked_at, now);
            } else {
                scan.advance(look, slots, &snapshot);
            }
        }
        Ok(())
    }

    fn learn_terms(&mut self, row: &PgRow) -> Result<(), StoreError> {
        let terms: Option<i64> = row::get(row, "terms")?;
        let hash: Option<Vec<u8>> = row::get(row, "request_sha256")?;
        if let (Some(terms), Some(request_sha256)) = (terms, hash.and_then(|hash| hash.try_into().ok())) {
            let window = row::get::<Option<i64>>(row, "window_us")?.map(Window::from_micros);
            self.terms.insert(terms, Pinned { request_sha256, window });
        }
        Ok(())
    }

    fn claim(&self, id: EffectId, row: &PgRow, arguments: &Arguments) -> Result<Claim, StoreError> {
        let pinned = row::get::<Option<i64>>(row, "terms")?.and_then(|terms| self.terms.get(&terms));
        let mut history = row::history(row)?;
        history.window_at_claim = pinned.and_then(|pinned| pinned.window);
        let ord: i64 = row::get(row, "ord")?;
        let downstream = usize::try_from(ord - 1).ok().and_then(|ord| arguments.downstreams.get(ord));
        let downstream = match downstream {
            Some(downstream) => Arc::clone(downstream),
            None => row::get::<String>(row, "downstream")?.into(),
        };
        let effect = row::effect(row, id, downstream)?;
        Ok(Claim {
            effect: Arc::new(effect),
            token: Token::new(row::get(row, "token")?),
            history,
            number: row::count(row, "number")?,
            pinned: pinned.map(|pinned| pinned.request_sha256),
            claimed_at: row::get::<Timestamp>(row, "now_at")?,
        })
    }
}
