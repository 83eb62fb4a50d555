-- 0004 Retention: what is dropped when, and what outlives it.
--
-- Of an effect that has ended, the payload goes first, then the history (attempt log and response), then the key with all
-- that is left. `kept` says what is still there, and its index gives each step its work in the order in which it falls due.
-- Differs from PostgreSQL, which has a row per step to take turns by: here there is one writer.

-- 3: payload and history; 2: history; 1: payload; 0: the key. A constant default: the table is not rewritten.
ALTER TABLE aftercommit_outcomes ADD COLUMN kept INTEGER NOT NULL DEFAULT 3 CHECK (kept BETWEEN 0 AND 3);
-- Reads the whole table once, under the write lock: about ten seconds at ten million rows.
CREATE INDEX aftercommit_outcomes_retention ON aftercommit_outcomes (kept, finished_at);

-- The clock when it was last believed. Keys are not dropped by one that is a day ahead of it: it may have jumped, and a key
-- that was dropped too early lets a payment be made twice.
CREATE TABLE aftercommit_retention (
    step      TEXT PRIMARY KEY CHECK (step = 'keys'),
    looked_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
INSERT INTO aftercommit_retention (step, looked_at)
VALUES ('keys', CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);

-- When retention first saw that no operation of today has these terms any more, and when it last found that the queue refers
-- to them still: it does not look through the queue for them again for a day.
ALTER TABLE aftercommit_terms ADD COLUMN retired_at INTEGER;
ALTER TABLE aftercommit_terms ADD COLUMN used_at INTEGER;

-- What a person did to no effect in particular; the rest goes with its effect.
CREATE INDEX aftercommit_audit_general ON aftercommit_audit (at) WHERE effect_id IS NULL;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (4, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
