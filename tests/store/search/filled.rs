//! Many effects in every state, written into the tables themselves by statements over whole ranges: the way of an INSERT takes
//! hours at ten million.
//!
//! Of a hundred effects, in the order of their numbers, ten are pending (nearly all of them among the newest tenth), one has failed or
//! is in doubt, the rest has ended. They were written over ninety days, the newest a moment ago.

use aftercommit::store::Database;
use futures_util::future::join_all;
use sqlx::{AssertSqlSafe, Connection as _, PgConnection};

use crate::support::{Worker, key_terms, registered};

/// The downstreams; `tax` has one effect in a hundred thousand of ten million, and the others a third each.
pub(crate) const DOWNSTREAMS: [&str; 4] = ["crm", "mail", "pay", "tax"];

/// What an effect is, by its number. They go when everything is written.
const RULES: &str = "
CREATE SCHEMA filling;
CREATE FUNCTION filling.kind(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE
    WHEN n <= @OLD@ THEN CASE WHEN n % 900 = 1 THEN 'ready' WHEN n % 450 = 7 THEN 'in_doubt' WHEN n % 90 = 7 THEN 'failed'
      WHEN n % 1000 = 500 THEN 'cancelled' WHEN n % 1000 = 600 THEN 'expired' ELSE 'succeeded' END
    WHEN n % 100 = 0 THEN 'succeeded'
    WHEN n > @LAST@ AND n % 10 = 1 THEN 'in_flight'
    WHEN n % 10 IN (7, 8) THEN 'scheduled'
    WHEN n % 10 = 9 THEN 'retrying'
    WHEN n % 10 = 0 THEN 'due'
    ELSE 'ready' END $$;
CREATE FUNCTION filling.downstream(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN n % @RARE@ = 7 THEN 'tax' ELSE (ARRAY['crm', 'mail', 'pay'])[(1 + n % 3)::integer] END $$;
CREATE FUNCTION filling.operation(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT (ARRAY['charge', 'refund', 'receipt', 'sync', 'book', 'ship', 'notify'])[(1 + n % 7)::integer] $$;
CREATE FUNCTION filling.error(n bigint) RETURNS text LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE (n / 90) % 3 WHEN 0 THEN '402: card card_' || n || ' declined'
    WHEN 1 THEN '409: account ' || n || ' has no funds' ELSE 'no answer within 20 s from 10.0.0.' || n % 250 END $$;
CREATE FUNCTION filling.written(n bigint) RETURNS timestamptz LANGUAGE sql STABLE AS $$
  SELECT '@NOW@'::timestamptz - (@ALL@ - n) * interval '@STEP@ microseconds' $$;
CREATE FUNCTION filling.drop_indexes(of regclass) RETURNS text[] LANGUAGE plpgsql AS $$
DECLARE
  made text[] := '{}';
  one record;
BEGIN
  FOR one IN SELECT i.indexrelid::regclass AS name, pg_get_indexdef(i.indexrelid) AS made_by, c.conname,
               pg_get_constraintdef(c.oid) AS made_as
             FROM pg_index AS i LEFT JOIN pg_constraint AS c ON c.conindid = i.indexrelid WHERE i.indrelid = of LOOP
    IF one.conname IS NULL THEN
      EXECUTE format('DROP INDEX %s', one.name);
      made := made || one.made_by;
    ELSE
      EXECUTE format('ALTER TABLE %s DROP CONSTRAINT %I', of, one.conname);
      made := made || format('ALTER TABLE %s ADD CONSTRAINT %I %s', of, one.conname, one.made_as);
    END IF;
  END LOOP;
  RETURN made;
END $$;
ALTER TABLE aftercommit.effects DISABLE TRIGGER USER;";

/// Every number with what it is.
const EACH: &str = "(SELECT s.n, filling.kind(s.n) AS kind, filling.written(s.n) AS at, filling.downstream(s.n) AS downstream
  FROM (SELECT generate_series(1::bigint, @ALL@) AS n) AS s OFFSET 0) AS x";

const EFFECTS: &str = "INSERT INTO aftercommit.effects
  (id, downstream, operation, idempotency_key, payload, metadata, due_at, created_at, enqueued_by) OVERRIDING SYSTEM VALUE
SELECT n, downstream, filling.operation(n), 'order-' || n || '/charge', '{\"amount\": 1200, \"currency\": \"EUR\"}'::json,
  jsonb_build_object('order', 'A-' || n, 'country', 'de'), at, at, 'shop' FROM @EACH@";

/// A first attempt that succeeded stands here alone.
const OUTCOMES: &str = "INSERT INTO aftercommit.outcomes
  (effect_id, token, finished_at, number, state, downstream, note, response_status, response, started_at, ended_at, worker, phase)
SELECT n, n, at + interval '1 second', CASE kind WHEN 'cancelled' THEN 0 ELSE 1 END, kind, downstream,
  CASE kind WHEN 'failed' THEN filling.error(n) WHEN 'cancelled' THEN 'by ann' WHEN 'expired' THEN 'its time was over' END,
  CASE kind WHEN 'succeeded' THEN 200 WHEN 'failed' THEN 402 END, CASE kind WHEN 'succeeded' THEN '{\"id\": \"ch_1\"}'::json END,
  CASE kind WHEN 'succeeded' THEN at END, CASE kind WHEN 'succeeded' THEN at + interval '1 second' END,
  CASE kind WHEN 'succeeded' THEN 'w1' END, CASE kind WHEN 'succeeded' THEN 'done' END
FROM @EACH@ WHERE kind IN ('succeeded', 'failed', 'cancelled', 'expired')";

const ATTEMPTS: &str = "INSERT INTO aftercommit.attempts
  (effect_id, token, number, response_status, started_at, ended_at, worker, phase, outcome, error)
SELECT n, n, 1, CASE kind WHEN 'failed' THEN 402 END, at, at + interval '1 second', 'w1',
  CASE kind WHEN 'failed' THEN 'done' WHEN 'in_doubt' THEN 'send' ELSE 'connect' END,
  CASE kind WHEN 'failed' THEN 'rejected' WHEN 'in_doubt' THEN 'unknown' ELSE 'not_applied' END, filling.error(n)
FROM @EACH@ WHERE kind IN ('failed', 'in_doubt', 'retrying', 'due')";

const QUEUE: &str = "INSERT INTO aftercommit.queue
  (id, token, due_at, started_at, first_sent_at, terms, attempts, tries, number, lane, claimed, uncertain, downstream, operation, note)
SELECT n, CASE kind WHEN 'in_flight' THEN @ALL@ + 1 WHEN 'ready' THEN 0 WHEN 'scheduled' THEN 0 ELSE n END,
  CASE WHEN kind = 'in_doubt' THEN NULL WHEN kind IN ('scheduled', 'retrying') THEN at + interval '10 days' ELSE at END,
  CASE WHEN tried > 0 THEN at END, CASE WHEN kind IN ('in_doubt', 'in_flight') THEN at END,
  CASE WHEN tried > 0 THEN (SELECT o.terms FROM aftercommit.operations AS o WHERE o.downstream = y.downstream AND o.operation = '') END,
  tried, tried, tried,
  CASE WHEN kind = 'in_doubt' THEN 'd' WHEN kind IN ('ready', 'in_flight') THEN 'r' ELSE 't' END::\"char\",
  kind = 'in_flight', kind = 'in_doubt', downstream, filling.operation(n), CASE WHEN kind = 'in_doubt' THEN filling.error(n) END
FROM (SELECT x.*, CASE WHEN kind IN ('ready', 'scheduled') THEN 0 ELSE 1 END AS tried FROM @EACH@
      WHERE kind IN ('ready', 'scheduled', 'retrying', 'due', 'in_flight', 'in_doubt')) AS y";

const AUDIT: &str = "INSERT INTO aftercommit.audit (at, who, verb, effect_id, downstream)
SELECT at, 'who' || (n / 100) % 50, 'retry', n, downstream FROM @EACH@ WHERE n % 100 = 7";

/// Deltas that nobody folded yet, as many as a busy minute leaves; the numbers that go on from here; and what ended when.
const REST: &str = "
INSERT INTO aftercommit.counters (downstream, state, n)
  SELECT o.downstream, o.state, count(*) FROM aftercommit.outcomes AS o GROUP BY 1, 2, o.effect_id / (@ALL@ / 50);
INSERT INTO aftercommit.traffic (per, at, downstream, state, n)
  SELECT p.per, date_trunc(p.per, now() - g * p.length, 'UTC'), d, s, 40
  FROM (VALUES ('minute', interval '1 minute', 1500), ('hour', interval '1 hour', 190)) AS p (per, length, most)
  CROSS JOIN LATERAL generate_series(CASE p.per WHEN 'hour' THEN 25 ELSE 0 END, p.most) AS g
  CROSS JOIN unnest(ARRAY['crm', 'mail', 'pay']) AS d CROSS JOIN unnest(ARRAY['succeeded', 'failed']) AS s;
INSERT INTO aftercommit.claims (token, worker, claimed_at, lease_until, ids)
  SELECT @ALL@ + 1, 'w1', now(), now() + interval '1 day', array_agg(id) FROM aftercommit.queue WHERE claimed;
SELECT setval('aftercommit.tokens', @ALL@ + 1), setval(pg_get_serial_sequence('aftercommit.effects', 'id'), @ALL@);
UPDATE aftercommit.workers SET seen_at = now() + interval '1 day';
ALTER TABLE aftercommit.effects ENABLE TRIGGER USER;
DROP SCHEMA filling CASCADE;";

/// Writes `all` effects into an empty database, which comes to rest then.
pub(crate) async fn fill(url: &str, store: &std::sync::Arc<dyn Database>, all: i64) {
    let registered = DOWNSTREAMS.map(|name| registered(name, key_terms())).to_vec();
    Worker::start(store, "w1", registered).await;
    let now = one(url, "SELECT to_char(now(), 'YYYY-MM-DD HH24:MI:SSOF')").await;
    let put = |text: &str| {
        let numbers = [
            ("@ALL@", all),
            ("@OLD@", all / 10 * 9),
            ("@LAST@", all - all / 10_000),
            ("@RARE@", all / 100),
            ("@STEP@", 90 * 86_400_000_000 / all),
        ];
        let text = text.replace("@EACH@", EACH).replace("@NOW@", &now);
        numbers.into_iter().fold(text, |text, (name, number)| text.replace(name, &number.to_string()))
    };
    run(url, put(RULES)).await;
    let tables = [
        ("effects", EFFECTS),
        ("outcomes", OUTCOMES),
        ("attempts", ATTEMPTS),
        ("queue", QUEUE),
        ("audit", AUDIT),
    ];
    // The largest by itself, beside all the others: as many at a time as the machine has cores.
    let ((largest, others), put) = (tables.split_at(1), &put);
    join_all([largest, others].map(|tables| async move {
        for (table, insert) in tables {
            run(url, table_written(table, &put(insert))).await;
        }
    }))
    .await;
    run(url, put(REST)).await;
    join_all([largest, others].map(|tables| async move {
        for (table, _) in tables {
            run(url, format!("VACUUM (ANALYZE) aftercommit.{table}")).await;
        }
    }))
    .await;
    run(url, "ANALYZE".to_owned()).await;
    run(url, "CHECKPOINT".to_owned()).await;
}

/// In one transaction with TRUNCATE, so that nothing is logged twice where nothing need be; its indexes are built at the end.
fn table_written(table: &str, insert: &str) -> String {
    format!(
        "BEGIN;
         TRUNCATE aftercommit.{table};
         CREATE TEMP TABLE made ON COMMIT DROP AS SELECT filling.drop_indexes('aftercommit.{table}') AS by;
         {insert};
         DO $$ DECLARE one text; BEGIN
           FOR one IN SELECT unnest(m.by) FROM made AS m LOOP EXECUTE one; END LOOP;
         END $$;
         COMMIT"
    )
}

async fn run(url: &str, text: String) {
    let mut connection = PgConnection::connect(url).await.expect("the server answers");
    let sql = AssertSqlSafe(text.clone());
    sqlx::raw_sql(sql)
        .execute(&mut connection)
        .await
        .unwrap_or_else(|error| panic!("{text}\nfailed: {error}"));
    connection.close().await.expect("the connection closes");
}

async fn one(url: &str, text: &'static str) -> String {
    let mut connection = PgConnection::connect(url).await.expect("the server answers");
    sqlx::query_scalar(text).fetch_one(&mut connection).await.expect("it says when it is")
}
