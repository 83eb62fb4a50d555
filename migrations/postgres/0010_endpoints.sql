-- 0010 Endpoints: where the effects of a downstream with many endpoints go, by name, and which of them are disabled.
--
-- A new table and functions: nothing that exists is locked.

-- One row per endpoint that an application keeps, and one for the state of an endpoint of the configuration (url is null) that
-- failed or was disabled. `disabled_itself`: what its URL showed disabled it, so another URL enables it again. `secrets` are references, one or two: a row never holds a secret.
CREATE TABLE aftercommit.endpoints (
  downstream      text COLLATE "C" NOT NULL,
  name            text COLLATE "C" NOT NULL CHECK (name ~ '^[!-~]{1,128}$'),
  url             text CHECK (url ~ '^https?://[!-~]+$' AND length(url) <= 2008),
  secrets         text CHECK (secrets ~ '^(env:[A-Za-z0-9_]+|file:/[!-~]+)( (env:[A-Za-z0-9_]+|file:/[!-~]+))?$'),
  state           text NOT NULL GENERATED ALWAYS AS (CASE WHEN disabled_at IS NULL THEN 'active' ELSE 'disabled' END) STORED,
  disabled_at     timestamptz,
  disabled_reason text,
  disabled_itself boolean NOT NULL DEFAULT false,
  failing_since   timestamptz,
  created_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  updated_at      timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (downstream, name),
  CHECK ((url IS NULL) = (secrets IS NULL)),
  CHECK ((disabled_at IS NULL) = (disabled_reason IS NULL))
);

-- For applications that keep their customers' endpoints: makes one, or changes it. Another URL or other secrets forget its
-- failures, and enable it again where those or its own 410 disabled it: what a person disabled stays so. Nobody but the operator may call it unless somebody grants it.
CREATE FUNCTION aftercommit.put_endpoint(of_downstream text, named text, at_url text, with_secrets text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  why_disabled text;
BEGIN
  SELECT e.disabled_reason INTO why_disabled FROM aftercommit.endpoints AS e
  WHERE e.downstream = of_downstream AND e.name = named AND e.disabled_itself FOR UPDATE;
  INSERT INTO aftercommit.endpoints AS e (downstream, name, url, secrets)
  VALUES (of_downstream, named, at_url, with_secrets)
  ON CONFLICT (downstream, name) DO UPDATE
  SET url = excluded.url, secrets = excluded.secrets, failing_since = NULL, updated_at = clock_timestamp(),
      disabled_at = CASE WHEN e.disabled_itself THEN NULL ELSE e.disabled_at END,
      disabled_reason = CASE WHEN e.disabled_itself THEN NULL ELSE e.disabled_reason END,
      disabled_itself = false
  WHERE (e.url, e.secrets) IS DISTINCT FROM (excluded.url, excluded.secrets);
  IF FOUND THEN
    INSERT INTO aftercommit.audit (who, verb, downstream, reason)
    VALUES (session_user, 'put_endpoint', of_downstream, left(named || coalesce(': enabled again; it was disabled: ' || why_disabled, ''), 1000));
  END IF;
END
$$;

-- Effects for it that are still due end failed, unsent.
CREATE FUNCTION aftercommit.drop_endpoint(of_downstream text, named text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  DELETE FROM aftercommit.endpoints AS e WHERE e.downstream = of_downstream AND e.name = named;
  IF NOT FOUND THEN RETURN false; END IF;
  INSERT INTO aftercommit.audit (who, verb, downstream, reason) VALUES (session_user, 'drop_endpoint', of_downstream, named);
  RETURN true;
END
$$;

-- By hand: disables an endpoint (`why_disabled`), or enables it again (null).
CREATE FUNCTION aftercommit.switch_endpoint(of_downstream text, named text, why_disabled text, by_whom text, for_reason text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF why_disabled IS NULL THEN
    UPDATE aftercommit.endpoints AS e
    SET disabled_at = NULL, disabled_reason = NULL, disabled_itself = false, failing_since = NULL, updated_at = clock_timestamp()
    WHERE e.downstream = of_downstream AND e.name = named AND e.disabled_at IS NOT NULL;
  ELSE
    INSERT INTO aftercommit.endpoints AS e (downstream, name, disabled_at, disabled_reason)
    VALUES (of_downstream, named, clock_timestamp(), why_disabled)
    ON CONFLICT (downstream, name) DO UPDATE
    SET disabled_at = excluded.disabled_at, disabled_reason = excluded.disabled_reason, disabled_itself = false,
        updated_at = clock_timestamp()
    WHERE e.disabled_at IS NULL;
  END IF;
  IF NOT FOUND THEN RETURN false; END IF;
  INSERT INTO aftercommit.audit (who, verb, downstream, reason)
  VALUES (by_whom, CASE WHEN why_disabled IS NULL THEN 'enable_endpoint' ELSE 'disable_endpoint' END, of_downstream,
          left(concat_ws(': ', named, coalesce(for_reason, why_disabled)), 1000));
  RETURN true;
END
$$;

-- What the endpoint at `at_url` showed to a worker: that it fails from now on, that it does not, or why nothing more is sent there
-- (`why_disabled`). It says nothing of a row that has another URL since, and makes none where that was dropped; null is an
-- endpoint of the configuration, whose row holds its state. Whether anything changed. A function, since a worker's role may
-- write neither the row nor the audit.
CREATE FUNCTION aftercommit.note_endpoint(of_downstream text, named text, at_url text, fails boolean, why_disabled text, by_whom text)
RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
BEGIN
  IF at_url IS NULL AND fails THEN
    INSERT INTO aftercommit.endpoints (downstream, name) VALUES (of_downstream, named) ON CONFLICT (downstream, name) DO NOTHING;
  END IF;
  IF why_disabled IS NOT NULL THEN
    UPDATE aftercommit.endpoints AS e
    SET disabled_at = clock_timestamp(), disabled_reason = why_disabled, disabled_itself = at_url IS NOT NULL,
        updated_at = clock_timestamp()
    WHERE e.downstream = of_downstream AND e.name = named AND (at_url IS NULL OR e.url = at_url) AND e.disabled_at IS NULL;
    IF NOT FOUND THEN RETURN false; END IF;
    INSERT INTO aftercommit.audit (who, verb, downstream, reason)
    VALUES (by_whom, 'disable_endpoint', of_downstream, left(concat_ws(': ', named, why_disabled), 1000));
    RETURN true;
  END IF;
  UPDATE aftercommit.endpoints AS e
  SET failing_since = CASE WHEN fails THEN clock_timestamp() END, updated_at = clock_timestamp()
  WHERE e.downstream = of_downstream AND e.name = named AND (at_url IS NULL OR e.url = at_url)
    AND fails = (e.failing_since IS NULL);
  RETURN FOUND;
END
$$;

REVOKE ALL ON FUNCTION aftercommit.put_endpoint, aftercommit.drop_endpoint, aftercommit.switch_endpoint,
  aftercommit.note_endpoint FROM PUBLIC;

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
BEGIN
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT SELECT ON aftercommit.endpoints TO aftercommit_worker;
    GRANT EXECUTE ON FUNCTION aftercommit.note_endpoint TO aftercommit_worker;
  END IF;
  -- A URL may hold its owner's tokens.
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT (downstream, name, state, disabled_at, disabled_reason, failing_since, created_at, updated_at)
      ON aftercommit.endpoints TO aftercommit_viewer;
  END IF;
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT SELECT ON aftercommit.endpoints TO aftercommit_operator;
    GRANT EXECUTE ON FUNCTION aftercommit.put_endpoint, aftercommit.drop_endpoint, aftercommit.switch_endpoint
      TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

-- All of it belongs to whom the rest belongs, whoever migrates: the functions write the audit with their owner's rights.
DO $owner$
DECLARE
  new_owner regrole := (SELECT c.relowner FROM pg_class AS c WHERE c.oid = 'aftercommit.effects'::regclass);
  new_function regprocedure;
BEGIN
  EXECUTE format('ALTER TABLE aftercommit.endpoints OWNER TO %s', new_owner);
  FOR new_function IN
    SELECT p.oid FROM pg_proc AS p WHERE p.pronamespace = 'aftercommit'::regnamespace
    AND p.proname IN ('put_endpoint', 'drop_endpoint', 'switch_endpoint', 'note_endpoint')
  LOOP
    EXECUTE format('ALTER FUNCTION %s OWNER TO %s', new_function, new_owner);
  END LOOP;
END
$owner$;

INSERT INTO aftercommit.schema_version (version) VALUES (10);
