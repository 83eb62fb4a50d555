-- 0005 Identity: how a database that went back, or is another one, is noticed; HOLD.

INSERT INTO aftercommit.schema_version (version) VALUES (5);
