-- 0007 Guard and inbox: what came in, remembered in the transaction that acts on it.
--
-- Differs from PostgreSQL, which has functions and locks for it: here there is one writer. Whoever acts on a request begins
-- with BEGIN IMMEDIATE, looks for the row, and writes it if it is not there; a second one waits for the first to commit, and
-- then reads its answer. docs/guard.md has the statements.

-- One row per (scope, key) that was answered. Only the transaction that wrote a row sees it before it has an answer.
CREATE TABLE aftercommit_requests (
    id               INTEGER PRIMARY KEY AUTOINCREMENT,
    scope            TEXT NOT NULL CHECK (length(scope) BETWEEN 1 AND 255),
    key              TEXT NOT NULL CHECK (length(key) BETWEEN 1 AND 255 AND length(CAST(key AS BLOB)) = length(key)
                                          AND key NOT GLOB '*[^ -~]*' AND key NOT GLOB ' *' AND key NOT GLOB '* ' AND key NOT GLOB '"*'),
    fingerprint      TEXT NOT NULL CHECK (length(fingerprint) BETWEEN 1 AND 1024),
    created_at       INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    -- A day; a default cannot ask for `retention.requests`, so the documented INSERT does.
    expires_at       INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 + 86400000000),
    response_status  INTEGER CHECK (response_status BETWEEN 200 AND 599),
    response_headers BLOB,
    response_body    BLOB,
    -- 0 refers to nothing: with PRAGMA foreign_keys = ON, a COMMIT without the answer, which sets it to NULL, is refused.
    unanswered       INTEGER DEFAULT 0 CHECK (unanswered IS 0 AND response_status IS NULL OR unanswered IS NULL AND response_status IS NOT NULL)
                     REFERENCES aftercommit_token (one) DEFERRABLE INITIALLY DEFERRED,
    -- Seconds would be a time in 1970, which retention forgets at once.
    CHECK (created_at BETWEEN 946684800000000 AND 253402300799999999 AND expires_at > created_at),
    UNIQUE (scope, key)
) STRICT;
CREATE INDEX aftercommit_requests_expires ON aftercommit_requests (expires_at);
-- The request that this transaction acts on: at most one.
CREATE UNIQUE INDEX aftercommit_requests_open ON aftercommit_requests (unanswered) WHERE unanswered IS NOT NULL;

-- In words, and not overruled by OR REPLACE or OR IGNORE, which would drop an answer or act without having begun. Without foreign
-- keys a COMMIT without the answer would go through, and leave a row that stands in everybody's way: they cannot be switched
-- off inside a transaction, so who begins with them also commits with them.
CREATE TRIGGER aftercommit_requests_begin BEFORE INSERT ON aftercommit_requests
BEGIN
    SELECT CASE
    WHEN (SELECT foreign_keys FROM pragma_foreign_keys) = 0
        THEN RAISE(ABORT, 'aftercommit: column unanswered: needs PRAGMA foreign_keys = ON on this connection, before BEGIN IMMEDIATE')
    WHEN NEW.response_status IS NOT NULL OR NEW.unanswered IS NOT 0
        THEN RAISE(ABORT, 'aftercommit: column unanswered: a request begins without its answer (leave it out, and response_status)')
    WHEN EXISTS (SELECT 1 FROM aftercommit_requests WHERE unanswered IS NOT NULL)
        THEN RAISE(ABORT, 'aftercommit: column unanswered: this transaction has begun a request already')
    WHEN EXISTS (SELECT 1 FROM aftercommit_requests AS r WHERE r.scope = NEW.scope AND r.key = NEW.key)
        THEN RAISE(ABORT, 'aftercommit: column key: was answered already: send that answer again (UNIQUE constraint)')
    END;
END;

-- The answer, and nothing else, is written later; and once. How long it is kept may be changed.
CREATE TRIGGER aftercommit_requests_answer
BEFORE UPDATE OF id, scope, key, fingerprint, response_status, response_headers, response_body, unanswered ON aftercommit_requests
WHEN OLD.response_status IS NOT NULL OR NEW.response_status IS NULL OR NEW.id <> OLD.id OR NEW.scope <> OLD.scope
    OR NEW.key <> OLD.key OR NEW.fingerprint <> OLD.fingerprint
BEGIN
    SELECT RAISE(ABORT, 'aftercommit: column response_status: is written once, with response_headers, response_body and unanswered = NULL');
END;

-- Who wants the key back rolls back: without its row what the transaction wrote would be committed, and every repeat act again.
CREATE TRIGGER aftercommit_requests_give_up BEFORE DELETE ON aftercommit_requests WHEN OLD.unanswered IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'aftercommit: column unanswered: this transaction acts on the request: answer it, or ROLLBACK');
END;

-- Which request wrote an effect: its answer is kept until they all have ended.
ALTER TABLE aftercommit_effects ADD COLUMN request_id INTEGER;
CREATE INDEX aftercommit_effects_request ON aftercommit_effects (request_id) WHERE request_id IS NOT NULL;
CREATE TRIGGER aftercommit_effects_request_check BEFORE INSERT ON aftercommit_effects WHEN NEW.request_id IS NOT NULL
BEGIN
    SELECT RAISE(ABORT, 'aftercommit: column request_id: is written by the database (leave it out)');
END;
CREATE TRIGGER aftercommit_effects_of_request AFTER INSERT ON aftercommit_effects
WHEN EXISTS (SELECT 1 FROM aftercommit_requests WHERE unanswered IS NOT NULL)
BEGIN
    UPDATE aftercommit_effects SET request_id = (SELECT id FROM aftercommit_requests WHERE unanswered IS NOT NULL)
    WHERE id = NEW.id;
END;

-- The consumers' record of what they have received.
CREATE TABLE aftercommit_inbox (
    consumer    TEXT NOT NULL CHECK (length(consumer) BETWEEN 1 AND 255),
    key         TEXT NOT NULL CHECK (length(CAST(key AS BLOB)) BETWEEN 1 AND 1024),
    received_at INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000),
    expires_at  INTEGER NOT NULL DEFAULT (CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000 + 2592000000000),
    PRIMARY KEY (consumer, key),
    CHECK (received_at BETWEEN 946684800000000 AND 253402300799999999 AND expires_at > received_at)
) STRICT, WITHOUT ROWID;
CREATE INDEX aftercommit_inbox_expires ON aftercommit_inbox (expires_at);

-- OR REPLACE would accept a message twice, and ON CONFLICT DO NOTHING must go on to say nothing. A trigger is not told which of them
-- it meets: one notes before the row whether the message is known, and only a row that is written all the same comes past the other.
CREATE TABLE aftercommit_inbox_known (consumer TEXT NOT NULL, key TEXT NOT NULL) STRICT;
CREATE TRIGGER aftercommit_inbox_look BEFORE INSERT ON aftercommit_inbox
BEGIN
    DELETE FROM aftercommit_inbox_known WHERE consumer IS NOT NULL;
    INSERT INTO aftercommit_inbox_known SELECT consumer, key FROM aftercommit_inbox WHERE consumer = NEW.consumer AND key = NEW.key;
END;
CREATE TRIGGER aftercommit_inbox_accept AFTER INSERT ON aftercommit_inbox WHEN EXISTS (SELECT 1 FROM aftercommit_inbox_known)
BEGIN
    SELECT RAISE(ABORT, 'aftercommit: column key: was received already: use ON CONFLICT (consumer, key) DO NOTHING, not OR REPLACE');
END;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (7, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
