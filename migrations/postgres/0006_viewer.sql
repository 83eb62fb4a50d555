-- 0006 Viewer: what `effects list`, `downstreams list`, `doctor` and /metrics read by the queue's own indexes. Through the views
-- alone a state has no index, and takes seconds at ten million rows. No column that holds what was sent or answered.

-- BEGIN roles: may be run again, by somebody who may make roles.
DO $roles$
BEGIN
  IF to_regrole('aftercommit_viewer') IS NOT NULL THEN
    GRANT SELECT (id, downstream, idempotency_key) ON aftercommit.effects TO aftercommit_viewer;
    GRANT SELECT (id, downstream, lane, claimed, due_at, tries, token) ON aftercommit.queue TO aftercommit_viewer;
    GRANT SELECT ON aftercommit.claims, aftercommit.operations TO aftercommit_viewer;
    GRANT SELECT (effect_id, downstream, state) ON aftercommit.outcomes TO aftercommit_viewer;
    GRANT SELECT (id, contract) ON aftercommit.terms TO aftercommit_viewer;
  END IF;
END
$roles$;
-- END roles

INSERT INTO aftercommit.schema_version (version) VALUES (6);
