-- 0001 foundation: the schema `aftercommit` on PostgreSQL 13 or newer, server_encoding UTF8.
--
-- `effects` is what applications write and what we never update; every other table is ours. Run by `aftercommit migrate`
-- in one transaction; an operator may run it by hand (`aftercommit migrate --dry-run` prints it).

DO $check$
BEGIN
  IF current_setting('server_version_num')::int < 130000 THEN
    RAISE EXCEPTION 'aftercommit needs PostgreSQL 13 or newer, this is %', current_setting('server_version');
  END IF;
  IF current_setting('server_encoding') <> 'UTF8' THEN
    RAISE EXCEPTION 'aftercommit needs a database whose encoding is UTF8, this one is %', current_setting('server_encoding');
  END IF;
END
$check$;

CREATE SCHEMA aftercommit;
COMMENT ON SCHEMA aftercommit IS 'Side effects, after the commit, once: https://crates.io/crates/aftercommit';

CREATE TABLE aftercommit.schema_version (
  version    integer PRIMARY KEY,
  applied_at timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- Settings of this installation: `installation` (a uuid), `environment`, `payload_limit` (bytes).
CREATE TABLE aftercommit.meta (
  key   text PRIMARY KEY,
  value text NOT NULL
);
INSERT INTO aftercommit.meta (key, value)
VALUES ('installation', gen_random_uuid()::text), ('payload_limit', '1048576');

-- ---------------------------------------------------------------------------------------------------------------------
-- What is configured
-- ---------------------------------------------------------------------------------------------------------------------

-- A downstream as `migrate` or a worker's start made it known; its key rule is what INSERTs are checked against.
CREATE TABLE aftercommit.downstreams (
  name          text COLLATE "C" PRIMARY KEY,
  kind          text NOT NULL,
  key_prefix    text NOT NULL DEFAULT '',
  key_min_len   integer NOT NULL DEFAULT 1,
  key_max_len   integer NOT NULL DEFAULT 255,
  key_charset   text NOT NULL DEFAULT 'printable' CHECK (key_charset IN ('printable', 'token', 'uuid')),
  registered_at timestamptz NOT NULL DEFAULT clock_timestamp(),
  paused_at     timestamptz,
  paused_by     text,
  pause_reason  text,
  on_outcome    text
);

-- What a request was, or is, sent under. Rows are never changed and equal content has one row (`digest`), so that a queue
-- row can pin the terms of its last attempt by number.
CREATE TABLE aftercommit.terms (
  id             bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  downstream     text COLLATE "C" NOT NULL,
  operation      text,
  request_sha256 bytea NOT NULL CHECK (octet_length(request_sha256) = 32),
  contract       json NOT NULL,
  policy         json NOT NULL,
  timeout_us     bigint NOT NULL,
  window_us      bigint,            -- null: unpublished; 9223372036854775807: for ever
  margin_us      bigint NOT NULL,
  dedupe         text NOT NULL CHECK (dedupe IN ('key', 'lookup', 'none')),
  digest         bytea NOT NULL UNIQUE
);

-- The terms that hold today. The default operation is ''.
CREATE TABLE aftercommit.operations (
  downstream text COLLATE "C" NOT NULL,
  operation  text COLLATE "C" NOT NULL,
  terms      bigint NOT NULL REFERENCES aftercommit.terms (id),
  PRIMARY KEY (downstream, operation)
);

-- ---------------------------------------------------------------------------------------------------------------------
-- What applications write
-- ---------------------------------------------------------------------------------------------------------------------

-- Identity and intent. Values are checked by the trigger below, not by CHECKs: twelve of them cost each INSERT twice what
-- the whole queue costs, and their error DETAIL prints payloads into logs.
CREATE TABLE aftercommit.effects (
  id              bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  downstream      text COLLATE "C" NOT NULL,
  operation       text,
  idempotency_key text COLLATE "C" NOT NULL DEFAULT gen_random_uuid()::text,
  payload         json,             -- json, not jsonb: every byte is sent as it was written
  body            bytea,
  content_type    text,
  headers         json,
  target          text,
  due_at          timestamptz DEFAULT clock_timestamp(),
  expires_at      timestamptz,
  ordering_key    text,
  needs           bigint[],
  bindings        json,
  undoes          bigint,
  if_failed       bigint[],
  metadata        jsonb,
  trace_context   text,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  -- The role that wrote it. Not current_user: inside enqueue() that is the owner of the function.
  enqueued_by     text NOT NULL DEFAULT coalesce(nullif(current_setting('role'), 'none'), session_user::text),
  fingerprint     bytea,            -- written when retention drops the payload; until then identity is computed
  CONSTRAINT effects_key UNIQUE (downstream, idempotency_key)
);
COMMENT ON TABLE aftercommit.effects IS 'One intended side effect a row; INSERT it in the business transaction.';

-- ---------------------------------------------------------------------------------------------------------------------
-- What workers write
-- ---------------------------------------------------------------------------------------------------------------------

-- Fences every write: drawn at every claim and every operator action, never reset.
CREATE SEQUENCE aftercommit.tokens;

-- One thin row per unfinished effect. Every write that makes a row claimable stamps `xid` with its own transaction, so that
-- a scan by (xid, id) from a watermark finds late commits exactly. A claim touches no indexed column (a HOT update; hence
-- the fillfactor): a claimed row stays in its lane until it is settled.
CREATE TABLE aftercommit.queue (
  id               bigint PRIMARY KEY,
  xid              xid8 NOT NULL DEFAULT pg_current_xact_id(),
  token            bigint NOT NULL DEFAULT 0,
  due_at           timestamptz,     -- of the next attempt or, in doubt, of the next probe: null where a person must say more
  sweep_at         timestamptz,     -- when the sweep must look at it if nobody claims it
  started_at       timestamptz,     -- first claim of the present history; never taken back
  first_sent_at    timestamptz,     -- when a request may first have been received, in the present history
  quiet_at         timestamptz,     -- before this, the last request may still be travelling
  expires_at       timestamptz,
  terms            bigint,          -- what its last attempt was sent under
  attempts         integer NOT NULL DEFAULT 0,   -- counted towards max_attempts, present history
  tries            integer NOT NULL DEFAULT 0,   -- of the present history: the schedule grows with it
  number           integer NOT NULL DEFAULT 0,   -- of its last attempt, of any history
  lane             "char" NOT NULL CHECK (lane IN ('r', 't', 'w', 'd')),  -- ready, timed, waiting, in doubt
  claimed          boolean NOT NULL DEFAULT false,
  uncertain        boolean NOT NULL DEFAULT false,
  sent_before      boolean NOT NULL DEFAULT false,
  resend           boolean NOT NULL DEFAULT false,
  cancel_requested boolean NOT NULL DEFAULT false,
  applied_late     boolean NOT NULL DEFAULT false,
  swept            boolean NOT NULL DEFAULT false,  -- parked with its token kept: the worker may still answer under it
  downstream       text COLLATE "C" NOT NULL,
  operation        text,
  note             text             -- why it is in doubt, or the last word about it
) WITH (fillfactor = 50);
CREATE INDEX queue_ready ON aftercommit.queue (downstream, xid, id) WHERE lane = 'r';
CREATE INDEX queue_timed ON aftercommit.queue (downstream, due_at, id) WHERE lane = 't';
CREATE INDEX queue_doubt ON aftercommit.queue (downstream, id) WHERE lane = 'd';
CREATE INDEX queue_sweep ON aftercommit.queue (sweep_at) WHERE sweep_at IS NOT NULL;

-- One row per claimed batch: its lease stands here and not in the hot rows.
CREATE TABLE aftercommit.claims (
  token       bigint PRIMARY KEY,
  worker      text NOT NULL,
  claimed_at  timestamptz NOT NULL,
  lease_until timestamptz NOT NULL,
  ids         bigint[] NOT NULL
) WITH (fillfactor = 70);

-- Append-only log of attempts. A first attempt that succeeded stands in `outcomes` alone: read `attempt_log`.
CREATE TABLE aftercommit.attempts (
  effect_id       bigint NOT NULL,
  token           bigint NOT NULL,
  number          integer NOT NULL,
  late            boolean NOT NULL DEFAULT false,   -- came in after its lease had ended
  replayed        boolean NOT NULL DEFAULT false,
  response_status integer,
  started_at      timestamptz NOT NULL,
  ended_at        timestamptz,
  worker          text,
  phase           text NOT NULL,
  outcome         text NOT NULL CHECK (outcome IN ('applied', 'rejected', 'not_applied', 'unknown')),
  error           text,
  PRIMARY KEY (effect_id, token, late)
);

-- One row per finished effect.
CREATE TABLE aftercommit.outcomes (
  effect_id          bigint PRIMARY KEY,
  token              bigint NOT NULL,
  finished_at        timestamptz NOT NULL,
  superseded_by      bigint,
  number             integer NOT NULL,              -- attempts made
  response_status    integer,
  response_truncated boolean NOT NULL DEFAULT false,
  refusal_stored     boolean NOT NULL DEFAULT false,
  sent_before        boolean NOT NULL DEFAULT false,
  state              text NOT NULL CHECK (state IN ('succeeded', 'failed', 'cancelled', 'expired')),
  downstream         text COLLATE "C" NOT NULL,
  note               text,
  response           json,                          -- whole, valid JSON within the cap; else null and
  response_raw       bytea,                         -- the bytes
  -- Of a first attempt that succeeded:
  started_at         timestamptz,
  ended_at           timestamptz,
  worker             text,
  phase              text
);
CREATE INDEX outcomes_succeeded ON aftercommit.outcomes (downstream, effect_id) WHERE state = 'succeeded';
CREATE INDEX outcomes_ended ON aftercommit.outcomes (state, effect_id) WHERE state <> 'succeeded';
CREATE INDEX outcomes_ended_of ON aftercommit.outcomes (state, downstream, effect_id) WHERE state <> 'succeeded';

CREATE TABLE aftercommit.workers (
  name        text PRIMARY KEY,
  version     text NOT NULL,
  started_at  timestamptz NOT NULL,
  seen_at     timestamptz NOT NULL,
  downstreams text[] NOT NULL
);

CREATE TABLE aftercommit.audit (
  id         bigint GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  at         timestamptz NOT NULL DEFAULT clock_timestamp(),
  who        text NOT NULL,
  verb       text NOT NULL,
  effect_id  bigint,
  from_state text,
  to_state   text,
  reason     text
);
CREATE INDEX audit_effect ON aftercommit.audit (effect_id, id) WHERE effect_id IS NOT NULL;

-- Deltas of finished states, one row per settled batch, folded by any worker: readers add them up, exactly.
CREATE TABLE aftercommit.counters (
  downstream text COLLATE "C" NOT NULL,
  state      text NOT NULL,
  n          bigint NOT NULL
);

-- ---------------------------------------------------------------------------------------------------------------------
-- Enqueue
-- ---------------------------------------------------------------------------------------------------------------------

-- What is wrong with a key at a downstream with this rule; null when nothing is. The same rule as KeyRule in contract.rs. No
-- counted repetition such as {0,253} in the pattern: matching one costs 22 microseconds a row, half of a bulk INSERT.
CREATE FUNCTION aftercommit.key_problem(key text, prefix text, min_len integer, max_len integer, charset text)
RETURNS text LANGUAGE sql STABLE AS $$   -- STABLE, since format() is: else it would not be inlined
  SELECT CASE
    WHEN length(key) NOT BETWEEN 1 AND 255 OR key ~ '[^ -~]' OR left(key, 1) = ' ' OR right(key, 1) = ' '
      THEN 'must be 1 to 255 printable ASCII characters with no space at either end'
    WHEN min_len IS NULL THEN NULL
    WHEN length(prefix || key) NOT BETWEEN min_len AND max_len
      THEN format('the key has %s characters and this downstream takes %s to %s', length(prefix || key), min_len, max_len)
    WHEN charset = 'token' AND prefix || key !~ '^[A-Za-z0-9_:-]*$'
      THEN 'the key may only have letters, digits, ''_'', '':'' and ''-'' at this downstream'
    WHEN charset = 'uuid'
      AND prefix || key !~ '^[0-9A-Fa-f]{8}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{4}-[0-9A-Fa-f]{12}$'
      THEN 'the key must be a UUID at this downstream'
  END
$$;

-- What is wrong with an effect's headers; null when nothing is.
CREATE FUNCTION aftercommit.headers_problem(headers json) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  owned text;
BEGIN
  IF json_typeof(headers) <> 'object' THEN
    RETURN 'must be a JSON object';
  END IF;
  SELECT name INTO owned FROM json_object_keys(headers) AS k (name)
  WHERE lower(btrim(name) COLLATE "C") = ANY ('{authorization,proxy-authorization,host,content-length,content-type,
    content-encoding,accept-encoding,transfer-encoding,connection,keep-alive,proxy-connection,te,trailer,upgrade,expect,
    idempotency-key,signature,signature-input,message-id,message_id,traceparent}'::text[])
  LIMIT 1;
  IF owned IS NOT NULL THEN
    RETURN format('%s is set by the downstream''s kind or contract and must not be given', quote_ident(left(owned, 40)));
  END IF;
  -- A line end in a header would begin another one.
  PERFORM FROM json_each_text(headers) AS h (name, value)
  WHERE name = '' OR name ~ '[\x01-\x1f\x7f]' OR value ~ '[\x01-\x08\x0a-\x1f\x7f]';
  RETURN CASE WHEN FOUND THEN 'must not have an empty name, or control characters in a name or a value' END;
EXCEPTION
  WHEN untranslatable_character THEN
    RETURN 'must not have U+0000 in a name or a value';
END
$$;

-- How deep the brackets of a JSON text nest.
CREATE FUNCTION aftercommit.json_depth(doc text) RETURNS integer
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  brackets text;
BEGIN
  -- No document nests deeper than it has opening brackets: nearly every one is done here.
  IF length(doc) - length(translate(doc, '[{', '')) <= 128 THEN
    RETURN 0;
  END IF;
  brackets := regexp_replace(regexp_replace(doc, '"(?:[^"\\]|\\.)*"', '', 'g'), '[^][{}]', '', 'g');
  RETURN (SELECT max(depth) FROM (
    SELECT sum(CASE WHEN c IN ('[', '{') THEN 1 ELSE -1 END) OVER (ORDER BY n) AS depth
    FROM unnest(string_to_array(brackets, NULL)) WITH ORDINALITY AS u (c, n)) AS depths);
END
$$;

-- Checks the rows of one INSERT, queues them, and wakes the workers. One statement for all rows of the INSERT.
CREATE FUNCTION aftercommit.on_insert() RETURNS trigger
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  wrong text[];   -- column, message, hint
  now_at timestamptz := clock_timestamp();
  ready boolean;
BEGIN
  -- Nearly every row is a plain one. The statement below says what is wrong with one that is not; its setting up alone costs a
  -- single-row INSERT more than all the rest of this function, so it runs only for what this one cannot vouch for.
  PERFORM FROM fresh AS n
  LEFT JOIN aftercommit.downstreams AS d ON d.name = n.downstream
  WHERE length(n.downstream) NOT BETWEEN 1 AND 128 OR n.downstream ~ '[^!-~]'
     OR length(n.idempotency_key) NOT BETWEEN 1 AND 255 OR n.idempotency_key ~ '[^!-~]'
     OR length(d.key_prefix) + length(n.idempotency_key) NOT BETWEEN d.key_min_len AND d.key_max_len
     OR d.key_charset <> 'printable'
     OR length(n.operation) NOT BETWEEN 1 AND 128
     OR octet_length(n.payload::text) > (SELECT coalesce(
          (SELECT value::bigint FROM aftercommit.meta WHERE key = 'payload_limit'), 1048576))
     OR jsonb_typeof(n.metadata) <> 'object'
     OR n.due_at < '1970-01-01Z' OR n.due_at >= '10000-01-01Z'
     OR num_nonnulls(n.body, n.content_type, n.headers, n.target, n.trace_context, n.expires_at, n.ordering_key, n.needs,
                     n.bindings, n.undoes, n.if_failed) > 0
  LIMIT 1;
  IF FOUND THEN
  SELECT problem INTO wrong FROM (
    SELECT CASE
      WHEN length(n.downstream) NOT BETWEEN 1 AND 128 OR n.downstream ~ '[^ -~]' OR left(n.downstream, 1) = ' '
           OR right(n.downstream, 1) = ' '
        THEN ARRAY['downstream', 'must be 1 to 128 printable ASCII characters', 'Name a downstream of the configuration.']
      WHEN length(n.operation) NOT BETWEEN 1 AND 128
        THEN ARRAY['operation', 'must be 1 to 128 characters', 'Leave it null for the downstream''s default operation.']
      WHEN aftercommit.key_problem(n.idempotency_key, d.key_prefix, d.key_min_len, d.key_max_len, d.key_charset) IS NOT NULL
        THEN ARRAY['idempotency_key',
          aftercommit.key_problem(n.idempotency_key, d.key_prefix, d.key_min_len, d.key_max_len, d.key_charset),
          'A UUID fits every known downstream; a key is never cut, hashed or re-cased.']
      WHEN n.payload IS NOT NULL AND n.body IS NOT NULL
        THEN ARRAY['body', 'must be null where payload is given', 'Give payload for JSON, body for anything else.']
      WHEN octet_length(n.payload::text) > m.payload_limit
        THEN ARRAY['payload', format('must be at most %s bytes', m.payload_limit), 'Send a reference to what is larger.']
      WHEN octet_length(n.body) > m.payload_limit
        THEN ARRAY['body', format('must be at most %s bytes', m.payload_limit), 'Send a reference to what is larger.']
      WHEN n.content_type IS NOT NULL AND n.body IS NULL
        THEN ARRAY['content_type', 'goes with body only', 'Leave it null where there is no body; payload is always JSON.']
      WHEN n.content_type !~ '^[!-~]([ -~]{0,253}[!-~])?$'
        THEN ARRAY['content_type', 'must be 1 to 255 printable ASCII characters', 'For example text/plain; charset=utf-8.']
      WHEN n.headers IS NOT NULL AND aftercommit.headers_problem(n.headers) IS NOT NULL
        THEN ARRAY['headers', aftercommit.headers_problem(n.headers), 'For example {"X-Tenant": "blue"}.']
      WHEN length(n.target) NOT BETWEEN 1 AND 2048
        THEN ARRAY['target', 'must be 1 to 2048 characters', 'Leave it null for the downstream itself.']
      WHEN n.trace_context !~ '^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-[!-~]*)?$' OR length(n.trace_context) > 512
        THEN ARRAY['trace_context', 'must be a W3C traceparent',
          'For example 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01.']
      WHEN jsonb_typeof(n.metadata) <> 'object'
        THEN ARRAY['metadata', 'must be a JSON object', 'For example {"order": "A-17"}.']
      WHEN n.due_at < '1970-01-01Z' OR n.due_at >= '10000-01-01Z'
        THEN ARRAY['due_at', 'must be finite and within the years 1970 to 9999', 'Leave it out for "now".']
      WHEN n.expires_at < '1970-01-01Z' OR n.expires_at >= '10000-01-01Z'
        THEN ARRAY['expires_at', 'must be finite and within the years 1970 to 9999', 'Leave it null for "never".']
      WHEN n.ordering_key IS NOT NULL THEN ARRAY['ordering_key', 'is not supported yet', 'Leave it null.']
      WHEN n.needs IS NOT NULL THEN ARRAY['needs', 'is not supported yet', 'Leave it null.']
      WHEN n.bindings IS NOT NULL THEN ARRAY['bindings', 'is not supported yet', 'Leave it null.']
      WHEN n.undoes IS NOT NULL THEN ARRAY['undoes', 'is not supported yet', 'Leave it null.']
      WHEN n.if_failed IS NOT NULL THEN ARRAY['if_failed', 'is not supported yet', 'Leave it null.']
    END AS problem
    FROM fresh AS n
    LEFT JOIN aftercommit.downstreams AS d ON d.name = n.downstream
    CROSS JOIN (SELECT coalesce((SELECT value::bigint FROM aftercommit.meta WHERE key = 'payload_limit'), 1048576)) AS m (payload_limit)
  ) AS checked
  WHERE problem IS NOT NULL
  LIMIT 1;
  END IF;
  IF wrong IS NOT NULL THEN
    RAISE EXCEPTION USING ERRCODE = '23514', MESSAGE = format('effects.%s %s', wrong[1], wrong[2]),
      SCHEMA = 'aftercommit', TABLE = 'effects', COLUMN = wrong[1], HINT = wrong[3];
  END IF;

  WITH queued AS (
    INSERT INTO aftercommit.queue (id, lane, due_at, expires_at, sweep_at, downstream, operation)
    SELECT id, CASE WHEN due_at > now_at THEN 't' ELSE 'r' END::"char", coalesce(due_at, created_at), expires_at, expires_at,
           downstream, operation
    FROM fresh
    RETURNING lane
  )
  SELECT bool_or(lane = 'r') INTO ready FROM queued;

  -- A notification takes one lock per database at commit; few are enough, since workers look again after each. The lock is of a
  -- tenth of a second, so that one transaction that stays open cannot keep everybody else from waking workers.
  IF ready AND pg_try_advisory_xact_lock(1668179321, (floor(extract(epoch FROM now_at) * 10)::bigint % 2147483647)::integer) THEN
    PERFORM pg_notify('aftercommit_work', '');
  END IF;
  RETURN NULL;
END
$$;

CREATE TRIGGER effects_inserted AFTER INSERT ON aftercommit.effects
  REFERENCING NEW TABLE AS fresh
  FOR EACH STATEMENT EXECUTE FUNCTION aftercommit.on_insert();

-- A null where there must be none, in the words of the other checks: what a NOT NULL says has no hint. Called for such a row
-- only.
CREATE FUNCTION aftercommit.on_null() RETURNS trigger
LANGUAGE plpgsql SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF NEW.downstream IS NULL THEN
    RAISE EXCEPTION USING ERRCODE = '23502', MESSAGE = 'effects.downstream must not be null',
      SCHEMA = 'aftercommit', TABLE = 'effects', COLUMN = 'downstream', HINT = 'Name a downstream of the configuration.';
  END IF;
  RAISE EXCEPTION USING ERRCODE = '23502', MESSAGE = 'effects.idempotency_key must not be null',
    SCHEMA = 'aftercommit', TABLE = 'effects', COLUMN = 'idempotency_key',
    HINT = 'Leave it out for a random UUID; a business identity is better.';
END
$$;

CREATE TRIGGER effects_null BEFORE INSERT ON aftercommit.effects
  FOR EACH ROW WHEN (NEW.downstream IS NULL OR NEW.idempotency_key IS NULL) EXECUTE FUNCTION aftercommit.on_null();

-- The key that (scope, request key, name) determine: each part with its length in front (64 bits, big-endian), SHA-256,
-- the first 16 bytes as a UUIDv8. The same bytes as key.rs.
CREATE FUNCTION aftercommit.derive_key(scope text, request_key text, name text) RETURNS text
LANGUAGE plpgsql IMMUTABLE SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  bytes bytea := ''::bytea;
  part text;
BEGIN
  FOREACH part IN ARRAY ARRAY[scope, request_key, name] LOOP
    IF part IS NULL THEN
      RAISE EXCEPTION USING ERRCODE = '22004', MESSAGE = 'derive_key: scope, request_key and name must not be null',
        HINT = 'Give the request a key, or the effect a key of its own.';
    END IF;
    bytes := bytes || int8send(octet_length(convert_to(part, 'UTF8'))::bigint) || convert_to(part, 'UTF8');
  END LOOP;
  bytes := substring(sha256(bytes) FROM 1 FOR 16);
  bytes := set_byte(bytes, 6, (get_byte(bytes, 6) & 15) | 128);
  bytes := set_byte(bytes, 8, (get_byte(bytes, 8) & 63) | 128);
  RETURN encode(bytes, 'hex')::uuid::text;
END
$$;

-- Which of these keys their downstreams cannot take, and why: the library asks as it writes, since an error aborts the caller's
-- transaction. Tells nothing that the INSERT would not. For all rows of a statement at once: a call per row doubles its cost.
CREATE FUNCTION aftercommit.key_refusals(downstreams text[], keys text[], OUT ord bigint, OUT problem text)
RETURNS SETOF record
LANGUAGE plpgsql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
#variable_conflict use_column
BEGIN
  RETURN QUERY SELECT c.ord, c.problem FROM (
    SELECT n.ord, aftercommit.key_problem(n.key, d.key_prefix, d.key_min_len, d.key_max_len, d.key_charset) AS problem
    FROM unnest(key_refusals.downstreams, key_refusals.keys) WITH ORDINALITY AS n (downstream, key, ord)
    LEFT JOIN aftercommit.downstreams AS d ON d.name = n.downstream) AS c
  WHERE c.problem IS NOT NULL;
END
$$;

-- The effect that a key stands for, and, if it is the same request, its state. No row when there is none.
CREATE FUNCTION aftercommit.existing(
  downstream text, idempotency_key text, operation text, payload text, body bytea, content_type text, headers text,
  target text, OUT id bigint, OUT state text, OUT identical boolean)
RETURNS SETOF record
LANGUAGE sql STABLE SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT e.id,
         -- Who does not know the request learns nothing about the effect but that its key is taken.
         CASE WHEN NOT same.request THEN NULL
              WHEN o.state IS NOT NULL THEN o.state
              WHEN q.lane = 'd' OR q.id IS NULL THEN 'in_doubt'
              WHEN q.claimed THEN 'in_flight'
              WHEN q.lane = 'w' THEN 'waiting'
              WHEN q.lane = 'r' OR q.due_at <= statement_timestamp() THEN 'ready'
              WHEN q.tries > 0 THEN 'retrying'
              ELSE 'scheduled' END,
         same.request
  FROM aftercommit.effects AS e
  CROSS JOIN LATERAL (SELECT
    ROW (e.operation, e.payload::text, e.body, e.content_type, e.headers::text, e.target)
      IS NOT DISTINCT FROM
    ROW (existing.operation, existing.payload, existing.body, existing.content_type, existing.headers, existing.target)
    AND e.ordering_key IS NULL AND e.needs IS NULL AND e.bindings IS NULL AND e.undoes IS NULL) AS same (request)
  LEFT JOIN aftercommit.queue AS q ON q.id = e.id
  LEFT JOIN aftercommit.outcomes AS o ON o.effect_id = e.id
  WHERE e.downstream = existing.downstream AND e.idempotency_key = existing.idempotency_key
$$;

-- Writes an effect, or finds the one that its key stands for. Call it as `SELECT * FROM aftercommit.enqueue(…)`:
-- `(aftercommit.enqueue(…)).*` calls it once per column.
CREATE FUNCTION aftercommit.enqueue(
  downstream text,
  payload json DEFAULT NULL,
  OUT id bigint,
  INOUT idempotency_key text DEFAULT NULL,
  OUT inserted boolean,
  OUT state text,
  operation text DEFAULT NULL,
  name text DEFAULT NULL,           -- distinguishes two effects of one guarded request; unused without one
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
BEGIN
  SELECT * INTO rule FROM aftercommit.downstreams AS d WHERE d.name = enqueue.downstream;
  IF NOT FOUND THEN
    RAISE EXCEPTION USING ERRCODE = 'AC404', COLUMN = 'downstream',
      MESSAGE = format('no downstream is named %s', quote_literal(left(coalesce(downstream, 'null'), 128))),
      HINT = 'A name becomes known by `aftercommit migrate` and by each worker''s start.';
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
-- Read
-- ---------------------------------------------------------------------------------------------------------------------

CREATE VIEW aftercommit.attempt_log AS
  SELECT effect_id, number AS attempt, token, worker, started_at, ended_at, phase, outcome, response_status, error, late
  FROM aftercommit.attempts
  UNION ALL
  SELECT effect_id, number, token, worker, started_at, ended_at, phase, 'applied', response_status, NULL, false
  FROM aftercommit.outcomes
  WHERE started_at IS NOT NULL;

-- Every effect, for those who may see all. No volatile function stands in it (statement_timestamp(), never
-- clock_timestamp()), or the planner could not flatten it.
CREATE VIEW aftercommit.status_of_all AS
  SELECT e.id, e.downstream, e.operation, e.idempotency_key,
    CASE WHEN o.state IS NOT NULL THEN o.state
         WHEN q.lane = 'd' OR q.id IS NULL THEN 'in_doubt'
         WHEN q.claimed THEN 'in_flight'
         WHEN q.lane = 'w' THEN 'waiting'
         WHEN q.lane = 'r' OR q.due_at <= statement_timestamp() THEN 'ready'
         WHEN q.tries > 0 THEN 'retrying'
         ELSE 'scheduled' END AS state,
    CASE WHEN q.id IS NULL OR q.claimed OR q.lane = 'd' THEN NULL
         WHEN d.paused_at IS NOT NULL THEN 'pause'
         WHEN NOT EXISTS (SELECT FROM aftercommit.workers AS w
                          WHERE w.seen_at > statement_timestamp() - interval '30 seconds' AND q.downstream = ANY (w.downstreams))
           THEN 'unserved' END AS held_by,
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
  LEFT JOIN aftercommit.operations AS op ON op.downstream = e.downstream AND op.operation = coalesce(e.operation, '')
  LEFT JOIN aftercommit.terms AS today ON today.id = op.terms
  LEFT JOIN aftercommit.terms AS sent ON sent.id = q.terms
  LEFT JOIN LATERAL (
    SELECT a.worker, a.outcome, a.error, a.response_status FROM aftercommit.attempts AS a
    WHERE a.effect_id = e.id ORDER BY a.number DESC, a.token DESC, a.late DESC LIMIT 1) AS l ON true;

-- Every effect for those who may see all, its own for an application. A barrier, so that no function of the application's
-- sees a row before it was found to be its own; for the same reason the planner cannot look inside: look up by id or by
-- (downstream, key) here, and by anything else in status_of_all.
CREATE VIEW aftercommit.status WITH (security_barrier) AS
  SELECT id, downstream, operation, idempotency_key, state, held_by, attempts, due_at, first_sent_at, safe_until, lease_until,
         worker, last_outcome, last_error, response_status, CASE WHEN answers THEN response END AS response, metadata,
         superseded_by, created_at, finished_at, token, CASE WHEN answers THEN response_raw END AS response_raw,
         response_truncated, enqueued_by
  -- Who may see every effect need not see what was answered: of others, only who may read it there.
  FROM aftercommit.status_of_all, LATERAL (SELECT
    (SELECT has_column_privilege('aftercommit.status_of_all', 'response', 'SELECT'))
    OR enqueued_by = (SELECT coalesce(nullif(current_setting('role'), 'none'), session_user::text))) AS may (answers)
  WHERE (SELECT has_any_column_privilege('aftercommit.status_of_all', 'SELECT'))
     OR enqueued_by = (SELECT coalesce(nullif(current_setting('role'), 'none'), session_user::text));

CREATE VIEW aftercommit.pending WITH (security_barrier) AS
  SELECT * FROM aftercommit.status WHERE state IN ('waiting', 'scheduled', 'ready', 'retrying');

CREATE VIEW aftercommit.unfinished WITH (security_barrier) AS
  SELECT * FROM aftercommit.status WHERE state IN ('waiting', 'scheduled', 'ready', 'retrying', 'in_flight', 'in_doubt');

-- ---------------------------------------------------------------------------------------------------------------------
-- Rights
-- ---------------------------------------------------------------------------------------------------------------------

-- PUBLIC's default EXECUTE would let an application attach the trigger function to a table of its own and forge queue rows.
REVOKE ALL ON ALL FUNCTIONS IN SCHEMA aftercommit FROM PUBLIC;

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
DECLARE
  wanted text;
BEGIN
  FOREACH wanted IN ARRAY ARRAY['aftercommit_app', 'aftercommit_worker', 'aftercommit_viewer', 'aftercommit_operator'] LOOP
    IF to_regrole(wanted) IS NULL THEN
      BEGIN
        EXECUTE format('CREATE ROLE %I NOLOGIN', wanted);
      EXCEPTION
        -- Roles belong to the whole cluster: another database's migration may be making the same one.
        WHEN duplicate_object OR unique_violation THEN NULL;
        WHEN insufficient_privilege THEN NULL;
      END;
    END IF;
  END LOOP;

  IF to_regrole('aftercommit_app') IS NOT NULL THEN
    GRANT USAGE ON SCHEMA aftercommit TO aftercommit_app;
    GRANT INSERT (downstream, operation, idempotency_key, payload, body, content_type, headers, target, due_at, expires_at,
                  ordering_key, needs, bindings, undoes, if_failed, metadata, trace_context)
      ON aftercommit.effects TO aftercommit_app;
    GRANT SELECT (id, downstream, idempotency_key) ON aftercommit.effects TO aftercommit_app;
    GRANT SELECT ON aftercommit.status, aftercommit.pending, aftercommit.unfinished TO aftercommit_app;
    GRANT EXECUTE ON FUNCTION aftercommit.enqueue, aftercommit.derive_key, aftercommit.existing,
      aftercommit.key_refusals TO aftercommit_app;
  END IF;

  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT USAGE ON SCHEMA aftercommit TO aftercommit_worker;
    GRANT SELECT ON ALL TABLES IN SCHEMA aftercommit TO aftercommit_worker;
    GRANT INSERT, UPDATE, DELETE ON aftercommit.queue, aftercommit.claims, aftercommit.outcomes, aftercommit.workers,
      aftercommit.counters, aftercommit.operations, aftercommit.downstreams TO aftercommit_worker;
    GRANT INSERT ON aftercommit.attempts, aftercommit.terms TO aftercommit_worker;
    GRANT USAGE ON SEQUENCE aftercommit.tokens TO aftercommit_worker;
    GRANT EXECUTE ON FUNCTION aftercommit.existing, aftercommit.key_refusals, aftercommit.derive_key
      TO aftercommit_worker;
  END IF;

  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT USAGE ON SCHEMA aftercommit TO aftercommit_viewer;
    GRANT SELECT (id, downstream, operation, idempotency_key, state, held_by, attempts, due_at, first_sent_at, safe_until,
                  lease_until, worker, last_outcome, last_error, response_status, metadata, superseded_by, created_at,
                  finished_at, token, response_truncated, enqueued_by)
      ON aftercommit.status, aftercommit.status_of_all, aftercommit.pending, aftercommit.unfinished TO aftercommit_viewer;
    GRANT SELECT (refusal_stored) ON aftercommit.status_of_all TO aftercommit_viewer;
    GRANT SELECT ON aftercommit.attempt_log, aftercommit.workers, aftercommit.audit, aftercommit.counters,
      aftercommit.downstreams, aftercommit.schema_version, aftercommit.meta TO aftercommit_viewer;
  END IF;

  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT USAGE ON SCHEMA aftercommit TO aftercommit_operator;
    GRANT SELECT ON ALL TABLES IN SCHEMA aftercommit TO aftercommit_operator;
    GRANT INSERT, UPDATE, DELETE ON aftercommit.queue, aftercommit.outcomes TO aftercommit_operator;
    GRANT INSERT ON aftercommit.audit, aftercommit.counters TO aftercommit_operator;
    GRANT UPDATE (paused_at, paused_by, pause_reason) ON aftercommit.downstreams TO aftercommit_operator;
    GRANT USAGE ON SEQUENCE aftercommit.tokens TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (1);
