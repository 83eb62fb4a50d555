-- 0002 Budgets of a downstream that the whole fleet shares: rate, pauses by origin, breaker.
--
-- New tables and nullable columns without a default: nothing is rewritten.

-- Where a downstream's calls go (scheme, host, port); null where that is not one place.
ALTER TABLE aftercommit_downstreams ADD COLUMN origin TEXT;

-- Which downstream an act was about that was about no effect.
ALTER TABLE aftercommit_audit ADD COLUMN downstream TEXT;

-- One row per origin that is, or was lately, in trouble; a healthy one has none. The rules are in src/store/breaker.rs.
CREATE TABLE aftercommit_origins (
    origin       TEXT PRIMARY KEY,
    failures     INTEGER NOT NULL DEFAULT 0 CHECK (failures >= 0),
    opens        INTEGER NOT NULL DEFAULT 0 CHECK (opens >= 0),
    open_until   INTEGER,
    trial_until  INTEGER,
    paused_until INTEGER,
    reason       TEXT,
    changed_at   INTEGER NOT NULL,
    CHECK (trial_until IS NULL OR open_until IS NOT NULL)
) STRICT, WITHOUT ROWID;

-- One row per downstream with a rate. Calls are spent up to `spent_us` (microseconds since 1970): one more may be made every
-- `interval_us` after it. `granted` is what the last update gave.
CREATE TABLE aftercommit_rates (
    downstream  TEXT PRIMARY KEY,
    rate        TEXT NOT NULL,
    interval_us INTEGER NOT NULL CHECK (interval_us > 0),
    spent_us    INTEGER NOT NULL DEFAULT 0,
    granted     INTEGER NOT NULL DEFAULT 0
) STRICT, WITHOUT ROWID;

-- As in 0001, but `held_by` knows pauses of the origin, its breaker, and a rate that is used up just now.
DROP VIEW aftercommit_status;
CREATE VIEW aftercommit_status AS
SELECT e.id, e.downstream, e.operation, e.idempotency_key,
    CASE
        WHEN o.effect_id IS NOT NULL THEN o.state
        WHEN q.lane = 'd' THEN 'in_doubt'
        WHEN q.claimed = 1 THEN 'in_flight'
        WHEN q.lane = 'w' THEN 'waiting'
        WHEN q.lane = 'r' THEN 'ready'
        WHEN q.due_at <= (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 + 999) THEN 'ready'
        WHEN q.tries > 0 THEN 'retrying'
        WHEN q.lane = 't' THEN 'scheduled'
        -- Neither queued nor finished: nobody can say what became of it.
        ELSE 'in_doubt'
    END AS state,
    CASE
        -- What awaits a probe that is due is held by the same.
        WHEN q.id IS NULL OR q.claimed = 1 OR (q.lane = 'd' AND coalesce(q.due_at > (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000), 1)) THEN NULL
        WHEN d.paused_at IS NOT NULL OR h.paused_until > (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000) THEN 'pause'
        WHEN h.open_until IS NOT NULL THEN 'breaker'
        WHEN q.lane = 'd' THEN NULL
        WHEN NOT EXISTS (
            SELECT 1 FROM aftercommit_workers AS w, json_each(w.downstreams) AS served
            WHERE served.value = e.downstream AND w.seen_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 - 30000000) THEN 'unserved'
        WHEN r.spent_us + r.interval_us > (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000) THEN 'pause'
    END AS held_by,
    coalesce(o.number, q.number, 0) AS attempts,
    CASE WHEN o.effect_id IS NULL THEN q.due_at ELSE coalesce(e.due_at, e.created_at) END AS due_at,
    q.first_sent_at,
    CASE
        WHEN q.first_sent_at IS NULL OR coalesce(today.dedupe, pinned.dedupe) <> 'key' THEN NULL
        WHEN pinned.window_us IS NULL OR (today.id IS NOT NULL AND today.window_us IS NULL) THEN NULL
        WHEN min(pinned.window_us, coalesce(today.window_us, pinned.window_us)) >= 9000000000000000000 - q.first_sent_at
            THEN 9223372036854775807
        ELSE q.first_sent_at + min(pinned.window_us, coalesce(today.window_us, pinned.window_us))
            - coalesce(today.margin_us, pinned.margin_us)
    END AS safe_until,
    CASE WHEN q.claimed = 1 THEN c.lease_until END AS lease_until,
    CASE WHEN q.claimed = 1 THEN c.worker ELSE coalesce(o.worker, a.worker) END AS worker,
    CASE WHEN o.phase IS NOT NULL THEN 'applied' ELSE a.outcome END AS last_outcome,
    coalesce(o.note, q.note, a.error) AS last_error,
    coalesce(o.response_status, CASE WHEN o.phase IS NULL THEN a.response_status END) AS response_status,
    o.response, e.metadata, o.superseded_by, e.created_at, o.finished_at
FROM aftercommit_effects AS e
LEFT JOIN aftercommit_queue AS q ON q.id = e.id
LEFT JOIN aftercommit_outcomes AS o ON o.effect_id = e.id
LEFT JOIN aftercommit_claims AS c ON c.token = q.token
LEFT JOIN aftercommit_downstreams AS d ON d.name = e.downstream
LEFT JOIN aftercommit_origins AS h ON h.origin = d.origin
LEFT JOIN aftercommit_rates AS r ON r.downstream = e.downstream
LEFT JOIN aftercommit_terms AS pinned ON pinned.id = q.terms
LEFT JOIN aftercommit_operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '')
LEFT JOIN aftercommit_terms AS today ON today.id = op.terms
LEFT JOIN aftercommit_attempts AS a ON a.effect_id = e.id AND (a.token, a.late) = (
    SELECT l.token, l.late FROM aftercommit_attempts AS l
    WHERE l.effect_id = e.id ORDER BY l.number DESC, l.token DESC, l.late DESC LIMIT 1);

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (2, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
