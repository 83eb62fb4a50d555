-- aftercommit, schema version 1, SQLite.
--
-- The same tables and views as on PostgreSQL (schema `aftercommit`), with the prefix `aftercommit_`, in the file of the
-- business tables. Times are INTEGER microseconds since 1970, JSON is TEXT, booleans are 0 and 1.
--
-- Nothing here is newer than SQLite 3.38: triggers and views run in the library of the application that writes. That
-- library's clock has milliseconds; `… + 999` is the end of the present one, so that what is due "now" is never in the
-- future.

CREATE TABLE aftercommit_schema_version (
    version    INTEGER PRIMARY KEY,
    applied_at INTEGER NOT NULL
) STRICT;

CREATE TABLE aftercommit_meta (
    key   TEXT PRIMARY KEY,
    value TEXT NOT NULL
) STRICT, WITHOUT ROWID;

-- One sequence for every claim, operator action and sweep. Never reset, never reused.
CREATE TABLE aftercommit_token (
    one  INTEGER PRIMARY KEY CHECK (one = 1),
    last INTEGER NOT NULL
) STRICT;
INSERT INTO aftercommit_token (one, last) VALUES (1, 0);

-- What a request was sent under; equal content keeps its id. `window_us` NULL: unpublished; 9223372036854775807: for ever.
CREATE TABLE aftercommit_terms (
    id             INTEGER PRIMARY KEY AUTOINCREMENT,
    downstream     TEXT NOT NULL,
    operation      TEXT NOT NULL,
    request_sha256 BLOB NOT NULL CHECK (length(request_sha256) = 32),
    contract       TEXT NOT NULL,
    policy         TEXT NOT NULL,
    timeout_us     INTEGER NOT NULL,
    window_us      INTEGER,
    margin_us      INTEGER NOT NULL,
    dedupe         TEXT NOT NULL CHECK (dedupe IN ('key', 'lookup', 'none')),
    UNIQUE (downstream, operation, request_sha256, contract, policy, timeout_us)
) STRICT;

-- The terms that hold today; '' is the default operation.
CREATE TABLE aftercommit_operations (
    downstream TEXT NOT NULL,
    operation  TEXT NOT NULL,
    terms      INTEGER NOT NULL,
    PRIMARY KEY (downstream, operation)
) STRICT, WITHOUT ROWID;

CREATE TABLE aftercommit_downstreams (
    name          TEXT PRIMARY KEY,
    kind          TEXT NOT NULL,
    key_prefix    TEXT NOT NULL,
    key_min_len   INTEGER NOT NULL,
    key_max_len   INTEGER NOT NULL,
    key_charset   TEXT NOT NULL CHECK (key_charset IN ('printable', 'token', 'uuid')),
    registered_at INTEGER NOT NULL,
    paused_at     INTEGER,
    paused_by     TEXT,
    pause_reason  TEXT,
    on_outcome    TEXT
) STRICT, WITHOUT ROWID;

CREATE TABLE aftercommit_workers (
    name        TEXT PRIMARY KEY,
    version     TEXT NOT NULL,
    started_at  INTEGER NOT NULL,
    seen_at     INTEGER NOT NULL,
    downstreams TEXT NOT NULL CHECK (json_valid(downstreams))
) STRICT, WITHOUT ROWID;

-- Identity and intent: written by applications, never updated by aftercommit. The CHECKs restate what the trigger below
-- refuses in words; `needs`, `bindings`, `undoes`, `if_failed` and `ordering_key` are refused until a later version.
CREATE TABLE aftercommit_effects (
    id              INTEGER PRIMARY KEY AUTOINCREMENT,
    downstream      TEXT NOT NULL,
    operation       TEXT,
    idempotency_key TEXT NOT NULL DEFAULT (lower(
        hex(randomblob(4)) || '-' || hex(randomblob(2)) || '-4' || substr(hex(randomblob(2)), 2) || '-'
        || substr('89ab', abs(random()) % 4 + 1, 1) || substr(hex(randomblob(2)), 2) || '-' || hex(randomblob(6))
    )),
    payload         TEXT CHECK (payload IS NULL OR (typeof(payload) = 'text' AND json_valid(payload))),
    body            BLOB CHECK (body IS NULL OR typeof(body) = 'blob'),
    content_type    TEXT,
    headers         TEXT CHECK (headers IS NULL OR (json_valid(headers) AND json_type(headers) = 'object')),
    target          TEXT,
    due_at          INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000) CHECK (typeof(due_at) = 'integer'),
    expires_at      INTEGER CHECK (expires_at IS NULL OR typeof(expires_at) = 'integer'),
    ordering_key    TEXT CHECK (ordering_key IS NULL),
    needs           TEXT CHECK (needs IS NULL),
    bindings        TEXT CHECK (bindings IS NULL),
    undoes          INTEGER CHECK (undoes IS NULL),
    if_failed       TEXT CHECK (if_failed IS NULL),
    metadata        TEXT CHECK (metadata IS NULL OR (json_valid(metadata) AND json_type(metadata) = 'object')),
    trace_context   TEXT,
    created_at      INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000) CHECK (typeof(created_at) = 'integer'),
    enqueued_by     TEXT,
    -- SHA-256 of the request, written when the payload is purged; until then it is computed where it is compared.
    fingerprint     BLOB,
    CHECK (payload IS NULL OR body IS NULL),
    UNIQUE (downstream, idempotency_key)
);

-- One row per unfinished effect. lane: 'r' ready, 't' timed, 'w' waiting, 'd' in doubt.
CREATE TABLE aftercommit_queue (
    id               INTEGER PRIMARY KEY,
    downstream       TEXT NOT NULL,
    lane             TEXT NOT NULL CHECK (lane IN ('r', 't', 'w', 'd')),
    due_at           INTEGER,
    sweep_at         INTEGER,
    token            INTEGER NOT NULL DEFAULT 0,
    claimed          INTEGER NOT NULL DEFAULT 0 CHECK (claimed IN (0, 1)),
    attempts         INTEGER NOT NULL DEFAULT 0,
    tries            INTEGER NOT NULL DEFAULT 0,
    number           INTEGER NOT NULL DEFAULT 0,
    sent_before      INTEGER NOT NULL DEFAULT 0 CHECK (sent_before IN (0, 1)),
    started_at       INTEGER,
    first_sent_at    INTEGER,
    terms            INTEGER,
    uncertain        INTEGER NOT NULL DEFAULT 0 CHECK (uncertain IN (0, 1)),
    resend           INTEGER NOT NULL DEFAULT 0 CHECK (resend IN (0, 1)),
    cancel_requested INTEGER NOT NULL DEFAULT 0 CHECK (cancel_requested IN (0, 1)),
    applied_late     INTEGER NOT NULL DEFAULT 0 CHECK (applied_late IN (0, 1)),
    quiet_at         INTEGER,
    expires_at       INTEGER,
    note             TEXT,
    CHECK (lane IN ('r', 't') OR claimed = 0)
) STRICT;

-- Serves the claim (lanes r and t, oldest first) and the counts.
CREATE INDEX aftercommit_queue_lane ON aftercommit_queue (downstream, lane, due_at, id) WHERE claimed = 0;
-- Serves renewals, sweeps of leases and the counts in flight.
CREATE INDEX aftercommit_queue_token ON aftercommit_queue (token) WHERE claimed = 1;
-- Serves the sweep of what nobody holds.
CREATE INDEX aftercommit_queue_sweep ON aftercommit_queue (sweep_at) WHERE sweep_at IS NOT NULL;

-- One row per (claim call, downstream): who holds its effects, and until when.
CREATE TABLE aftercommit_claims (
    token       INTEGER PRIMARY KEY,
    worker      TEXT NOT NULL,
    claimed_at  INTEGER NOT NULL,
    lease_until INTEGER NOT NULL
) STRICT;

-- Append-only. `late` rows came in after the lease of their claim had ended; `swept` ones were written by a sweep, not by
-- the worker that held the claim.
CREATE TABLE aftercommit_attempts (
    effect_id       INTEGER NOT NULL,
    token           INTEGER NOT NULL,
    late            INTEGER NOT NULL CHECK (late IN (0, 1)),
    swept           INTEGER NOT NULL CHECK (swept IN (0, 1)),
    number          INTEGER NOT NULL,
    worker          TEXT,
    started_at      INTEGER NOT NULL,
    ended_at        INTEGER,
    phase           TEXT NOT NULL CHECK (phase IN ('render', 'connect', 'send', 'answer', 'done', 'lease')),
    outcome         TEXT NOT NULL CHECK (outcome IN ('applied', 'rejected', 'not_applied', 'unknown')),
    replayed        INTEGER NOT NULL CHECK (replayed IN (0, 1)),
    response_status INTEGER,
    error           TEXT,
    PRIMARY KEY (effect_id, token, late)
) STRICT, WITHOUT ROWID;

-- One row per finished effect. An application's write-back is a trigger of its own on this table; it must not RAISE, or the
-- outcome cannot be written and its effect stays in flight until the sweep parks or retries it.
-- A first attempt that succeeded has its log row here (worker … phase), not in `attempts`.
CREATE TABLE aftercommit_outcomes (
    effect_id          INTEGER PRIMARY KEY,
    downstream         TEXT NOT NULL,
    state              TEXT NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'expired')),
    response           TEXT,
    response_raw       BLOB,
    response_truncated INTEGER NOT NULL DEFAULT 0 CHECK (response_truncated IN (0, 1)),
    response_status    INTEGER,
    finished_at        INTEGER NOT NULL,
    token              INTEGER NOT NULL,
    refusal_stored     INTEGER NOT NULL DEFAULT 0 CHECK (refusal_stored IN (0, 1)),
    superseded_by      INTEGER,
    note               TEXT,
    number             INTEGER NOT NULL,
    sent_before        INTEGER NOT NULL CHECK (sent_before IN (0, 1)),
    worker             TEXT,
    started_at         INTEGER,
    ended_at           INTEGER,
    phase              TEXT
) STRICT;
-- Serves lists by state.
CREATE INDEX aftercommit_outcomes_state ON aftercommit_outcomes (state, effect_id);

CREATE TABLE aftercommit_counters (
    downstream TEXT NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'expired')),
    n          INTEGER NOT NULL,
    PRIMARY KEY (downstream, state)
) STRICT, WITHOUT ROWID;

CREATE TABLE aftercommit_audit (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    at         INTEGER NOT NULL,
    who        TEXT NOT NULL,
    verb       TEXT NOT NULL,
    effect_id  INTEGER,
    from_state TEXT,
    to_state   TEXT,
    reason     TEXT
) STRICT;
CREATE INDEX aftercommit_audit_effect ON aftercommit_audit (effect_id, id);

-- Every check of an INSERT, in words. RAISE(ABORT) in a BEFORE trigger is not overruled by OR REPLACE or OR IGNORE; the
-- existing key is looked for here too, because OR REPLACE would otherwise delete the effect that holds it.
CREATE TRIGGER aftercommit_effects_check BEFORE INSERT ON aftercommit_effects
BEGIN
    SELECT CASE
    WHEN NEW.id IS NOT NULL AND NEW.id <> -1
        THEN RAISE(ABORT, 'aftercommit: column id: is given by the database (leave it out)')
    WHEN typeof(NEW.downstream) <> 'text' OR length(NEW.downstream) NOT BETWEEN 1 AND 128
            OR length(CAST(NEW.downstream AS BLOB)) <> length(NEW.downstream)
            OR NEW.downstream GLOB '*[^ -~]*' OR NEW.downstream GLOB ' *' OR NEW.downstream GLOB '* '
        THEN RAISE(ABORT, 'aftercommit: column downstream: must be a name of the configuration, 1 to 128 printable ASCII characters')
    WHEN NEW.operation IS NOT NULL AND (typeof(NEW.operation) <> 'text'
            OR length(NEW.operation) NOT BETWEEN 1 AND 255 OR instr(NEW.operation, char(0)) > 0)
        THEN RAISE(ABORT, 'aftercommit: column operation: must be a named operation of the downstream, or null for its default')
    -- Printable ASCII has one byte per character; a NUL would end the text for length() and GLOB, so bytes are counted too.
    WHEN typeof(NEW.idempotency_key) <> 'text' OR length(NEW.idempotency_key) NOT BETWEEN 1 AND 255
            OR length(CAST(NEW.idempotency_key AS BLOB)) <> length(NEW.idempotency_key)
            OR NEW.idempotency_key GLOB '*[^ -~]*'
            OR NEW.idempotency_key GLOB ' *' OR NEW.idempotency_key GLOB '* '
        THEN RAISE(ABORT, 'aftercommit: column idempotency_key: must be 1 to 255 printable ASCII characters with no space at either end')
    WHEN NEW.payload IS NOT NULL AND typeof(NEW.payload) <> 'text'
        THEN RAISE(ABORT, 'aftercommit: column payload: must be JSON as text (use body for anything else)')
    WHEN length(CAST(NEW.payload AS BLOB)) > coalesce(
            (SELECT CAST(value AS INTEGER) FROM aftercommit_meta WHERE key = 'payload_len_max'), 1048576)
        THEN RAISE(ABORT, 'aftercommit: column payload: is larger than the limit (1 MiB unless configured otherwise)')
    WHEN NEW.payload IS NOT NULL AND (instr(NEW.payload, char(0)) > 0 OR NOT json_valid(NEW.payload))
        THEN RAISE(ABORT, 'aftercommit: column payload: is not JSON')
    WHEN NEW.body IS NOT NULL AND NEW.payload IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column body: stands instead of payload (give one of the two)')
    WHEN NEW.body IS NOT NULL AND typeof(NEW.body) <> 'blob'
        THEN RAISE(ABORT, 'aftercommit: column body: must be a BLOB')
    WHEN length(NEW.body) > coalesce(
            (SELECT CAST(value AS INTEGER) FROM aftercommit_meta WHERE key = 'payload_len_max'), 1048576)
        THEN RAISE(ABORT, 'aftercommit: column body: is larger than the limit (1 MiB unless configured otherwise)')
    WHEN NEW.content_type IS NOT NULL AND (NEW.body IS NULL OR typeof(NEW.content_type) <> 'text'
            OR length(NEW.content_type) NOT BETWEEN 1 AND 255
            OR length(CAST(NEW.content_type AS BLOB)) <> length(NEW.content_type)
            OR NEW.content_type GLOB '*[^ -~]*')
        THEN RAISE(ABORT, 'aftercommit: column content_type: must be the printable ASCII type of body, and goes with body only')
    WHEN NEW.headers IS NOT NULL AND (typeof(NEW.headers) <> 'text' OR instr(NEW.headers, char(0)) > 0
            OR NOT json_valid(NEW.headers))
        THEN RAISE(ABORT, 'aftercommit: column headers: must be a JSON object')
    WHEN NEW.headers IS NOT NULL AND json_type(NEW.headers) <> 'object'
        THEN RAISE(ABORT, 'aftercommit: column headers: must be a JSON object')
    WHEN NEW.headers IS NOT NULL AND EXISTS (
            SELECT 1 FROM json_each(NEW.headers) AS header
            WHERE lower(trim(header.key)) IN ('idempotency-key', 'authorization', 'proxy-authorization', 'host',
                'content-length', 'transfer-encoding', 'content-encoding', 'connection', 'signature', 'signature-input',
                'message-id', 'message_id'))
        THEN RAISE(ABORT, 'aftercommit: column headers: names a header that the downstream''s kind or contract owns (key, authorization, host, length, encoding, signature, message id)')
    -- A line end in a header would begin another one.
    WHEN NEW.headers IS NOT NULL AND (instr(NEW.headers, '\u0000') > 0 OR EXISTS (
            SELECT 1 FROM json_each(NEW.headers) AS header
            WHERE header.key = '' OR header.key GLOB '*[' || char(1) || '-' || char(31) || char(127) || ']*'
                OR header.value GLOB '*[' || char(1) || '-' || char(8) || char(10) || '-' || char(31) || char(127) || ']*'))
        THEN RAISE(ABORT, 'aftercommit: column headers: must not have an empty name, or control characters in a name or a value')
    WHEN NEW.target IS NOT NULL AND (typeof(NEW.target) <> 'text' OR length(NEW.target) NOT BETWEEN 1 AND 2048
            OR instr(NEW.target, char(0)) > 0)
        THEN RAISE(ABORT, 'aftercommit: column target: must be text of 1 to 2048 characters')
    WHEN typeof(NEW.due_at) <> 'integer' OR NEW.due_at NOT BETWEEN 946684800000000 AND 253402300799999999
        THEN RAISE(ABORT, 'aftercommit: column due_at: must be integer microseconds since 1970 (not seconds), within the years 2000 to 9999')
    WHEN NEW.expires_at IS NOT NULL AND (typeof(NEW.expires_at) <> 'integer'
            OR NEW.expires_at NOT BETWEEN 946684800000000 AND 253402300799999999)
        THEN RAISE(ABORT, 'aftercommit: column expires_at: must be integer microseconds since 1970 (not seconds), within the years 2000 to 9999')
    WHEN NEW.ordering_key IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column ordering_key: is not supported yet')
    WHEN NEW.needs IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column needs: is not supported yet')
    WHEN NEW.bindings IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column bindings: is not supported yet')
    WHEN NEW.undoes IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column undoes: is not supported yet')
    WHEN NEW.if_failed IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column if_failed: is not supported yet')
    WHEN NEW.metadata IS NOT NULL AND (typeof(NEW.metadata) <> 'text' OR instr(NEW.metadata, char(0)) > 0
            OR NOT json_valid(NEW.metadata))
        THEN RAISE(ABORT, 'aftercommit: column metadata: must be a JSON object')
    WHEN NEW.metadata IS NOT NULL AND (json_type(NEW.metadata) <> 'object' OR instr(NEW.metadata, '\u0000') > 0)
        THEN RAISE(ABORT, 'aftercommit: column metadata: must be a JSON object without U+0000')
    WHEN NEW.trace_context IS NOT NULL AND (typeof(NEW.trace_context) <> 'text'
            OR length(NEW.trace_context) NOT BETWEEN 1 AND 512
            OR length(CAST(NEW.trace_context AS BLOB)) <> length(NEW.trace_context)
            OR NEW.trace_context GLOB '*[^ -~]*')
        THEN RAISE(ABORT, 'aftercommit: column trace_context: must be a W3C traceparent')
    WHEN typeof(NEW.created_at) <> 'integer' OR abs(NEW.created_at - CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000) > 1000000
        THEN RAISE(ABORT, 'aftercommit: column created_at: is written by the database (leave it out)')
    WHEN NEW.enqueued_by IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column enqueued_by: is written by the database (leave it out)')
    WHEN NEW.fingerprint IS NOT NULL
        THEN RAISE(ABORT, 'aftercommit: column fingerprint: is written by the database (leave it out)')
    WHEN EXISTS (SELECT 1 FROM aftercommit_effects AS held
            WHERE held.downstream = NEW.downstream AND held.idempotency_key = NEW.idempotency_key)
        THEN RAISE(ABORT, 'aftercommit: column idempotency_key: this downstream already has an effect with this key (UNIQUE constraint)')
    END;

    -- What the registered contract knows of its keys, the prefix included.
    SELECT CASE
    WHEN length(d.key_prefix || NEW.idempotency_key) NOT BETWEEN d.key_min_len AND d.key_max_len
        THEN RAISE(ABORT, 'aftercommit: column idempotency_key: with the prefix, is too short or too long for this downstream')
    WHEN d.key_charset = 'token' AND (d.key_prefix || NEW.idempotency_key) GLOB '*[^A-Za-z0-9_:-]*'
        THEN RAISE(ABORT, 'aftercommit: column idempotency_key: may only have letters, digits, _, : and - at this downstream')
    WHEN d.key_charset = 'uuid' AND (d.key_prefix || NEW.idempotency_key) NOT GLOB
            replace('########-####-####-####-############', '#', '[0-9A-Fa-f]')
        THEN RAISE(ABORT, 'aftercommit: column idempotency_key: must be a UUID at this downstream')
    END
    FROM aftercommit_downstreams AS d WHERE d.name = NEW.downstream;
END;

-- Every effect has a queue row from its first moment on, in the transaction that wrote it.
CREATE TRIGGER aftercommit_effects_queue AFTER INSERT ON aftercommit_effects
BEGIN
    SELECT RAISE(ABORT, 'aftercommit: column id: is given by the database (leave it out)') WHERE NEW.id < 1;
    INSERT INTO aftercommit_queue (id, downstream, lane, due_at, sweep_at, expires_at)
    VALUES (NEW.id, NEW.downstream,
            -- Ready by the clock that gave `due_at` its default: another process's clock may be behind it.
            CASE WHEN NEW.due_at <= (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 + 999) THEN 'r' ELSE 't' END,
            NEW.due_at, NEW.expires_at, NEW.expires_at);
END;

CREATE VIEW aftercommit_attempt_log AS
SELECT effect_id, number AS attempt, token, worker, started_at, ended_at, phase, outcome, response_status, error
FROM aftercommit_attempts
UNION ALL
SELECT effect_id, number, token, worker, started_at, ended_at, phase, 'applied', response_status, NULL
FROM aftercommit_outcomes
WHERE phase IS NOT NULL;

-- For look-up by id, by key, or of a bounded set; the tools list and count with statements of their own.
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
        WHEN q.id IS NULL OR q.lane = 'd' OR q.claimed = 1 THEN NULL
        WHEN d.paused_at IS NOT NULL THEN 'pause'
        WHEN NOT EXISTS (
            SELECT 1 FROM aftercommit_workers AS w, json_each(w.downstreams) AS served
            WHERE served.value = e.downstream AND w.seen_at > CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 - 30000000) THEN 'unserved'
    END AS held_by,
    coalesce(o.number, q.number, 0) AS attempts,
    CASE WHEN o.effect_id IS NULL THEN q.due_at ELSE e.due_at END AS due_at,
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
LEFT JOIN aftercommit_terms AS pinned ON pinned.id = q.terms
LEFT JOIN aftercommit_operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '')
LEFT JOIN aftercommit_terms AS today ON today.id = op.terms
LEFT JOIN aftercommit_attempts AS a ON a.effect_id = e.id AND (a.token, a.late) = (
    SELECT l.token, l.late FROM aftercommit_attempts AS l
    WHERE l.effect_id = e.id ORDER BY l.number DESC, l.token DESC, l.late DESC LIMIT 1);

CREATE VIEW aftercommit_pending AS
SELECT * FROM aftercommit_status
WHERE id IN (SELECT id FROM aftercommit_queue WHERE lane <> 'd' AND claimed = 0);

CREATE VIEW aftercommit_unfinished AS
SELECT * FROM aftercommit_status
WHERE id IN (SELECT id FROM aftercommit_queue);

INSERT INTO aftercommit_meta (key, value) VALUES ('installation', lower(hex(randomblob(16))));
INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (1, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
