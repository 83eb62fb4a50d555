-- 0008 Enqueue: nothing to do here. Differs because SQLite's checks are a BEFORE trigger, which is compiled with the INSERT.

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (8, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
