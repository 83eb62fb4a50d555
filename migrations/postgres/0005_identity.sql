-- 0005 Identity: how a database that went back, or is another one, is noticed; HOLD. Two tables of one row each and a
-- function: nothing is locked.

-- The cluster that this database was last known to live in: written by the first worker, changed by a failover that lost
-- nothing, and by a person who lifts a hold. `epoch` counts those lifts: who remembers an older one is told that a person
-- has accepted what changed meanwhile.
CREATE TABLE aftercommit.identity (
  one               boolean PRIMARY KEY DEFAULT true CHECK (one),
  system_identifier text,
  timeline          bigint,
  epoch             bigint NOT NULL DEFAULT 0,
  accepted_at       timestamptz NOT NULL DEFAULT clock_timestamp()
);

-- While its row is there nothing is sent and nothing is probed, by any worker: every claim asks for it.
CREATE TABLE aftercommit.hold (
  one         boolean PRIMARY KEY DEFAULT true CHECK (one),
  since       timestamptz NOT NULL DEFAULT clock_timestamp(),
  found_by    text NOT NULL,
  reason      text NOT NULL,
  went_back   boolean NOT NULL,   -- what was written here may have been lost: every unfinished effect becomes uncertain
  marked_to   bigint NOT NULL DEFAULT 0,      -- up to this effect they have
  marked      boolean NOT NULL DEFAULT false, -- all have
  epoch_above bigint NOT NULL DEFAULT 0       -- the highest that was remembered
);

-- Tokens go on above what a worker remembers. Never down: not even the worker's role can make one be drawn twice.
CREATE FUNCTION aftercommit.raise_tokens(above bigint)
RETURNS void LANGUAGE sql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
  SELECT setval('aftercommit.tokens', above) WHERE above > (SELECT last_value FROM aftercommit.tokens)
$$;

REVOKE ALL ON FUNCTION aftercommit.raise_tokens FROM PUBLIC;

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
BEGIN
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE ON aftercommit.identity, aftercommit.hold TO aftercommit_worker;
    GRANT EXECUTE ON FUNCTION aftercommit.raise_tokens TO aftercommit_worker;
  END IF;

  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT ON aftercommit.identity, aftercommit.hold TO aftercommit_viewer;
  END IF;

  -- A worker enters a hold; only a person lifts it.
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE ON aftercommit.identity TO aftercommit_operator;
    GRANT SELECT, UPDATE, DELETE ON aftercommit.hold TO aftercommit_operator;
    GRANT EXECUTE ON FUNCTION aftercommit.raise_tokens TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (5);
