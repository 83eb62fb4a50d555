-- 0006 Viewer: nothing to do here. Differs because a SQLite file has no roles.

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (6, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
