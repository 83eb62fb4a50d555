-- 0005 Identity: how a database that went back, or is another one, is noticed; HOLD.

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (5, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
