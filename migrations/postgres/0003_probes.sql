-- 0003 Probes: what asking a downstream about an effect in doubt has shown so far.

INSERT INTO aftercommit.schema_version (version) VALUES (3);
