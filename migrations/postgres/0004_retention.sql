-- 0004 Retention: what is dropped when, and what outlives it.
--
-- Of an effect that has ended, the payload goes first, then the history (attempt log and response), then the key with all
-- that is left. `outcomes.kept` says what is still there, in the row that a person's verb locks, and its index gives each
-- step its work in the order in which it falls due: no step ever looks through a table.

-- 3: payload and history; 2: history; 1: payload; 0: the key. A constant default: the table is not rewritten. Only where it is
-- missing, and the check without a look at old rows, of which none can violate it: both statements take ACCESS EXCLUSIVE, and
-- keep it until the migration commits. See migrations/README.md for what to do by hand first where `outcomes` is large.
DO $kept$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'aftercommit.outcomes'::regclass AND attname = 'kept') THEN
    ALTER TABLE aftercommit.outcomes ADD COLUMN kept smallint NOT NULL DEFAULT 3;
  END IF;
  IF NOT EXISTS (SELECT FROM pg_constraint WHERE conrelid = 'aftercommit.outcomes'::regclass AND conname = 'outcomes_kept') THEN
    ALTER TABLE aftercommit.outcomes ADD CONSTRAINT outcomes_kept CHECK (kept BETWEEN 0 AND 3) NOT VALID;
  END IF;
  -- An index that failed to be built has the name and serves nobody: every batch would read all of `outcomes`.
  IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('aftercommit.outcomes_retention') AND NOT indisvalid) THEN
    RAISE EXCEPTION 'the index aftercommit.outcomes_retention is INVALID: its CREATE INDEX CONCURRENTLY failed'
      USING HINT = 'DROP INDEX CONCURRENTLY aftercommit.outcomes_retention, build it again, then run aftercommit migrate again.';
  END IF;
  -- What has just ended is the greatest entry, so that a settle appends to the last leaf; all of a batch share one time,
  -- hence nearly one entry. On ten million rows it takes about ten seconds, in which nobody settles, nor reads where this step
  -- made the column. Not IF NOT EXISTS: that locks out writers before it finds that there is nothing to do.
  IF to_regclass('aftercommit.outcomes_retention') IS NULL THEN
    CREATE INDEX outcomes_retention ON aftercommit.outcomes (kept, finished_at);
  END IF;
END
$kept$;

-- Deleted rows are a small part of a table that keeps 400 days: the default (a fifth of the table) would let the dead ones
-- pile up for months.
ALTER TABLE aftercommit.outcomes SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
ALTER TABLE aftercommit.effects SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
ALTER TABLE aftercommit.attempts SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

-- A row per step and what it finds kept. Whoever purges holds the row for one batch, so that a fleet purges in one place at
-- a time, in a transaction and not in a session. `reached`: every older outcome was looked at since `from_start_at`; it keeps
-- a look from passing, again and again, the index entries of rows that are gone and not yet vacuumed. `looked_at`: the
-- clock when it was last believed. Keys are not dropped by one that is a day ahead of it: it may have jumped, and a key that
-- was dropped too early lets a payment be made twice.
CREATE TABLE aftercommit.retention (
  step          text NOT NULL CHECK (step IN ('payloads', 'history', 'keys')),
  kept          smallint NOT NULL,
  reached       timestamptz NOT NULL DEFAULT '-infinity',
  from_start_at timestamptz NOT NULL DEFAULT '-infinity',
  looked_at     timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (step, kept)
) WITH (fillfactor = 50);
INSERT INTO aftercommit.retention (step, kept)
VALUES ('payloads', 3), ('payloads', 1), ('history', 3), ('history', 2), ('keys', 0);

-- When retention first saw that no operation of today has these terms any more, and when it last found that the queue refers
-- to them still: it does not look through the queue for them again for a day.
ALTER TABLE aftercommit.terms ADD COLUMN retired_at timestamptz, ADD COLUMN used_at timestamptz;

-- What a person did to no effect in particular; the rest goes with its effect.
CREATE INDEX audit_general ON aftercommit.audit (at) WHERE effect_id IS NULL;

-- What makes two effects of one key the same request: before each part whether it is there (one byte) and how long it is
-- (64 bits, big-endian), so that no two requests share their bytes; SHA-256. `needs` is a JSON array without spaces. The same
-- bytes as effect/fingerprint.rs. One expression without settings of its own, so that it is inlined: 10 µs instead of 54 where
-- the parts were unnested and aggregated.
CREATE FUNCTION aftercommit.fingerprint(
  operation text, payload text, body bytea, content_type text, headers text, target text, ordering_key text, needs text,
  bindings text, undoes text)
RETURNS bytea LANGUAGE sql STABLE AS $$
  SELECT sha256(
    coalesce('\x01'::bytea || int8send(octet_length(convert_to(operation, 'UTF8'))::bigint) || convert_to(operation, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(payload, 'UTF8'))::bigint) || convert_to(payload, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(body)::bigint) || body, '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(content_type, 'UTF8'))::bigint) || convert_to(content_type, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(headers, 'UTF8'))::bigint) || convert_to(headers, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(target, 'UTF8'))::bigint) || convert_to(target, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(ordering_key, 'UTF8'))::bigint) || convert_to(ordering_key, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(needs, 'UTF8'))::bigint) || convert_to(needs, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(bindings, 'UTF8'))::bigint) || convert_to(bindings, 'UTF8'), '\x00'::bytea)
    || coalesce('\x01'::bytea || int8send(octet_length(convert_to(undoes, 'UTF8'))::bigint) || convert_to(undoes, 'UTF8'), '\x00'::bytea))
$$;

-- As in step 1; where retention dropped the payload, the fingerprint decides instead of the columns.
CREATE OR REPLACE FUNCTION aftercommit.existing(
  downstream text, idempotency_key text, operation text, payload text, body bytea, content_type text, headers text,
  target text, OUT id bigint, OUT state text, OUT identical boolean)
RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.id,
         -- Who does not know the request learns nothing about the effect but that its key is taken.
         CASE WHEN NOT same.request THEN NULL
              WHEN o.state IS NOT NULL THEN o.state
              WHEN q.lane = 'd' OR q.id IS NULL THEN 'in_doubt'
              WHEN q.claimed THEN 'in_flight'
              WHEN q.lane = 'w' THEN 'waiting'
              WHEN q.lane = 'r' OR q.due_at <= statement_timestamp() THEN 'ready'
              WHEN q.tries > 0 THEN 'retrying'
              ELSE 'scheduled' END,
         same.request
  FROM aftercommit.effects AS e
  CROSS JOIN LATERAL (SELECT
    CASE WHEN e.fingerprint IS NOT NULL
      THEN e.fingerprint = aftercommit.fingerprint(existing.operation, existing.payload, existing.body,
        existing.content_type, existing.headers, existing.target, NULL, NULL, NULL, NULL)
      ELSE ROW (e.operation, e.payload::text, e.body, e.content_type, e.headers::text, e.target)
        IS NOT DISTINCT FROM
      ROW (existing.operation, existing.payload, existing.body, existing.content_type, existing.headers, existing.target)
      AND e.ordering_key IS NULL AND e.needs IS NULL AND e.bindings IS NULL AND e.undoes IS NULL
    END) AS same (request)
  LEFT JOIN aftercommit.queue AS q ON q.id = e.id
  LEFT JOIN aftercommit.outcomes AS o ON o.effect_id = e.id
  WHERE e.downstream = existing.downstream AND e.idempotency_key = existing.idempotency_key
$$;

-- Effects whose payload was dropped, for those who may see that and not the fingerprint, by which a payload could be guessed.
CREATE VIEW aftercommit.payloads_dropped AS SELECT id FROM aftercommit.effects WHERE fingerprint IS NOT NULL;

-- The steps are functions, since nobody who works or operates may write what applications wrote or what people did: each
-- touches effects only that have an outcome and are not queued. The outcome's row is held first, as a person's verb holds it.

CREATE FUNCTION aftercommit.drop_payloads(ids bigint[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH ended AS (
    UPDATE aftercommit.outcomes AS o SET kept = o.kept & 2::int2
    WHERE o.effect_id = ANY (drop_payloads.ids)
      AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = o.effect_id)
    RETURNING o.effect_id
  )
  UPDATE aftercommit.effects AS e
  SET payload = NULL, body = NULL, headers = NULL, fingerprint = aftercommit.fingerprint(e.operation, e.payload::text, e.body,
    e.content_type, e.headers::text, e.target, e.ordering_key, array_to_json(e.needs)::text, e.bindings::text,
    e.undoes::text)
  FROM ended
  -- Where there was nothing to drop no fingerprint is needed: the columns still say what the request was.
  WHERE e.id = ended.effect_id AND e.fingerprint IS NULL
    AND (e.payload IS NOT NULL OR e.body IS NOT NULL OR e.headers IS NOT NULL)
$$;

-- The attempt that the outcome's own row shows goes with the others.
CREATE FUNCTION aftercommit.drop_history(ids bigint[]) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH ended AS (
    UPDATE aftercommit.outcomes AS o
    SET kept = o.kept & 1::int2, response = NULL, response_raw = NULL, started_at = NULL, ended_at = NULL, worker = NULL,
        phase = NULL
    WHERE o.effect_id = ANY (drop_history.ids)
      AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = o.effect_id)
    RETURNING o.effect_id
  )
  DELETE FROM aftercommit.attempts AS a USING ended WHERE a.effect_id = ended.effect_id
$$;

-- All that is left, with what people did. The log goes last and by a statement of its own: a late answer holds the effect
-- while it is logged, so that deleting the effect waits for it, and only what begins afterwards sees its row. In the other
-- order the two could wait for each other.
CREATE FUNCTION aftercommit.drop_keys(ids bigint[]) RETURNS void
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  gone bigint[];
BEGIN
  WITH ended AS (
    DELETE FROM aftercommit.outcomes AS o
    WHERE o.effect_id = ANY (ids) AND o.kept = 0
      AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = o.effect_id)
    RETURNING o.effect_id, o.downstream, o.state
  ), counted AS (
    INSERT INTO aftercommit.counters (downstream, state, n) SELECT downstream, state, -count(*) FROM ended GROUP BY 1, 2
  )
  SELECT array_agg(effect_id) INTO gone FROM ended;
  IF gone IS NULL THEN
    RETURN;
  END IF;
  DELETE FROM aftercommit.effects AS e WHERE e.id = ANY (gone);
  DELETE FROM aftercommit.attempts AS a WHERE a.effect_id = ANY (gone);
  DELETE FROM aftercommit.audit AS a WHERE a.effect_id = ANY (gone);
END
$$;

-- Of one effect, on a person's word. What note and log say may quote the downstream.
CREATE FUNCTION aftercommit.redact(id bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH ended AS (
    UPDATE aftercommit.outcomes AS o
    SET token = nextval('aftercommit.tokens'), kept = o.kept & 2::int2, response = NULL, response_raw = NULL,
        note = CASE WHEN o.note IS NOT NULL THEN 'redacted' END
    WHERE o.effect_id = redact.id AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = o.effect_id)
    RETURNING o.effect_id
  ), log AS (
    UPDATE aftercommit.attempts AS a SET error = 'redacted' FROM ended
    WHERE a.effect_id = ended.effect_id AND a.error IS NOT NULL
  )
  UPDATE aftercommit.effects AS e
  SET payload = NULL, body = NULL, headers = NULL, fingerprint = aftercommit.fingerprint(e.operation, e.payload::text, e.body,
    e.content_type, e.headers::text, e.target, e.ordering_key, array_to_json(e.needs)::text, e.bindings::text,
    e.undoes::text)
  FROM ended
  WHERE e.id = ended.effect_id AND e.fingerprint IS NULL
    AND (e.payload IS NOT NULL OR e.body IS NOT NULL OR e.headers IS NOT NULL)
$$;

-- What people did to no effect in particular, after `age_us`, yet never on the day that it was done, and by a believed clock
-- only: nobody erases what they have just done.
CREATE FUNCTION aftercommit.forget_audit(age_us bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH general AS (
    DELETE FROM aftercommit.audit AS a WHERE a.effect_id IS NULL AND a.id = ANY (ARRAY(
      SELECT g.id FROM aftercommit.audit AS g
      WHERE g.effect_id IS NULL
        AND g.at <= (SELECT clock_timestamp()) - greatest(age_us, 86400000000) * interval '1 microsecond'
        AND (SELECT clock_timestamp() <= r.looked_at + interval '1 day' FROM aftercommit.retention AS r WHERE r.step = 'keys')
      ORDER BY g.at LIMIT 1000))
    RETURNING 1
  )
  SELECT count(*) FROM general
$$;
REVOKE ALL ON FUNCTION aftercommit.fingerprint, aftercommit.drop_payloads, aftercommit.drop_history, aftercommit.drop_keys,
  aftercommit.redact, aftercommit.forget_audit FROM PUBLIC;

-- BEGIN roles
DO $roles$
DECLARE
  wanted text;
BEGIN
  -- Workers purge on their own, operators on request; an application can do neither.
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT SELECT, UPDATE ON aftercommit.retention TO %I', wanted);
      EXECUTE format('GRANT UPDATE (retired_at, used_at), DELETE ON aftercommit.terms TO %I', wanted);
      EXECUTE format('GRANT EXECUTE ON FUNCTION aftercommit.drop_payloads, aftercommit.drop_history, aftercommit.drop_keys, '
        'aftercommit.forget_audit TO %I', wanted);
    END IF;
  END LOOP;
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator', 'aftercommit_viewer'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT SELECT ON aftercommit.payloads_dropped TO %I', wanted);
    END IF;
  END LOOP;
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT (effect_id, kept) ON aftercommit.outcomes TO aftercommit_viewer;
  END IF;
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT EXECUTE ON FUNCTION aftercommit.redact TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (4);
