-- 0003 Probes: what asking a downstream about an effect in doubt has shown so far.

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (3, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
