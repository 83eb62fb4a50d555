-- 0004 Retention: what is dropped when, and what outlives it.

INSERT INTO aftercommit.schema_version (version) VALUES (4);
