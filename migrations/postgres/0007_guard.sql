-- 0007 Guard and inbox: what came in, remembered in the transaction that acts on it.
--
-- `begin_request` and `finish_request` keep the answer of a request with the business rows that it made, so that a repeat gets
-- the same answer; `inbox_accept` lets a consumer act once on a message that comes twice. Both leave a trace if and only if the
-- caller's transaction commits.

-- One row per (scope, key) that was answered. Only the transaction that wrote a row sees it before it has an answer.
CREATE TABLE aftercommit.requests (
  id               bigint GENERATED ALWAYS AS IDENTITY,   -- what its effects carry
  xid              xid8 NOT NULL DEFAULT pg_current_xact_id(),
  created_at       timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at       timestamptz NOT NULL,
  response_status  integer,
  scope            text COLLATE "C" NOT NULL,
  key              text COLLATE "C" NOT NULL,
  fingerprint      text COLLATE "C" NOT NULL,
  response_headers bytea,           -- the lines as they were sent: json would lose bytes, order and repetition
  response_body    bytea,
  PRIMARY KEY (scope, key)
) WITH (fillfactor = 70);           -- the answer goes into the row that its request began: a HOT update
CREATE INDEX requests_expires ON aftercommit.requests (expires_at);

-- Which request wrote an effect: its answer is kept until they all have ended. No rewrite of the table, since the default is
-- not volatile; nobody may write the column. `begin_request` tells the transaction; after its end the setting reads as ''.
ALTER TABLE aftercommit.effects ADD COLUMN IF NOT EXISTS request_id bigint;
ALTER TABLE aftercommit.effects
  ALTER COLUMN request_id SET DEFAULT nullif(current_setting('aftercommit.request', true), '')::bigint;
CREATE INDEX IF NOT EXISTS effects_request ON aftercommit.effects (request_id) WHERE request_id IS NOT NULL;

-- The consumers' record of what they have received.
CREATE TABLE aftercommit.inbox (
  consumer    text COLLATE "C" NOT NULL,
  key         text COLLATE "C" NOT NULL,
  received_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  expires_at  timestamptz NOT NULL,
  PRIMARY KEY (consumer, key)
);
CREATE INDEX inbox_expires ON aftercommit.inbox (expires_at);

-- ---------------------------------------------------------------------------------------------------------------------
-- Guard
-- ---------------------------------------------------------------------------------------------------------------------

-- What is wrong with the words of a request; null when nothing is. Keys as those of effects.
CREATE FUNCTION aftercommit.request_problem(scope text, key text, fingerprint text, ttl interval) RETURNS text
LANGUAGE plpgsql STABLE SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  RETURN CASE
    WHEN scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN 'scope must be 1 to 255 characters: who sent the request'
    WHEN key IS NULL THEN 'key must not be null'
    WHEN aftercommit.key_problem(key, '', NULL, NULL, NULL) IS NOT NULL
      THEN 'key ' || aftercommit.key_problem(key, '', NULL, NULL, NULL)
    WHEN fingerprint IS NULL OR length(fingerprint) NOT BETWEEN 1 AND 1024
      THEN 'fingerprint must be 1 to 1024 characters: a hash of what makes two requests the same'
    -- Zero is not "not given": an answer that is forgotten at once would guard nothing.
    WHEN ttl <= '0' OR ttl > '10 years' THEN 'ttl must be longer than 0 and at most 10 years'
  END;
END
$$;

-- Whether an effect that the request wrote has not ended.
CREATE FUNCTION aftercommit.request_is_unfinished(request_id bigint) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM aftercommit.effects AS e
    WHERE e.request_id = request_is_unfinished.request_id
      AND NOT EXISTS (SELECT FROM aftercommit.outcomes AS o WHERE o.effect_id = e.id))
$$;

-- The transaction that holds a key's lock, by one look at the lock table, which is of one moment. `same_request`: it holds the
-- fingerprint's lock too. `acts`: it has written, and had not begun to end when the look was over.
CREATE FUNCTION aftercommit.request_holder(
  key_lock bigint, fingerprint_lock bigint, OUT name text, OUT same_request boolean, OUT acts boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  writer bigint;   -- the low half of its transaction id
  next_id bigint;
BEGIN
  WITH locks AS MATERIALIZED (
    SELECT l.virtualtransaction AS name, l.mode, l.transactionid::text::bigint AS writer,
           CASE WHEN l.locktype = 'advisory' AND l.objsubid = 1
                  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
             THEN l.classid::bigint << 32 | l.objid::bigint END AS lock
    FROM pg_locks AS l
    WHERE l.granted AND l.locktype IN ('advisory', 'transactionid') AND l.mode IN ('ExclusiveLock', 'ShareLock')
  )
  SELECT k.name, EXISTS (SELECT FROM locks AS f WHERE f.name = k.name AND f.lock = fingerprint_lock),
         (SELECT min(w.writer) FROM locks AS w WHERE w.name = k.name AND w.mode = 'ExclusiveLock')
  INTO name, same_request, writer
  FROM locks AS k WHERE k.lock = key_lock AND k.mode = 'ExclusiveLock';
  IF NOT FOUND THEN
    RETURN;
  END IF;
  acts := false;
  IF NOT same_request AND writer IS NOT NULL THEN
    next_id := pg_snapshot_xmax(pg_current_snapshot())::text::bigint;
    writer := writer + (next_id >> 32 << 32);
    writer := writer + CASE WHEN writer > next_id + 2147483648 THEN -4294967296 WHEN writer < next_id - 2147483648 THEN 4294967296 ELSE 0 END;
    acts := pg_xact_status(writer::text::xid8) = 'in progress';
  END IF;
  RETURN NEXT;
END
$$;

-- The first call of a transaction that acts on a request. `status`: 'new' (go on, in this transaction, and end it with
-- finish_request), 'replay' (answer with what stands beside it), 'in_progress' (409: the first has not committed yet),
-- 'mismatch' (422: the key is another request's). It never waits for the first.
--
-- Whoever acts on a key holds its lock, and one of key and fingerprint, taken before, until the end of the transaction; who finds
-- the key's lock taken and no answer reads from the lock table which of the two it is. A transaction that ends gives its
-- locks back one by one: so the other fingerprint's lock counts as missing only while the holder certainly had not begun to end,
-- seen twice.
CREATE FUNCTION aftercommit.begin_request(
  scope text, key text, fingerprint text, ttl interval DEFAULT NULL,
  OUT status text, OUT response_status integer, OUT response_headers bytea, OUT response_body bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  problem text;
  key_lock bigint;
  fingerprint_lock bigint;
  held boolean := false;
  fresh record;
  stored aftercommit.requests;
  holder record;
  suspect text;   -- the transaction that was seen once to act on another fingerprint
BEGIN
  IF ttl IS NOT NULL OR scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 OR key IS NULL
     OR length(key) NOT BETWEEN 1 AND 255 OR key ~ '[^!-~]' OR fingerprint IS NULL OR length(fingerprint) NOT BETWEEN 1 AND 1024 THEN
    problem := aftercommit.request_problem(scope, key, fingerprint, ttl);
    IF problem IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'AC400', MESSAGE = 'begin_request: ' || problem, COLUMN = split_part(problem, ' ', 1),
        HINT = 'SELECT * FROM aftercommit.begin_request(scope, key, fingerprint [, ttl]).';
    END IF;
  END IF;
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '25001', MESSAGE = 'begin_request must come first in its transaction, which has written already',
      HINT = 'BEGIN, begin_request, the business statements, finish_request, COMMIT. Call it as SELECT * FROM '
        'aftercommit.begin_request(…): (aftercommit.begin_request(…)).* calls it once per column.';
  END IF;
  key_lock := hashtextextended(key, hashtextextended(scope, 4711));
  fingerprint_lock := hashtextextended(fingerprint, key_lock);
  PERFORM pg_advisory_xact_lock_shared(fingerprint_lock);
  FOR look IN 1 .. 200 LOOP
    held := held OR pg_try_advisory_xact_lock(key_lock);
    IF held THEN
      INSERT INTO aftercommit.requests AS r (scope, key, fingerprint, expires_at)
      VALUES (scope, key, fingerprint, clock_timestamp() + coalesce(ttl,
        (SELECT m.value::bigint * interval '1 microsecond' FROM aftercommit.meta AS m WHERE m.key = 'requests_kept_us'), '24 hours'))
      ON CONFLICT ON CONSTRAINT requests_pkey DO NOTHING
      RETURNING r.id, r.xmin AS writer INTO fresh;
      IF FOUND THEN
        -- Its locks would go, one by one, when a savepoint is rolled back, while the transaction lives on.
        IF fresh.writer::text::bigint <> pg_current_xact_id()::text::bigint & 4294967295 THEN
          RAISE EXCEPTION USING ERRCODE = '25001', MESSAGE = 'begin_request must not stand inside a savepoint',
            HINT = 'BEGIN, begin_request, then SAVEPOINT.';
        END IF;
        PERFORM set_config('aftercommit.request', fresh.id::text, true), set_config('aftercommit.request_scope', scope, true),
                set_config('aftercommit.request_key', key, true);
        status := 'new';
        RETURN;
      END IF;
    END IF;
    SELECT r.* INTO stored FROM aftercommit.requests AS r WHERE r.scope = begin_request.scope AND r.key = begin_request.key;
    IF FOUND AND (stored.expires_at > clock_timestamp() OR aftercommit.request_is_unfinished(stored.id)) THEN
      IF stored.fingerprint <> fingerprint THEN
        status := 'mismatch';
      ELSE
        status := 'replay';
        response_status := stored.response_status;
        response_headers := stored.response_headers;
        response_body := stored.response_body;
      END IF;
      RETURN;
    END IF;
    -- Forgotten, or taken away by retention just now: who holds the key's lock begins anew.
    IF held THEN
      DELETE FROM aftercommit.requests AS r
      WHERE r.scope = begin_request.scope AND r.key = begin_request.key AND r.id = stored.id;
      CONTINUE;
    END IF;
    SELECT h.* INTO holder FROM aftercommit.request_holder(key_lock, fingerprint_lock) AS h;
    IF FOUND THEN
      IF holder.same_request THEN
        status := 'in_progress';
        RETURN;
      ELSIF holder.acts AND holder.name = suspect THEN
        status := 'mismatch';
        RETURN;
      END IF;
      suspect := CASE WHEN holder.acts THEN holder.name END;
      PERFORM pg_sleep(0.001);
    END IF;
  END LOOP;
  -- Here only with an older snapshot, to which the answer is invisible.
  RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'begin_request: the key was answered after this transaction''s snapshot was taken',
    HINT = 'Retry the transaction: it gets the answer.';
END
$$;

CREATE FUNCTION aftercommit.begin_request(
  scope text, key text, fingerprint bytea, ttl interval DEFAULT NULL,
  OUT status text, OUT response_status integer, OUT response_headers bytea, OUT response_body bytea)
LANGUAGE sql SET search_path = pg_catalog, pg_temp AS $$
  SELECT * FROM aftercommit.begin_request(scope, key, encode(fingerprint, 'hex'), ttl)
$$;

-- The answer that a repeat of the request gets. In the transaction that began it, before its COMMIT.
CREATE FUNCTION aftercommit.finish_request(
  scope text, key text, response_status integer, response_headers bytea DEFAULT NULL, response_body bytea DEFAULT NULL)
RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  IF response_status IS NULL OR response_status NOT BETWEEN 100 AND 599 THEN
    RAISE EXCEPTION USING ERRCODE = 'AC400', MESSAGE = 'finish_request: response_status must be 100 to 599', COLUMN = 'response_status',
      HINT = 'The status of the answer, as it is sent.';
  END IF;
  UPDATE aftercommit.requests AS r
  SET response_status = finish_request.response_status, response_headers = coalesce(finish_request.response_headers, ''),
      response_body = coalesce(finish_request.response_body, '')
  WHERE r.scope = finish_request.scope AND r.key = finish_request.key AND r.xid = pg_current_xact_id()
    AND r.response_status IS NULL;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = '55000', MESSAGE = 'finish_request: this transaction has not begun this request, or has finished it already',
      HINT = 'begin_request says ''new'' to the one transaction that may finish.';
  END IF;
END
$$;

-- A request without an answer cannot be repeated: its business rows would be there, and every retry would act again.
CREATE FUNCTION aftercommit.on_request_commit() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF EXISTS (SELECT FROM aftercommit.requests AS r
             WHERE r.scope = NEW.scope AND r.key = NEW.key AND r.id = NEW.id AND r.response_status IS NULL) THEN
    RAISE EXCEPTION USING ERRCODE = 'AC001', MESSAGE = 'the request was begun and not finished: nothing is committed',
      HINT = 'Call finish_request before COMMIT (and before SET CONSTRAINTS ALL IMMEDIATE), or ROLLBACK.';
  END IF;
  RETURN NULL;
END
$$;
CREATE CONSTRAINT TRIGGER requests_committed AFTER INSERT ON aftercommit.requests
  DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION aftercommit.on_request_commit();

-- ---------------------------------------------------------------------------------------------------------------------
-- Inbox
-- ---------------------------------------------------------------------------------------------------------------------

-- True in at most one committed transaction per (consumer, key): act on the message then, in this transaction, and acknowledge it
-- after the COMMIT. Waits for another transaction that has accepted it and is still open. `keep`: at least as long as the
-- sender may send it again.
CREATE FUNCTION aftercommit.inbox_accept(consumer text, key text, keep interval DEFAULT '30 days') RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  problem text := CASE
    WHEN consumer IS NULL OR length(consumer) NOT BETWEEN 1 AND 255 THEN 'consumer must be 1 to 255 characters: who receives'
    WHEN key IS NULL OR length(key) NOT BETWEEN 1 AND 1024 THEN 'key must be 1 to 1024 characters: what the sender calls the message'
    WHEN keep IS NULL OR keep <= '0' OR keep > '10 years' THEN 'keep must be longer than 0 and at most 10 years' END;
BEGIN
  IF problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'AC400', MESSAGE = 'inbox_accept: ' || problem, COLUMN = split_part(problem, ' ', 1),
      HINT = 'inbox_accept(consumer, key [, keep]).';
  END IF;
  INSERT INTO aftercommit.inbox (consumer, key, expires_at) VALUES (consumer, key, clock_timestamp() + keep)
  ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
  RETURN FOUND;
END
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Enqueue: keys of effects that a request wrote
-- ---------------------------------------------------------------------------------------------------------------------

-- Whether the guarded request of this transaction wrote this effect.
CREATE FUNCTION aftercommit.is_of_this_request(effect_id bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM aftercommit.effects AS e
    WHERE e.id = effect_id AND e.request_id = nullif(current_setting('aftercommit.request', true), '')::bigint)
$$;

-- Writes an effect, or finds the one that its key stands for. Call it as `SELECT * FROM aftercommit.enqueue(…)`:
-- `(aftercommit.enqueue(…)).*` calls it once per column. In a guarded request a key that is missing is derived from the
-- request's, so that the same request, should it run again, finds the same effects.
CREATE OR REPLACE FUNCTION aftercommit.enqueue(
  downstream text,
  payload json DEFAULT NULL,
  OUT id bigint,
  INOUT idempotency_key text DEFAULT NULL,
  OUT inserted boolean,
  OUT state text,
  operation text DEFAULT NULL,
  name text DEFAULT NULL,           -- distinguishes two effects of one guarded request; unused outside of one
  body bytea DEFAULT NULL,
  content_type text DEFAULT NULL,
  headers json DEFAULT NULL,
  target text DEFAULT NULL,
  due_at timestamptz DEFAULT NULL,
  expires_at timestamptz DEFAULT NULL,
  ordering_key text DEFAULT NULL,
  needs bigint[] DEFAULT NULL,
  bindings json DEFAULT NULL,
  undoes bigint DEFAULT NULL,
  if_failed bigint[] DEFAULT NULL,
  metadata jsonb DEFAULT NULL,
  trace_context text DEFAULT NULL)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_variable
DECLARE
  rule aftercommit.downstreams;
  problem text;
  identical boolean;
  derived boolean := idempotency_key IS NULL AND nullif(current_setting('aftercommit.request', true), '') IS NOT NULL;
BEGIN
  SELECT * INTO rule FROM aftercommit.downstreams AS d WHERE d.name = enqueue.downstream;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'AC404', COLUMN = 'downstream',
      MESSAGE = format('no downstream is named %s', quote_literal(left(coalesce(downstream, 'null'), 128))),
      HINT = 'A name becomes known by `aftercommit migrate` and by each worker''s start.';
  END IF;
  IF derived THEN
    idempotency_key := aftercommit.derive_key(current_setting('aftercommit.request_scope'),
      current_setting('aftercommit.request_key'), coalesce(name, downstream || '/' || coalesce(operation, '')));
  END IF;
  idempotency_key := coalesce(idempotency_key, gen_random_uuid()::text);
  problem := aftercommit.key_problem(idempotency_key, rule.key_prefix, rule.key_min_len, rule.key_max_len, rule.key_charset);
  IF problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'AC400', COLUMN = 'idempotency_key', MESSAGE = 'effects.idempotency_key ' || problem,
      HINT = 'A UUID fits every known downstream; a key is never cut, hashed or re-cased.';
  END IF;
  IF payload IS NOT NULL AND aftercommit.json_depth(payload::text) > 128 THEN
    RAISE EXCEPTION USING ERRCODE = '23514', SCHEMA = 'aftercommit', TABLE = 'effects', COLUMN = 'payload',
      MESSAGE = 'effects.payload must not nest deeper than 128 levels', HINT = 'JSON parsers elsewhere give up at that depth.';
  END IF;
  FOR round IN 1 .. 100 LOOP
    -- A key that another, uncommitted transaction holds is waited for here.
    INSERT INTO aftercommit.effects AS e (downstream, operation, idempotency_key, payload, body, content_type, headers, target,
      due_at, expires_at, ordering_key, needs, bindings, undoes, if_failed, metadata, trace_context)
    VALUES (downstream, operation, idempotency_key, payload, body, content_type, headers, target,
      coalesce(due_at, clock_timestamp()), expires_at, ordering_key, needs, bindings, undoes, if_failed, metadata, trace_context)
    ON CONFLICT ON CONSTRAINT effects_key DO NOTHING
    RETURNING e.id INTO id;
    IF FOUND THEN
      inserted := true;
      SELECT x.state INTO state FROM aftercommit.existing(downstream, idempotency_key, operation, payload::text, body,
        content_type, headers::text, target) AS x;
      RETURN;
    END IF;
    -- A statement of its own sees what the other transaction committed.
    SELECT x.id, x.state, x.identical INTO id, state, identical
    FROM aftercommit.existing(downstream, idempotency_key, operation, payload::text, body, content_type, headers::text,
      target) AS x;
    IF FOUND THEN
      IF derived AND aftercommit.is_of_this_request(id) THEN
        RAISE EXCEPTION USING ERRCODE = 'AC409', COLUMN = 'idempotency_key',
          MESSAGE = format('this request has two effects that would have the same key (effect %s)', id),
          HINT = 'Give each effect a name: enqueue(…, name => ''deposit'').';
      END IF;
      IF NOT identical OR ordering_key IS NOT NULL OR needs IS NOT NULL OR bindings IS NOT NULL OR undoes IS NOT NULL THEN
        RAISE EXCEPTION USING ERRCODE = 'AC422', COLUMN = 'idempotency_key',
          MESSAGE = format('%s already has an effect with this key and another request (effect %s)', downstream, id),
          HINT = 'Use another key, or the same request.';
      END IF;
      inserted := false;
      RETURN;
    END IF;
  END LOOP;
  RAISE EXCEPTION USING ERRCODE = '40001', MESSAGE = 'the key was taken and freed again and again', HINT = 'Retry the transaction.';
END
$$;

REVOKE ALL ON FUNCTION aftercommit.request_problem, aftercommit.request_is_unfinished, aftercommit.request_holder,
  aftercommit.begin_request(text, text, text, interval), aftercommit.begin_request(text, text, bytea, interval),
  aftercommit.finish_request, aftercommit.on_request_commit, aftercommit.inbox_accept, aftercommit.is_of_this_request
  FROM PUBLIC;

-- BEGIN roles
DO $roles$
BEGIN
  IF to_regrole('aftercommit_app') IS NOT NULL THEN
    GRANT EXECUTE ON FUNCTION aftercommit.begin_request(text, text, text, interval),
      aftercommit.begin_request(text, text, bytea, interval), aftercommit.finish_request, aftercommit.inbox_accept,
      aftercommit.is_of_this_request TO aftercommit_app;
  END IF;
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT SELECT (id, scope, key, created_at, expires_at, response_status), DELETE ON aftercommit.requests TO aftercommit_worker;
    GRANT SELECT, DELETE ON aftercommit.inbox TO aftercommit_worker;
    GRANT EXECUTE ON FUNCTION aftercommit.request_is_unfinished TO aftercommit_worker;
  END IF;
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT SELECT (id, scope, key, created_at, expires_at, response_status), DELETE ON aftercommit.requests TO aftercommit_operator;
    GRANT SELECT, DELETE ON aftercommit.inbox TO aftercommit_operator;
    GRANT EXECUTE ON FUNCTION aftercommit.request_is_unfinished TO aftercommit_operator;
  END IF;
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT (id, scope, key, created_at, expires_at, response_status) ON aftercommit.requests TO aftercommit_viewer;
    GRANT SELECT (request_id) ON aftercommit.effects TO aftercommit_viewer;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (7);
