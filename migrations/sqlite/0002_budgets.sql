-- 0002 Budgets of a downstream that the whole fleet shares: rate, pauses by origin, breaker.

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (2, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
