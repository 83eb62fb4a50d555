-- 0003 Probes: what asking a downstream about an effect in doubt has shown so far.
--
-- Locks: ADD COLUMN with a constant default rewrites nothing; the index is built over effects in doubt only, which are few.

-- One row per effect in doubt that was probed, written by probes alone. It tells of the doubt that its `token` and `due_at` say:
-- where the queue row has others, somebody settled, parked or resolved the effect meanwhile, and a new doubt begins.
CREATE TABLE aftercommit.probes (
  id            bigint PRIMARY KEY,
  token         bigint NOT NULL,      -- the queue row's, when it was last probed
  due_at        timestamptz NOT NULL, -- what the last probe, or the claim of the open one, put into the queue row
  probe         bigint NOT NULL,      -- of the probe that was begun last: fences what it writes
  travels_until timestamptz NOT NULL, -- until when the last request may have been travelling
  made          integer NOT NULL DEFAULT 0,
  absent_at     timestamptz,          -- when it was first seen absent
  doubt         text                  -- why it is in doubt, without what probes showed
);

-- Histories that a probe began, having seen twice that what was sent before was not applied: an answer to that which comes late and
-- says otherwise tells of a possible duplicate. `token` is the new history's: all claims before it have lesser ones. Kept for
-- a month.
CREATE TABLE aftercommit.absences (
  effect_id bigint NOT NULL,
  token     bigint NOT NULL,
  seen_at   timestamptz NOT NULL DEFAULT clock_timestamp(),
  PRIMARY KEY (effect_id, token)
);

-- The downstream stored a server error under the key: a probe's "absent" does not prove that it will not be applied.
ALTER TABLE aftercommit.queue ADD COLUMN error_stored boolean NOT NULL DEFAULT false;

-- Serves the claim of probes.
CREATE INDEX queue_probe ON aftercommit.queue (downstream, due_at, id) WHERE lane = 'd' AND due_at IS NOT NULL;

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
BEGIN
  IF to_regrole('aftercommit_worker') IS NOT NULL THEN
    GRANT SELECT, INSERT, UPDATE, DELETE ON aftercommit.probes TO aftercommit_worker;
    GRANT SELECT, INSERT, DELETE ON aftercommit.absences TO aftercommit_worker;
  END IF;
  IF to_regrole('aftercommit_operator') IS NOT NULL THEN
    GRANT SELECT ON aftercommit.probes TO aftercommit_operator;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (3);
