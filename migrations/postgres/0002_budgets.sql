-- 0002 Budgets of a downstream that the whole fleet shares: rate, pauses by origin, breaker.
--
-- New tables and nullable columns without a default: each statement takes its lock for a moment, however large the tables.

-- Where a downstream's calls go (scheme, host, port); null where that is not one place.
ALTER TABLE aftercommit.downstreams ADD COLUMN origin text COLLATE "C";

-- Which downstream an act was about that was about no effect.
ALTER TABLE aftercommit.audit ADD COLUMN downstream text;

-- One row per origin that is, or was lately, in trouble; a healthy one has none. The rules are in src/store/breaker.rs.
CREATE TABLE aftercommit.origins (
  origin       text COLLATE "C" PRIMARY KEY,
  failures     integer NOT NULL DEFAULT 0 CHECK (failures >= 0),
  opens        integer NOT NULL DEFAULT 0 CHECK (opens >= 0),
  open_until   timestamptz,
  trial_until  timestamptz,
  paused_until timestamptz,
  reason       text,
  changed_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  CHECK (trial_until IS NULL OR open_until IS NOT NULL)
) WITH (fillfactor = 50);

-- One row per downstream with a rate. Calls are spent up to `spent_us` (microseconds since 1970): one more may be made every
-- `interval_us` after it. `granted` is what the last update gave.
CREATE TABLE aftercommit.rates (
  downstream  text COLLATE "C" PRIMARY KEY,
  rate        text NOT NULL,
  interval_us bigint NOT NULL CHECK (interval_us > 0),
  spent_us    bigint NOT NULL DEFAULT 0,
  granted     integer NOT NULL DEFAULT 0
) WITH (fillfactor = 50);

-- A worker pauses a downstream that refused its credentials. A function, since a worker's role may not write the audit: what
-- it did must not be told apart from what it claims that people did.
CREATE FUNCTION aftercommit.pause_refused(downstream text, worker text, reason text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  UPDATE aftercommit.downstreams AS d
  SET paused_at = clock_timestamp(), paused_by = 'worker ' || pause_refused.worker, pause_reason = pause_refused.reason
  WHERE d.name = pause_refused.downstream AND d.paused_at IS NULL;
  IF NOT FOUND THEN
    RETURN false;
  END IF;
  INSERT INTO aftercommit.audit (who, verb, downstream, reason)
  VALUES ('worker ' || pause_refused.worker, 'pause', pause_refused.downstream, pause_refused.reason);
  RETURN true;
END
$$;
REVOKE ALL ON FUNCTION aftercommit.pause_refused FROM PUBLIC;

-- As in 0001, but `held_by` knows pauses of the origin, its breaker, and a rate that is used up just now.
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
    e.enqueued_by, coalesce(o.refusal_stored, false) AS refusal_stored
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
    SELECT a.worker, a.outcome, a.error, a.response_status FROM aftercommit.attempts AS a
    WHERE a.effect_id = e.id ORDER BY a.number DESC, a.token DESC, a.late DESC LIMIT 1) AS l ON true;

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
BEGIN
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE, DELETE ON aftercommit.origins, aftercommit.rates TO aftercommit_worker;
    GRANT EXECUTE ON FUNCTION aftercommit.pause_refused TO aftercommit_worker;
  END IF;
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT ON aftercommit.origins, aftercommit.rates TO aftercommit_viewer;
  END IF;
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    -- Pauses are its own already (0001: the pause's columns, and the audit).
    GRANT SELECT ON aftercommit.origins, aftercommit.rates TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (2);
