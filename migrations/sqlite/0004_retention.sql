-- 0004 Retention: what is dropped when, and what outlives it.

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (4, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
