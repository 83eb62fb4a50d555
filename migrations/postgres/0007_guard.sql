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
CREATE INDEX requests_expires ON aftercommit.requests (expires_at, id);

-- Which request wrote an effect: its answer is kept until they all have ended. Column and index only where they are missing,
-- as an operator may have made them before, without stopping anybody: see migrations/README.md.
DO $request$
BEGIN
  IF NOT EXISTS (SELECT FROM pg_attribute WHERE attrelid = 'aftercommit.effects'::regclass AND attname = 'request_id') THEN
    ALTER TABLE aftercommit.effects ADD COLUMN request_id bigint;
  END IF;
  IF EXISTS (SELECT FROM pg_index WHERE indexrelid = to_regclass('aftercommit.effects_request') AND NOT indisvalid) THEN
    RAISE EXCEPTION 'the index aftercommit.effects_request is INVALID: its CREATE INDEX CONCURRENTLY failed'
      USING HINT = 'DROP INDEX CONCURRENTLY aftercommit.effects_request, build it again, then run aftercommit migrate again.';
  END IF;
  -- Reads the table once to find that nothing belongs into it.
  IF to_regclass('aftercommit.effects_request') IS NULL THEN
    CREATE INDEX effects_request ON aftercommit.effects (request_id) WHERE request_id IS NOT NULL;
  END IF;
END
$request$;

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
DECLARE
  now_at timestamptz := clock_timestamp();
BEGIN
  RETURN CASE
    WHEN scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 THEN 'scope must be 1 to 255 characters: who sent the request'
    WHEN key IS NULL THEN 'key must not be null'
    WHEN aftercommit.key_problem(key, '', NULL, NULL, NULL) IS NOT NULL
      THEN 'key ' || aftercommit.key_problem(key, '', NULL, NULL, NULL)
    -- The header as it came would be another key than the same one sent bare.
    WHEN left(key, 1) = '"' THEN 'key must be given without the quotes that it has in its header'
    WHEN fingerprint IS NULL OR length(fingerprint) NOT BETWEEN 1 AND 1024
      THEN 'fingerprint must be 1 to 1024 characters: a hash of what makes two requests the same'
    -- Zero is not "not given": an answer that is forgotten at once would guard nothing. '-12 mons +361 days' compares as a day.
    WHEN ttl <= '0' OR ttl > '3600 days' OR now_at + ttl <= now_at THEN 'ttl must be longer than 0 and at most 3600 days'
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

-- Whether keys may be forgotten by this clock: retention remembers when it believed it last. One that jumped would forget every
-- answer at once, and each repeat would act again.
CREATE FUNCTION aftercommit.clock_is_believed(now_at timestamptz) RETURNS boolean
LANGUAGE sql STABLE SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM aftercommit.retention AS k WHERE k.step = 'keys' AND now_at <= k.looked_at + interval '1 day')
$$;

-- The transaction that has begun a request, by one look at the lock table, which is of one moment. `same_request`: it holds the
-- fingerprint's lock too. `acts`: it had not begun to end when the look was over.
CREATE FUNCTION aftercommit.request_holder(
  begun_lock bigint, fingerprint_lock bigint, OUT name text, OUT same_request boolean, OUT acts boolean)
RETURNS SETOF record
LANGUAGE plpgsql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  writer bigint;   -- the low half of its transaction id
  next_id bigint;
BEGIN
  WITH locks AS MATERIALIZED (
    SELECT l.virtualtransaction AS name, l.transactionid::text::bigint AS writer,
           CASE WHEN l.locktype = 'advisory' AND l.objsubid = 1
                  AND l.database = (SELECT d.oid FROM pg_database AS d WHERE d.datname = current_database())
             THEN l.classid::bigint << 32 | l.objid::bigint END AS lock
    FROM pg_locks AS l
    WHERE l.granted AND (l.locktype = 'advisory' OR l.locktype = 'transactionid' AND l.mode = 'ExclusiveLock')
  )
  SELECT b.name, EXISTS (SELECT FROM locks AS f WHERE f.name = b.name AND f.lock = fingerprint_lock),
         (SELECT min(w.writer) FROM locks AS w WHERE w.name = b.name)
  INTO name, same_request, writer
  FROM locks AS b WHERE b.lock = begun_lock;
  IF NOT FOUND THEN
    RETURN;
  END IF;
  acts := false;
  IF NOT same_request AND writer IS NOT NULL THEN
    -- The lock table has 32 bits of a transaction's id; it is within half of them of the next one.
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
-- Answers are shared by all roles that may call it: where several applications use one database, the scope names the application
-- too. Else one gets, or decides, what the other answers.
--
-- A server that vanished leaves its transaction open, and the key taken, until TCP gives up: hours. So the transaction may stand
-- idle for five minutes, unless its session says for how long.
--
-- Three locks, all until the end of the transaction. Whoever gets the key's writes the row; who has written it takes the
-- fingerprint's, then the one that says "begun". Who finds the key's lock taken and no answer reads from the lock table which
-- request was begun. A transaction that ends gives its locks back one by one: so a fingerprint's lock counts as missing
-- only while the transaction certainly had not begun to end, seen twice.
CREATE FUNCTION aftercommit.begin_request(
  scope text, key text, fingerprint text, ttl interval DEFAULT NULL,
  OUT status text, OUT response_status integer, OUT response_headers bytea, OUT response_body bytea)
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
DECLARE
  problem text;
  key_lock bigint;
  fingerprint_lock bigint;
  begun_lock bigint;
  held boolean := false;
  fresh record;
  stored aftercommit.requests;
  holder record;
  suspect text;   -- the transaction that was seen once to act on another fingerprint
BEGIN
  IF ttl IS NOT NULL OR scope IS NULL OR length(scope) NOT BETWEEN 1 AND 255 OR key IS NULL
     OR length(key) NOT BETWEEN 1 AND 255 OR key ~ '^"|[^!-~]' OR fingerprint IS NULL OR length(fingerprint) NOT BETWEEN 1 AND 1024 THEN
    problem := aftercommit.request_problem(scope, key, fingerprint, ttl);
    IF problem IS NOT NULL THEN
      RAISE EXCEPTION USING ERRCODE = 'AC400', MESSAGE = 'begin_request: ' || problem, COLUMN = split_part(problem, ' ', 1),
        HINT = 'SELECT * FROM aftercommit.begin_request(scope, key, fingerprint [, ttl]).';
    END IF;
  END IF;
  IF pg_current_xact_id_if_assigned() IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '25001',
      MESSAGE = 'begin_request must come first in its transaction, and once: this one has written, locked rows, or begun a request already',
      HINT = 'BEGIN, begin_request, the business statements, finish_request, COMMIT; one request in a transaction. Call it as '
        'SELECT * FROM aftercommit.begin_request(…): (aftercommit.begin_request(…)).* calls it once per column.';
  END IF;
  key_lock := hashtextextended(key, hashtextextended(scope, 4711));
  fingerprint_lock := hashtextextended(fingerprint, key_lock);
  begun_lock := hashtextextended('', key_lock);   -- no fingerprint is empty
  FOR look IN 1 .. 200 LOOP
    held := held OR pg_try_advisory_xact_lock(key_lock);
    SELECT r.* INTO stored FROM aftercommit.requests AS r WHERE r.scope = begin_request.scope AND r.key = begin_request.key;
    IF FOUND AND (stored.expires_at > clock_timestamp() OR aftercommit.request_is_unfinished(stored.id)
                  OR NOT aftercommit.clock_is_believed(clock_timestamp())) THEN
      IF stored.fingerprint <> fingerprint THEN
        status := 'mismatch';
      ELSE
        status := 'replay';
        response_status := stored.response_status;
        response_headers := stored.response_headers;
        response_body := stored.response_body;
      END IF;
      PERFORM set_config('aftercommit.request', status, true);   -- Who acts all the same is told by the effect.
      RETURN;
    END IF;
    IF held THEN
      -- Forgotten: who holds the key's lock begins anew.
      IF FOUND THEN
        DELETE FROM aftercommit.requests AS r
        WHERE r.scope = begin_request.scope AND r.key = begin_request.key AND r.id = stored.id;
      END IF;
      -- A new snapshot, taken under the lock, shows every answer there is: the key is free. An older one may not show an answer, and
      -- then ON CONFLICT, which costs 10 us more, says 40001.
      IF current_setting('transaction_isolation') = 'read committed' THEN
        INSERT INTO aftercommit.requests AS r (scope, key, fingerprint, expires_at)
        VALUES (scope, key, fingerprint, clock_timestamp() + coalesce(ttl,
          (SELECT m.value::bigint * interval '1 microsecond' FROM aftercommit.meta AS m WHERE m.key = 'requests_kept_us'), '24 hours'))
        RETURNING r.id, r.xmin AS writer INTO fresh;
      ELSE
        INSERT INTO aftercommit.requests AS r (scope, key, fingerprint, expires_at)
        VALUES (scope, key, fingerprint, clock_timestamp() + coalesce(ttl,
          (SELECT m.value::bigint * interval '1 microsecond' FROM aftercommit.meta AS m WHERE m.key = 'requests_kept_us'), '24 hours'))
        ON CONFLICT ON CONSTRAINT requests_pkey DO NOTHING
        RETURNING r.id, r.xmin AS writer INTO fresh;
        EXIT WHEN NOT FOUND;
      END IF;
      -- Its locks would go when a savepoint is rolled back, while the transaction lives on.
      IF fresh.writer::text::bigint <> pg_current_xact_id()::text::bigint & 4294967295 THEN
        RAISE EXCEPTION USING ERRCODE = '25001', MESSAGE = 'begin_request must not stand inside a savepoint',
          HINT = 'BEGIN, begin_request, then SAVEPOINT (a plpgsql block with EXCEPTION is one too).';
      END IF;
      PERFORM pg_advisory_xact_lock_shared(fingerprint_lock), pg_advisory_xact_lock_shared(begun_lock),
              set_config('aftercommit.request', fresh.id::text, true), set_config('aftercommit.request_scope', scope, true),
              set_config('aftercommit.request_key', key, true),
              CASE WHEN current_setting('idle_in_transaction_session_timeout') = '0'
                THEN set_config('idle_in_transaction_session_timeout', '5min', true) END;
      status := 'new';
      RETURN;
    END IF;
    SELECT h.* INTO holder FROM aftercommit.request_holder(begun_lock, fingerprint_lock) AS h;
    IF FOUND AND holder.same_request THEN
      status := 'in_progress';
      PERFORM set_config('aftercommit.request', status, true);
      RETURN;
    ELSIF FOUND AND holder.acts AND holder.name = suspect THEN
      status := 'mismatch';
      PERFORM set_config('aftercommit.request', status, true);
      RETURN;
    END IF;
    suspect := CASE WHEN FOUND AND holder.acts THEN holder.name END;
    PERFORM pg_sleep(0.001);
  END LOOP;
  -- Somebody who was told 'replay' or 'mismatch' keeps the key's lock in a transaction that stays open, and the answer is not
  -- there (any more), or not for this transaction.
  IF current_setting('transaction_isolation') NOT IN ('repeatable read', 'serializable') THEN
    status := 'in_progress';
    PERFORM set_config('aftercommit.request', status, true);
    RETURN;
  END IF;
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
  IF response_status IS NULL OR response_status NOT BETWEEN 200 AND 599 THEN
    RAISE EXCEPTION USING ERRCODE = 'AC400', MESSAGE = 'finish_request: response_status must be 200 to 599', COLUMN = 'response_status',
      HINT = 'The status of the final answer, as it is sent: a 1xx is none.';
  END IF;
  UPDATE aftercommit.requests AS r
  SET response_status = finish_request.response_status, response_headers = coalesce(finish_request.response_headers, ''),
      response_body = coalesce(finish_request.response_body, '')
  WHERE r.scope = finish_request.scope AND r.key = finish_request.key AND r.xid = pg_current_xact_id_if_assigned()
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
  now_at timestamptz := clock_timestamp();
  problem text := CASE
    WHEN consumer IS NULL OR length(consumer) NOT BETWEEN 1 AND 255 THEN 'consumer must be 1 to 255 characters: who receives'
    -- In bytes: an index entry has no room for more.
    WHEN key IS NULL OR octet_length(key) NOT BETWEEN 1 AND 1024 THEN 'key must be 1 to 1024 bytes: what the sender calls the message'
    WHEN keep IS NULL OR keep <= '0' OR keep > '3600 days' OR now_at + keep <= now_at
      THEN 'keep must be longer than 0 and at most 3600 days' END;
BEGIN
  IF problem IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = 'AC400', MESSAGE = 'inbox_accept: ' || problem, COLUMN = split_part(problem, ' ', 1),
      HINT = 'inbox_accept(consumer, key [, keep]).';
  END IF;
  INSERT INTO aftercommit.inbox (consumer, key, expires_at) VALUES (consumer, key, now_at + keep)
  ON CONFLICT ON CONSTRAINT inbox_pkey DO NOTHING;
  RETURN FOUND;
END
$$;

-- ---------------------------------------------------------------------------------------------------------------------
-- Enqueue: keys of effects that a request wrote
-- ---------------------------------------------------------------------------------------------------------------------

-- The request that this transaction acts on; null when it acts on none. `begin_request` tells the transaction by settings, which
-- anybody can write: so they count only with the row that it wrote.
CREATE FUNCTION aftercommit.this_request() RETURNS bigint
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  said text := current_setting('aftercommit.request', true);   -- reads as '' after the transaction that set it
  found_id bigint;
BEGIN
  IF coalesce(said, '') = '' THEN
    RETURN NULL;
  END IF;
  SELECT r.id INTO found_id FROM aftercommit.requests AS r
  WHERE r.scope = current_setting('aftercommit.request_scope', true) AND r.key = current_setting('aftercommit.request_key', true)
    AND r.id::text = said AND r.xid = pg_current_xact_id_if_assigned();
  IF found_id IS NULL AND said IN ('replay', 'mismatch', 'in_progress') THEN
    RAISE EXCEPTION USING ERRCODE = '55000',
      MESSAGE = format('begin_request said %s in this transaction: an effect of it would be one too many', quote_literal(said)),
      HINT = 'ROLLBACK, and answer the client: only who is told ''new'' acts.';
  ELSIF found_id IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '55000',
      MESSAGE = 'the settings aftercommit.request, request_scope and request_key are begin_request''s own, and something else has written them',
      HINT = 'RESET aftercommit.request, also of the role and the database (ALTER ROLE … RESET aftercommit.request).';
  END IF;
  RETURN found_id;
END
$$;

-- Rows that are not plain ones: what must not be null, in the words of the other checks, and the request that wrote them. One
-- trigger for both, since each has its condition prepared anew by every INSERT.
CREATE FUNCTION aftercommit.on_row() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.downstream IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '23502', MESSAGE = 'effects.downstream must not be null',
      SCHEMA = 'aftercommit', TABLE = 'effects', COLUMN = 'downstream', HINT = 'Name a downstream of the configuration.';
  ELSIF NEW.idempotency_key IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '23502', MESSAGE = 'effects.idempotency_key must not be null',
      SCHEMA = 'aftercommit', TABLE = 'effects', COLUMN = 'idempotency_key',
      HINT = 'Leave it out for a random UUID; a business identity is better.';
  END IF;
  NEW.request_id := aftercommit.this_request();
  RETURN NEW;
END
$$;
DROP TRIGGER effects_null ON aftercommit.effects;
DROP FUNCTION aftercommit.on_null;
CREATE TRIGGER effects_row BEFORE INSERT ON aftercommit.effects
  FOR EACH ROW WHEN (NEW.downstream IS NULL OR NEW.idempotency_key IS NULL OR pg_catalog.current_setting('aftercommit.request', true) <> '')
  EXECUTE FUNCTION aftercommit.on_row();

-- Whether the guarded request of this transaction wrote this effect.
CREATE FUNCTION aftercommit.is_of_this_request(effect_id bigint) RETURNS boolean
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT EXISTS (SELECT FROM aftercommit.effects AS e WHERE e.id = effect_id AND e.request_id = aftercommit.this_request())
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
  derived boolean := idempotency_key IS NULL AND current_setting('aftercommit.request', true) <> ''
    AND aftercommit.this_request() IS NOT NULL;
BEGIN
  SELECT * INTO rule FROM aftercommit.downstreams AS d WHERE d.name = enqueue.downstream;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'AC404', COLUMN = 'downstream',
      MESSAGE = format('no downstream is named %s', quote_literal(left(coalesce(downstream, 'null'), 128))),
      HINT = 'A name becomes known by `aftercommit migrate` and by each worker''s start.';
  END IF;
  IF derived THEN   -- null outside of a guarded request
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

-- ---------------------------------------------------------------------------------------------------------------------
-- Retention
-- ---------------------------------------------------------------------------------------------------------------------

-- As in step 4: a row per step, held for one batch; `reached` keeps a look from passing again what is kept because an effect of
-- it is unfinished: each row is passed once in ten minutes. `reached_id`: of requests of one time, where a batch ended; without it
-- those that are kept would hide the others. No clock that is not believed about keys drops anything here either.
ALTER TABLE aftercommit.retention DROP CONSTRAINT retention_step_check;
ALTER TABLE aftercommit.retention ADD CONSTRAINT retention_step_check
  CHECK (step IN ('payloads', 'history', 'keys', 'requests', 'inbox'));
ALTER TABLE aftercommit.retention ADD COLUMN reached_id bigint NOT NULL DEFAULT 0;
INSERT INTO aftercommit.retention (step, kept) VALUES ('requests', 0), ('inbox', 0);

-- Takes a step's turn: from when on to look; null where somebody else has it. Remembers no place yet.
CREATE FUNCTION aftercommit.retention_turn(
  of_step text, now_at timestamptz, OUT from_at timestamptz, OUT from_id bigint, OUT fresh boolean, OUT believed boolean)
RETURNS SETOF record
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  SELECT CASE WHEN f.fresh THEN r.reached ELSE '-infinity' END, CASE WHEN f.fresh THEN r.reached_id ELSE 0 END, f.fresh,
         aftercommit.clock_is_believed(now_at)
  FROM aftercommit.retention AS r CROSS JOIN LATERAL (
    SELECT r.from_start_at BETWEEN now_at - interval '10 minutes' AND now_at AND r.reached <= now_at) AS f (fresh)
  WHERE r.step = of_step FOR UPDATE OF r SKIP LOCKED
$$;

CREATE FUNCTION aftercommit.retention_reached(
  of_step text, now_at timestamptz, fresh boolean, reached_at timestamptz, reached_id bigint DEFAULT 0) RETURNS void
LANGUAGE sql VOLATILE SET search_path = pg_catalog, pg_temp AS $$
  UPDATE aftercommit.retention AS r
  SET reached = reached_at, reached_id = retention_reached.reached_id, from_start_at = CASE WHEN fresh THEN r.from_start_at ELSE now_at END, looked_at = now_at
  WHERE r.step = of_step
$$;

-- Answers whose time is over and none of whose effects is unfinished; looks at `at_most` rows. Who works or operates may drop
-- these, and no others.
CREATE FUNCTION aftercommit.drop_requests(at_most bigint, OUT elsewhere boolean, OUT dropped bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_at timestamptz := clock_timestamp();
  turn record;
  last record;
BEGIN
  elsewhere := false; dropped := 0; more := false;
  SELECT t.* INTO turn FROM aftercommit.retention_turn('requests', now_at) AS t;
  IF NOT FOUND THEN
    elsewhere := true;
    RETURN;
  END IF;
  IF NOT turn.believed THEN
    RETURN;
  END IF;
  -- Only what goes is locked: locking what is kept would write it anew at each look.
  WITH seen AS MATERIALIZED (
    SELECT r.scope, r.key, r.id, r.expires_at FROM aftercommit.requests AS r
    WHERE (r.expires_at, r.id) > (turn.from_at, turn.from_id) AND r.expires_at <= now_at ORDER BY r.expires_at, r.id LIMIT at_most
  ), due AS MATERIALIZED (
    SELECT r.scope, r.key FROM seen AS s JOIN aftercommit.requests AS r ON r.scope = s.scope AND r.key = s.key AND r.id = s.id
    WHERE r.expires_at <= now_at AND NOT aftercommit.request_is_unfinished(s.id) FOR UPDATE OF r SKIP LOCKED
  ), gone AS (
    DELETE FROM aftercommit.requests AS r USING due AS d WHERE r.scope = d.scope AND r.key = d.key
    RETURNING 1
  )
  SELECT s.expires_at AS at, s.id, (SELECT count(*) FROM gone) AS dropped, (SELECT count(*) FROM seen) AS seen
  INTO last FROM seen AS s ORDER BY s.expires_at DESC, s.id DESC LIMIT 1;
  IF FOUND THEN
    dropped := last.dropped;
    more := last.seen >= at_most;
    PERFORM aftercommit.retention_reached('requests', now_at, turn.fresh, last.at, last.id);
  ELSIF NOT turn.fresh THEN
    PERFORM aftercommit.retention_reached('requests', now_at, false, turn.from_at, turn.from_id);
  END IF;
END
$$;

-- Messages that were received, and kept as long as the consumer said.
CREATE FUNCTION aftercommit.drop_inbox(at_most bigint, OUT elsewhere boolean, OUT dropped bigint, OUT more boolean)
LANGUAGE plpgsql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  now_at timestamptz := clock_timestamp();
  turn record;
  last_at timestamptz;
BEGIN
  elsewhere := false; dropped := 0; more := false;
  SELECT t.* INTO turn FROM aftercommit.retention_turn('inbox', now_at) AS t;
  IF NOT FOUND THEN
    elsewhere := true;
    RETURN;
  END IF;
  IF NOT turn.believed THEN
    RETURN;
  END IF;
  WITH seen AS MATERIALIZED (
    SELECT i.consumer, i.key, i.expires_at FROM aftercommit.inbox AS i
    WHERE i.expires_at >= turn.from_at AND i.expires_at <= now_at ORDER BY i.expires_at LIMIT at_most FOR UPDATE SKIP LOCKED
  ), gone AS (
    DELETE FROM aftercommit.inbox AS i USING seen AS s WHERE i.consumer = s.consumer AND i.key = s.key
  )
  SELECT count(*), count(*) >= at_most, max(s.expires_at) INTO dropped, more, last_at FROM seen AS s;
  IF last_at IS NOT NULL OR NOT turn.fresh THEN
    PERFORM aftercommit.retention_reached('inbox', now_at, turn.fresh, coalesce(last_at, turn.from_at));
  END IF;
END
$$;

-- How long an answer is kept whose request does not say it: `retention.requests` of the configuration, told by `migrate` and by
-- each worker's start.
CREATE FUNCTION aftercommit.keep_requests(us bigint) RETURNS void
LANGUAGE sql VOLATILE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  INSERT INTO aftercommit.meta AS m (key, value) SELECT 'requests_kept_us', us::text WHERE us BETWEEN 1 AND 311040000000000
  ON CONFLICT ON CONSTRAINT meta_pkey DO UPDATE SET value = excluded.value WHERE m.value <> excluded.value
$$;

REVOKE ALL ON FUNCTION aftercommit.request_problem, aftercommit.request_is_unfinished, aftercommit.clock_is_believed, aftercommit.request_holder,
  aftercommit.begin_request(text, text, text, interval), aftercommit.begin_request(text, text, bytea, interval),
  aftercommit.finish_request, aftercommit.on_request_commit, aftercommit.inbox_accept, aftercommit.this_request,
  aftercommit.on_row, aftercommit.is_of_this_request, aftercommit.retention_turn, aftercommit.retention_reached,
  aftercommit.drop_requests, aftercommit.drop_inbox, aftercommit.keep_requests FROM PUBLIC;

-- BEGIN roles
DO $roles$
DECLARE
  wanted text;
BEGIN
  IF to_regrole('aftercommit_app') IS NOT NULL THEN
    GRANT EXECUTE ON FUNCTION aftercommit.begin_request(text, text, text, interval),
      aftercommit.begin_request(text, text, bytea, interval), aftercommit.finish_request, aftercommit.inbox_accept,
      aftercommit.is_of_this_request TO aftercommit_app;
  END IF;
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT EXECUTE ON FUNCTION aftercommit.is_of_this_request, aftercommit.keep_requests TO aftercommit_worker;
  END IF;
  -- Step 1 grants all tables there are, and is run again where roles are made late: these hold what clients were answered.
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('REVOKE SELECT ON aftercommit.requests, aftercommit.inbox FROM %I', wanted);
    END IF;
  END LOOP;
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT SELECT (expires_at) ON aftercommit.inbox TO %I', wanted);
      EXECUTE format('GRANT EXECUTE ON FUNCTION aftercommit.drop_requests, aftercommit.drop_inbox, '
        'aftercommit.request_is_unfinished TO %I', wanted);
    END IF;
  END LOOP;
  -- Who looks sees that a request was answered, never what with, nor the fingerprint, by which a body could be guessed.
  FOREACH wanted IN ARRAY ARRAY['aftercommit_worker', 'aftercommit_operator', 'aftercommit_viewer'] LOOP
    IF to_regrole(wanted) IS NOT NULL THEN
      EXECUTE format('GRANT SELECT (id, scope, key, created_at, expires_at, response_status) ON aftercommit.requests TO %I', wanted);
    END IF;
  END LOOP;
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT (request_id) ON aftercommit.effects TO aftercommit_viewer;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (7);
