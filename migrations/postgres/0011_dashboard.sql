-- 0011 Dashboard: what people's pages, their API and their bulks read and write.
--
-- What takes time at ten million rows is the index over `metadata`, so it comes first, before anybody else has to wait: see
-- migrations/README.md for how to build it by hand.

-- ---------------------------------------------------------------------------------------------------------------------
-- Search by metadata
-- ---------------------------------------------------------------------------------------------------------------------

-- Serves `metadata @> '{"order": "A-17"}'`. An INSERT without metadata pays nothing. Only where it is missing, as an operator may have
-- built it before without stopping anybody: it reads the table once, and nobody enqueues meanwhile.
DO $metadata$
BEGIN
  IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('aftercommit.effects_metadata') AND NOT indisvalid) THEN
    RAISE EXCEPTION 'the index aftercommit.effects_metadata is INVALID: its CREATE INDEX CONCURRENTLY failed'
      USING HINT = 'DROP INDEX CONCURRENTLY aftercommit.effects_metadata, build it again, then run aftercommit migrate again.';
  END IF;
  IF to_regclass('aftercommit.effects_metadata') IS NULL THEN
    CREATE INDEX effects_metadata ON aftercommit.effects USING gin (metadata jsonb_path_ops) WHERE metadata IS NOT NULL;
  END IF;
END
$metadata$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Audit
-- ---------------------------------------------------------------------------------------------------------------------

-- From where somebody acted (an address, or "command line"), and as part of which bulk. Null for what was written before.
ALTER TABLE aftercommit.audit ADD COLUMN from_address text, ADD COLUMN bulk bigint;
-- From now on an act on an effect names its downstream too, so that these serve "what was done to this one" and "what did she do":
-- keysets by number, as long as the audit is.
CREATE INDEX audit_downstream ON aftercommit.audit (downstream, id) WHERE downstream IS NOT NULL;
CREATE INDEX audit_who ON aftercommit.audit (who, id);

-- As in step 10, and from where; who says no more than five things does not say that one.
DROP FUNCTION aftercommit.switch_endpoint;
CREATE FUNCTION aftercommit.switch_endpoint(of_downstream text, named text, why_disabled text, by_whom text, for_reason text,
  from_where text DEFAULT NULL)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF why_disabled IS NULL THEN
    UPDATE aftercommit.endpoints AS e
    SET disabled_at = NULL, disabled_reason = NULL, disabled_itself = false, failing_since = NULL, updated_at = clock_timestamp()
    WHERE e.downstream = of_downstream AND e.name = named AND e.disabled_at IS NOT NULL;
  ELSE
    INSERT INTO aftercommit.endpoints AS e (downstream, name, disabled_at, disabled_reason)
    VALUES (of_downstream, named, clock_timestamp(), why_disabled)
    ON CONFLICT (downstream, name) DO UPDATE
    SET disabled_at = excluded.disabled_at, disabled_reason = excluded.disabled_reason, disabled_itself = false,
        updated_at = clock_timestamp()
    WHERE e.disabled_at IS NULL;
  END IF;
  IF NOT FOUND THEN RETURN false; END IF;
  INSERT INTO aftercommit.audit (who, verb, downstream, reason, from_address)
  VALUES (by_whom, CASE WHEN why_disabled IS NULL THEN 'enable_endpoint' ELSE 'disable_endpoint' END, of_downstream,
          left(concat_ws(': ', named, coalesce(for_reason, why_disabled)), 1000), from_where);
  RETURN true;
END
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Bulks
-- ---------------------------------------------------------------------------------------------------------------------

-- One verb over a frozen list. Whoever carries it out holds it by a lease. The counts of what became of the items are written when
-- it ends; until then they are counted.
CREATE TABLE aftercommit.bulks (
  id           bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  created_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  finished_at  timestamptz,
  lease_until  timestamptz,
  runner       text,
  total        integer NOT NULL CHECK (total >= 0),
  done         integer,
  refused      integer,
  stale        integer,
  gone         integer,
  rate         integer NOT NULL DEFAULT 0 CHECK (rate >= 0),   -- items per second; 0: as fast as it goes
  state        text NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'cancelled', 'finished')),
  verb         text NOT NULL,
  what         text NOT NULL,     -- what was chosen, in words
  who          text NOT NULL,
  reason       text,
  from_address text,
  CHECK ((finished_at IS NOT NULL) = (state IN ('cancelled', 'finished')))
) WITH (fillfactor = 70);
CREATE INDEX bulks_open ON aftercommit.bulks (id) WHERE finished_at IS NULL;
CREATE INDEX bulks_finished ON aftercommit.bulks (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE aftercommit.bulk_items (
  bulk       bigint NOT NULL,
  n          integer NOT NULL,
  effect_id  bigint NOT NULL,
  seen_token bigint NOT NULL,
  seen_state text NOT NULL,
  outcome    text CHECK (outcome IN ('done', 'refused', 'stale', 'gone')),   -- null: still to be done
  words      text,                -- why it was not done
  PRIMARY KEY (bulk, n)
);
CREATE INDEX bulk_items_open ON aftercommit.bulk_items (bulk, n) WHERE outcome IS NULL;
CREATE INDEX bulk_items_odd ON aftercommit.bulk_items (bulk, n) WHERE outcome IN ('refused', 'stale', 'gone');

-- Retention: up to `at_most` items of the bulk that ended first, of those that ended longer than `age_us` ago, and the bulk with its
-- last item; never one of the last day. A function, since nobody who works or operates may erase what was done. Its rows dropped.
CREATE FUNCTION aftercommit.drop_bulks(age_us bigint, at_most bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  old bigint;
  dropped bigint;
BEGIN
  SELECT b.id INTO old FROM aftercommit.bulks AS b
  WHERE b.finished_at <= (SELECT clock_timestamp()) - greatest(age_us, 86400000000) * interval '1 microsecond'
  ORDER BY b.finished_at LIMIT 1 FOR UPDATE SKIP LOCKED;
  IF NOT FOUND THEN
    RETURN 0;
  END IF;
  DELETE FROM aftercommit.bulk_items AS i
  WHERE i.bulk = old AND i.n IN (SELECT x.n FROM aftercommit.bulk_items AS x WHERE x.bulk = old ORDER BY x.n LIMIT at_most);
  GET DIAGNOSTICS dropped = ROW_COUNT;
  IF dropped < at_most THEN
    DELETE FROM aftercommit.bulks AS b WHERE b.id = old;
    dropped := dropped + 1;
  END IF;
  RETURN dropped;
END
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Resend
-- ---------------------------------------------------------------------------------------------------------------------

-- A person's one resend that nobody confirmed: not sent past `safe_until`. (`resend`: one that was, sent whenever it can be.)
ALTER TABLE aftercommit.queue ADD COLUMN resend_unconfirmed boolean NOT NULL DEFAULT false;

-- ---------------------------------------------------------------------------------------------------------------------
-- Traffic
-- ---------------------------------------------------------------------------------------------------------------------

-- When a delta was written; null: a sum, or of a version that does not say it. Written by those who count and not by a default: a
-- worker of an older version folds deltas into sums all the while, and a default would make each of these look like news.
ALTER TABLE aftercommit.counters ADD COLUMN at timestamptz;

-- How many effects of a downstream ended in a state in the minute, or hour, that began at `at`: what the folding of deltas adds up.
-- Minutes become hours after 25 hours; hours are kept for eight days.
CREATE TABLE aftercommit.traffic (
  at         timestamptz NOT NULL,
  n          bigint NOT NULL,
  per        text NOT NULL CHECK (per IN ('minute', 'hour')),
  downstream text COLLATE "C" NOT NULL,
  state      text NOT NULL,
  CONSTRAINT traffic_pkey PRIMARY KEY (per, at, downstream, state)
) WITH (fillfactor = 70);

-- ---------------------------------------------------------------------------------------------------------------------
-- Read
-- ---------------------------------------------------------------------------------------------------------------------

-- As in step 2, and what the tools asked of other tables beside it: five columns more. (`attempted_at`: when the last attempt ended.)
CREATE OR REPLACE VIEW aftercommit.status_of_all AS
  SELECT e.id, e.downstream, e.operation, e.idempotency_key,
    CASE WHEN o.state IS NOT NULL THEN o.state
         WHEN q.lane = 'd' OR q.id IS NULL THEN 'in_doubt'
         WHEN q.claimed THEN 'in_flight'
         WHEN q.lane = 'w' THEN 'waiting'
         WHEN q.lane = 'r' OR q.due_at <= statement_timestamp() THEN 'ready'
         WHEN q.tries > 0 THEN 'retrying'
         ELSE 'scheduled' END AS state,
    -- What awaits a probe that is due is held by the same.
    CASE WHEN q.id IS NULL OR q.claimed OR (q.lane = 'd' AND coalesce(q.due_at > statement_timestamp(), true)) THEN NULL
         WHEN d.paused_at IS NOT NULL OR h.paused_until > statement_timestamp() THEN 'pause'
         WHEN h.open_until IS NOT NULL THEN 'breaker'
         WHEN q.lane = 'd' THEN NULL
         WHEN NOT EXISTS (SELECT FROM aftercommit.workers AS w
                          WHERE w.seen_at > statement_timestamp() - interval '30 seconds' AND q.downstream = ANY (w.downstreams))
           THEN 'unserved'
         WHEN r.spent_us + r.interval_us > extract(epoch FROM statement_timestamp()) * 1000000 THEN 'pause' END AS held_by,
    coalesce(q.number, o.number, 0) AS attempts,
    CASE WHEN o.effect_id IS NULL THEN q.due_at ELSE coalesce(e.due_at, e.created_at) END AS due_at,
    q.first_sent_at,
    CASE WHEN q.first_sent_at IS NULL OR coalesce(today.dedupe, sent.dedupe) <> 'key' THEN NULL
         -- A window that no one published promises nothing.
         WHEN sent.window_us IS NULL OR (today.id IS NOT NULL AND today.window_us IS NULL) THEN NULL
         -- Longer than a century is for ever, and would not fit an interval's arithmetic.
         WHEN least(sent.window_us, today.window_us) > 3155760000000000 THEN 'infinity'
         ELSE q.first_sent_at + least(sent.window_us, today.window_us) * interval '1 microsecond'
              - least(coalesce(today.margin_us, sent.margin_us), 3155760000000000) * interval '1 microsecond'
    END AS safe_until,
    c.lease_until,
    coalesce(c.worker, o.worker, l.worker) AS worker,
    CASE WHEN o.started_at IS NOT NULL THEN 'applied' ELSE l.outcome END AS last_outcome,
    coalesce(nullif(q.note, ''), nullif(o.note, ''), nullif(l.error, '')) AS last_error,
    CASE WHEN q.id IS NOT NULL THEN l.response_status ELSE coalesce(o.response_status, l.response_status) END AS response_status,
    o.response, e.metadata, o.superseded_by, e.created_at, o.finished_at,
    coalesce(q.token, o.token, 0) AS token, o.response_raw, coalesce(o.response_truncated, false) AS response_truncated,
    e.enqueued_by, coalesce(o.refusal_stored, false) AS refusal_stored,
    e.fingerprint IS NOT NULL AS payload_dropped, coalesce(o.kept & 2 = 0, false) AS log_dropped, q.quiet_at,
    -- Neither queued nor finished: nobody knows what became of it.
    CASE WHEN q.id IS NOT NULL THEN q.uncertain ELSE o.effect_id IS NULL END AS uncertain,
    coalesce(o.ended_at, l.ended_at) AS attempted_at
  FROM aftercommit.effects AS e
  LEFT JOIN aftercommit.queue AS q ON q.id = e.id
  LEFT JOIN aftercommit.outcomes AS o ON o.effect_id = e.id
  LEFT JOIN aftercommit.claims AS c ON c.token = q.token AND q.claimed
  LEFT JOIN aftercommit.downstreams AS d ON d.name = e.downstream
  LEFT JOIN aftercommit.origins AS h ON h.origin = d.origin
  LEFT JOIN aftercommit.rates AS r ON r.downstream = e.downstream
  LEFT JOIN aftercommit.operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '')
  LEFT JOIN aftercommit.terms AS today ON today.id = op.terms
  LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms
  LEFT JOIN LATERAL (
    SELECT a.worker, a.outcome, a.error, a.response_status, a.ended_at FROM aftercommit.attempts AS a
    WHERE a.effect_id = e.id ORDER BY a.number DESC, a.token DESC, a.late DESC LIMIT 1) AS l ON true;

-- ---------------------------------------------------------------------------------------------------------------------
-- Reissue
-- ---------------------------------------------------------------------------------------------------------------------

-- A new effect in the place of one that has ended: the same request with a new key, due now, written for whom the old one was written.
-- A function, since an operator may not write what applications write, but for this; so it looks once more, whoever calls it. `n`
-- counts on while the derived key is somebody else's. Whoever builds flows lets `needs`, `if_failed`, `undoes` and `bindings` of
-- unstarted effects point to the new one here; until then those columns are refused.
CREATE FUNCTION aftercommit.reissue(id bigint) RETURNS bigint
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  old aftercommit.effects;
  now_at timestamptz := clock_timestamp();
  new_id bigint;
BEGIN
  PERFORM FROM aftercommit.outcomes AS o
  WHERE o.effect_id = reissue.id AND o.superseded_by IS NULL
    AND NOT EXISTS (SELECT FROM aftercommit.queue AS q WHERE q.id = o.effect_id)
  FOR UPDATE;
  IF FOUND THEN
    SELECT e.* INTO old FROM aftercommit.effects AS e WHERE e.id = reissue.id AND e.fingerprint IS NULL;
  END IF;
  IF old.id IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '55000',
      MESSAGE = format('effect %s cannot be reissued: it has not ended, another one superseded it, or its payload was dropped', reissue.id);
  END IF;
  FOR n IN 1 .. 100 LOOP
    INSERT INTO aftercommit.effects AS e (downstream, operation, idempotency_key, payload, body, content_type, headers, target, due_at,
      expires_at, ordering_key, metadata, trace_context, enqueued_by, request_id)
    VALUES (old.downstream, old.operation, aftercommit.derive_key(old.idempotency_key, 'reissue', n::text), old.payload, old.body,
      old.content_type, old.headers, old.target, now_at, CASE WHEN old.expires_at > now_at THEN old.expires_at END,
      old.ordering_key, old.metadata, old.trace_context, old.enqueued_by, old.request_id)
    ON CONFLICT ON CONSTRAINT effects_key DO NOTHING
    RETURNING e.id INTO new_id;
    EXIT WHEN new_id IS NOT NULL;
  END LOOP;
  IF new_id IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = format('effect %s cannot be reissued: a hundred keys that follow from its own are taken', reissue.id);
  END IF;
  UPDATE aftercommit.outcomes AS o SET superseded_by = new_id, token = nextval('aftercommit.tokens') WHERE o.effect_id = reissue.id;
  RETURN new_id;
END
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Rights
-- ---------------------------------------------------------------------------------------------------------------------

REVOKE ALL ON FUNCTION aftercommit.reissue, aftercommit.drop_bulks, aftercommit.switch_endpoint FROM PUBLIC;

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
DECLARE
  wanted text;
BEGIN
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE, DELETE ON aftercommit.traffic TO aftercommit_worker;
  END IF;
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator', 'aftercommit_viewer'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT SELECT ON aftercommit.traffic, aftercommit.bulks, aftercommit.bulk_items TO %I', wanted);
    END IF;
  END LOOP;
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT EXECUTE ON FUNCTION aftercommit.drop_bulks TO %I', wanted);
    END IF;
  END LOOP;
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT (payload_dropped, log_dropped, quiet_at, uncertain, attempted_at) ON aftercommit.status_of_all TO aftercommit_viewer;
    -- What lists are narrowed by; the view shows it already.
    GRANT SELECT (operation, metadata, created_at) ON aftercommit.effects TO aftercommit_viewer;
  END IF;
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT INSERT, UPDATE ON aftercommit.bulks, aftercommit.bulk_items TO aftercommit_operator;
    GRANT EXECUTE ON FUNCTION aftercommit.reissue, aftercommit.switch_endpoint TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

-- All of it belongs to whom the rest belongs, whoever migrates: the functions write with their owner's rights.
DO $owner$
DECLARE
  new_owner regrole := (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'aftercommit.effects'::regclass);
BEGIN
  EXECUTE format('ALTER TABLE aftercommit.bulks OWNER TO %s', new_owner);
  EXECUTE format('ALTER TABLE aftercommit.bulk_items OWNER TO %s', new_owner);
  EXECUTE format('ALTER TABLE aftercommit.traffic OWNER TO %s', new_owner);
  EXECUTE format('ALTER FUNCTION aftercommit.reissue OWNER TO %s', new_owner);
  EXECUTE format('ALTER FUNCTION aftercommit.switch_endpoint OWNER TO %s', new_owner);
  EXECUTE format('ALTER FUNCTION aftercommit.drop_bulks OWNER TO %s', new_owner);
END
$owner$;

INSERT INTO aftercommit.schema_version (version) VALUES (11);
