-- 0011 Kept disabled: what a person disabled stays so, although an application drops the endpoint and puts it again.
--
-- A function: nothing is locked.

-- Effects for it that are still due end failed, unsent. Of one that a person disabled, or that stands in the configuration and
-- was disabled, the row stays, without URL and secrets: who puts it again finds it as it was left.
CREATE OR REPLACE FUNCTION aftercommit.drop_endpoint(of_downstream text, named text) RETURNS boolean
LANGUAGE plpgsql SECURITY DEFINER SET search_path = pg_catalog, pg_temp AS $$
DECLARE
  kept boolean;
  has_url boolean;
BEGIN
  -- Locked: nobody disables it between the look and the act.
  SELECT e.disabled_at IS NOT NULL AND NOT e.disabled_itself, e.url IS NOT NULL INTO kept, has_url
  FROM aftercommit.endpoints AS e WHERE e.downstream = of_downstream AND e.name = named FOR UPDATE;
  IF NOT FOUND OR kept AND NOT has_url THEN RETURN false; END IF;
  IF kept THEN
    UPDATE aftercommit.endpoints AS e SET url = NULL, secrets = NULL, failing_since = NULL, updated_at = clock_timestamp()
    WHERE e.downstream = of_downstream AND e.name = named;
  ELSE
    DELETE FROM aftercommit.endpoints AS e WHERE e.downstream = of_downstream AND e.name = named;
  END IF;
  INSERT INTO aftercommit.audit (who, verb, downstream, reason) VALUES (session_user, 'drop_endpoint', of_downstream, named);
  RETURN true;
END
$$;

INSERT INTO aftercommit.schema_version (version) VALUES (11);
