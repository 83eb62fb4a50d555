-- 0004 Retention: what is dropped when, and what outlives it.
--
-- Of an effect that has ended, the payload goes first, then the history (attempt log and response), then the key with all
-- that is left. `outcomes.kept` says what is still there, in the row that a person's verb locks, and its index gives each
-- step its work in the order in which it falls due: no step ever looks through a table.

-- 3: payload and history; 2: history; 1: payload; 0: the key. A constant default: the table is not rewritten.
ALTER TABLE aftercommit.outcomes ADD COLUMN IF NOT EXISTS kept smallint NOT NULL DEFAULT 3 CHECK (kept BETWEEN 0 AND 3);

-- What has just ended is the greatest entry, so that a settle appends to the last leaf; all of a batch share one time, hence
-- nearly one entry. On ten million rows it locks writers out for about ten seconds: build it CONCURRENTLY by hand first
-- (this step then finds it), after adding the column above by hand.
CREATE INDEX IF NOT EXISTS outcomes_retention ON aftercommit.outcomes (kept, finished_at);

-- Deleted rows are a small part of a table that keeps 400 days: the default (a fifth of the table) would let the dead ones
-- pile up for months.
ALTER TABLE aftercommit.outcomes SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
ALTER TABLE aftercommit.effects SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);
ALTER TABLE aftercommit.attempts SET (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 10000);

-- A row per step and what it finds kept. Whoever purges holds the row for one batch, so that a fleet purges in one place at
-- a time, in a transaction and not in a session. `reached`: every older outcome was looked at since `from_start_at`; it keeps
-- a look from passing, again and again, the index entries of rows that are gone and not yet vacuumed.
CREATE TABLE aftercommit.retention (
  step          text NOT NULL CHECK (step IN ('payloads', 'history', 'keys')),
  kept          smallint NOT NULL,
  reached       timestamptz NOT NULL DEFAULT '-infinity',
  from_start_at timestamptz NOT NULL DEFAULT '-infinity',
  PRIMARY KEY (step, kept)
) WITH (fillfactor = 50);
INSERT INTO aftercommit.retention (step, kept)
VALUES ('payloads', 3), ('payloads', 1), ('history', 3), ('history', 2), ('keys', 0);

-- When retention first saw that no operation of today has these terms any more.
ALTER TABLE aftercommit.terms ADD COLUMN retired_at timestamptz;

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

-- What people did goes with the effect that they did it to; what they did to none, after `keys_us`. A function, because
-- nobody who works or operates may write the audit: it cannot touch a row whose effect is there.
CREATE FUNCTION aftercommit.forget_audit(effects bigint[], keys_us bigint) RETURNS bigint
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  WITH gone AS (
    DELETE FROM aftercommit.audit AS a WHERE a.effect_id = ANY (forget_audit.effects)
      AND NOT EXISTS (SELECT FROM aftercommit.effects AS e WHERE e.id = a.effect_id)
    RETURNING 1
  ), general AS (
    DELETE FROM aftercommit.audit AS a WHERE a.effect_id IS NULL AND a.id = ANY (ARRAY(
      SELECT g.id FROM aftercommit.audit AS g
      WHERE g.effect_id IS NULL AND g.at <= (SELECT clock_timestamp()) - keys_us * interval '1 microsecond'
      ORDER BY g.at LIMIT 1000))
    RETURNING 1
  )
  SELECT (SELECT count(*) FROM gone) + (SELECT count(*) FROM general)
$$;
REVOKE ALL ON FUNCTION aftercommit.fingerprint, aftercommit.forget_audit FROM PUBLIC;

-- BEGIN roles
DO $roles$
DECLARE
  wanted text;
BEGIN
  -- Workers purge on their own, operators on request; an application can do neither.
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT UPDATE (payload, body, headers, fingerprint), DELETE ON aftercommit.effects TO %I', wanted);
      EXECUTE format('GRANT UPDATE, DELETE ON aftercommit.outcomes TO %I', wanted);
      EXECUTE format('GRANT UPDATE (error), DELETE ON aftercommit.attempts TO %I', wanted);
      EXECUTE format('GRANT INSERT ON aftercommit.counters TO %I', wanted);
      EXECUTE format('GRANT SELECT, UPDATE ON aftercommit.retention TO %I', wanted);
      EXECUTE format('GRANT UPDATE (retired_at), DELETE ON aftercommit.terms TO %I', wanted);
      EXECUTE format('GRANT EXECUTE ON FUNCTION aftercommit.fingerprint, aftercommit.forget_audit TO %I', wanted);
    END IF;
  END LOOP;
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator', 'aftercommit_viewer'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT SELECT ON aftercommit.payloads_dropped TO %I', wanted);
    END IF;
  END LOOP;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (4);
