-- 0003 Probes: what asking a downstream about an effect in doubt has shown so far.

-- One row per effect in doubt that was probed, written by probes alone. It tells of the doubt that its `token` and `due_at` say:
-- where the queue row has others, somebody settled, parked or resolved the effect meanwhile, and a new doubt begins.
CREATE TABLE aftercommit_probes (
    id            INTEGER PRIMARY KEY,
    token         INTEGER NOT NULL,  -- the queue row's, when it was last probed
    due_at        INTEGER NOT NULL,  -- what the last probe, or the claim of the open one, put into the queue row
    probe         INTEGER NOT NULL,  -- of the probe that was begun last: fences what it writes
    travels_until INTEGER NOT NULL,  -- until when the last request may have been travelling
    made          INTEGER NOT NULL DEFAULT 0,
    absent_at     INTEGER,           -- when it was first seen absent
    doubt         TEXT               -- why it is in doubt, without what probes showed
) STRICT;

-- Histories that a probe began, having seen twice that what was sent before was not applied: an answer to that which comes late and
-- says otherwise tells of a possible duplicate. `token` is the new history's: all claims before it have lesser ones. Kept for
-- a month.
CREATE TABLE aftercommit_absences (
    effect_id INTEGER NOT NULL,
    token     INTEGER NOT NULL,
    seen_at   INTEGER NOT NULL,
    PRIMARY KEY (effect_id, token)
) STRICT, WITHOUT ROWID;

-- The downstream stored a server error under the key: a probe's "absent" does not prove that it will not be applied.
ALTER TABLE aftercommit_queue ADD COLUMN error_stored INTEGER NOT NULL DEFAULT 0 CHECK (error_stored IN (0, 1));

-- Serves the claim of probes.
CREATE INDEX aftercommit_queue_probe ON aftercommit_queue (downstream, due_at, id) WHERE lane = 'd' AND due_at IS NOT NULL;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (3, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
