-- 0011 Dashboard: what people's pages, their API and their bulks read and write.

-- ---------------------------------------------------------------------------------------------------------------------
-- Audit
-- ---------------------------------------------------------------------------------------------------------------------

-- From where somebody acted (an address, or "command line"), and as part of which bulk. NULL for what was written before.
ALTER TABLE aftercommit_audit ADD COLUMN from_address TEXT;
ALTER TABLE aftercommit_audit ADD COLUMN bulk INTEGER;
-- From now on an act on an effect names its downstream too, so that these serve "what was done to this one" and "what did she do":
-- keysets by number, as long as the audit is.
CREATE INDEX aftercommit_audit_downstream ON aftercommit_audit (downstream, id) WHERE downstream IS NOT NULL;
CREATE INDEX aftercommit_audit_who ON aftercommit_audit (who, id);

-- ---------------------------------------------------------------------------------------------------------------------
-- Bulks
-- ---------------------------------------------------------------------------------------------------------------------

-- One verb over a frozen list. Whoever carries it out holds it by a lease. The counts of what became of the items are written when
-- it ends; until then they are counted.
CREATE TABLE aftercommit_bulks (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    created_at   INTEGER NOT NULL,
    finished_at  INTEGER,
    lease_until  INTEGER,
    runner       TEXT,
    total        INTEGER NOT NULL CHECK (total >= 0),
    done         INTEGER,
    refused      INTEGER,
    stale        INTEGER,
    gone         INTEGER,
    rate         INTEGER NOT NULL DEFAULT 0 CHECK (rate >= 0),  -- items per second; 0: as fast as it goes
    state        TEXT NOT NULL DEFAULT 'running' CHECK (state IN ('running', 'paused', 'cancelled', 'finished')),
    verb         TEXT NOT NULL,
    what         TEXT NOT NULL,    -- what was chosen, in words
    who          TEXT NOT NULL,
    reason       TEXT,
    from_address TEXT,
    CHECK ((finished_at IS NOT NULL) = (state IN ('cancelled', 'finished')))
) STRICT;
CREATE INDEX aftercommit_bulks_finished ON aftercommit_bulks (finished_at) WHERE finished_at IS NOT NULL;

CREATE TABLE aftercommit_bulk_items (
    bulk       INTEGER NOT NULL,
    n          INTEGER NOT NULL,
    effect_id  INTEGER NOT NULL,
    seen_token INTEGER NOT NULL,
    seen_state TEXT NOT NULL,
    outcome    TEXT CHECK (outcome IN ('done', 'refused', 'stale', 'gone')),  -- NULL: still to be done
    words      TEXT,               -- why it was not done
    PRIMARY KEY (bulk, n)
) STRICT, WITHOUT ROWID;
CREATE INDEX aftercommit_bulk_items_open ON aftercommit_bulk_items (bulk, n) WHERE outcome IS NULL;
CREATE INDEX aftercommit_bulk_items_odd ON aftercommit_bulk_items (bulk, n) WHERE outcome IN ('refused', 'stale', 'gone');

-- ---------------------------------------------------------------------------------------------------------------------
-- Resend
-- ---------------------------------------------------------------------------------------------------------------------

-- A person's one resend that nobody confirmed: not sent past `safe_until`. (`resend`: one that was, sent whenever it can be.)
ALTER TABLE aftercommit_queue ADD COLUMN resend_unconfirmed INTEGER NOT NULL DEFAULT 0 CHECK (resend_unconfirmed IN (0, 1));

-- ---------------------------------------------------------------------------------------------------------------------
-- Traffic
-- ---------------------------------------------------------------------------------------------------------------------

-- How many effects of a downstream ended in a state in the minute, or hour, that began at `at`. Minutes become hours after 25 hours;
-- hours are kept for eight days. Differs from PostgreSQL, where deltas are folded into it: here each settle adds to it, under the
-- lock that it has.
CREATE TABLE aftercommit_traffic (
    per        TEXT NOT NULL CHECK (per IN ('minute', 'hour')),
    at         INTEGER NOT NULL,
    downstream TEXT NOT NULL,
    state      TEXT NOT NULL,
    n          INTEGER NOT NULL,
    PRIMARY KEY (per, at, downstream, state)
) STRICT, WITHOUT ROWID;

-- ---------------------------------------------------------------------------------------------------------------------
-- Search by metadata
-- ---------------------------------------------------------------------------------------------------------------------

-- A word per member of an effect's metadata that is no object and no array: `"order":"A-17"`. Texts are cut and numbers rounded, so
-- that whoever finds something here looks at the metadata itself. Differs from PostgreSQL, which has an index for documents. An
-- INSERT without metadata pays nothing.
CREATE TABLE aftercommit_metadata (
    word      TEXT NOT NULL,
    effect_id INTEGER NOT NULL,
    PRIMARY KEY (word, effect_id)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER aftercommit_effects_metadata AFTER INSERT ON aftercommit_effects WHEN NEW.metadata IS NOT NULL
BEGIN
    INSERT INTO aftercommit_metadata (word, effect_id)
    SELECT DISTINCT json_quote(substr(m.key, 1, 200)) || ':' || CASE m.type
        WHEN 'text' THEN json_quote(substr(m.atom, 1, 200))
        WHEN 'integer' THEN printf('%.12g', m.atom) WHEN 'real' THEN printf('%.12g', m.atom) ELSE m.type END, NEW.id
    FROM json_each(NEW.metadata) AS m WHERE m.type NOT IN ('object', 'array');
END;

CREATE TRIGGER aftercommit_effects_metadata_gone AFTER DELETE ON aftercommit_effects WHEN OLD.metadata IS NOT NULL
BEGIN
    DELETE FROM aftercommit_metadata WHERE effect_id = OLD.id AND word IN (
        SELECT json_quote(substr(m.key, 1, 200)) || ':' || CASE m.type
            WHEN 'text' THEN json_quote(substr(m.atom, 1, 200))
            WHEN 'integer' THEN printf('%.12g', m.atom) WHEN 'real' THEN printf('%.12g', m.atom) ELSE m.type END
        FROM json_each(OLD.metadata) AS m WHERE m.type NOT IN ('object', 'array'));
END;

-- What was written before, under the write lock: seconds at a million effects with metadata.
INSERT INTO aftercommit_metadata (word, effect_id)
SELECT DISTINCT json_quote(substr(m.key, 1, 200)) || ':' || CASE m.type
    WHEN 'text' THEN json_quote(substr(m.atom, 1, 200))
    WHEN 'integer' THEN printf('%.12g', m.atom) WHEN 'real' THEN printf('%.12g', m.atom) ELSE m.type END, e.id
FROM aftercommit_effects AS e, json_each(e.metadata) AS m
WHERE e.metadata IS NOT NULL AND json_valid(e.metadata) AND m.type NOT IN ('object', 'array');

INSERT INTO aftercommit_schema_version (version, applied_at)
VALUES (11, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
