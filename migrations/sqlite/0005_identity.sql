-- 0005 Identity: how a file that went back, or is another one, is noticed; HOLD. A file has neither a system identifier nor a
-- timeline: the installation and the tokens tell.

-- `epoch` counts the holds that a person lifted: who remembers an older one is told that what changed meanwhile was accepted.
CREATE TABLE aftercommit_identity (
    one               INTEGER PRIMARY KEY CHECK (one = 1),
    system_identifier TEXT,
    timeline          INTEGER,
    epoch             INTEGER NOT NULL DEFAULT 0,
    accepted_at       INTEGER NOT NULL
) STRICT;

-- While its row is there nothing is sent and nothing is probed, by any worker: every claim asks for it.
CREATE TABLE aftercommit_hold (
    one         INTEGER PRIMARY KEY CHECK (one = 1),
    since       INTEGER NOT NULL,
    found_by    TEXT NOT NULL,
    reason      TEXT NOT NULL,
    went_back   INTEGER NOT NULL CHECK (went_back IN (0, 1)),
    marked_to   INTEGER NOT NULL DEFAULT 0,
    marked      INTEGER NOT NULL DEFAULT 0 CHECK (marked IN (0, 1)),
    epoch_above INTEGER NOT NULL DEFAULT 0
) STRICT;

INSERT INTO aftercommit_schema_version (version, applied_at)
VALUES (5, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
