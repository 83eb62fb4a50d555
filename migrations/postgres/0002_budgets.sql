-- 0002 Budgets of a downstream that the whole fleet shares: rate, pauses by origin, breaker.

INSERT INTO aftercommit.schema_version (version) VALUES (2);
