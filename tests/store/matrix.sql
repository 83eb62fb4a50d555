-- Every right of every role on every object of the schema, a line each, as the catalogs have it: see matrix.txt.
WITH roles (name, place) AS (VALUES ('public', 1), ('aftercommit_app', 2), ('aftercommit_worker', 3), ('aftercommit_viewer', 4), ('aftercommit_operator', 5)),
found (object, role, place, letter) AS (
  SELECT 'schema', r.name, r.place, p.letter FROM roles r, (VALUES ('USAGE', 'U'), ('CREATE', 'C')) AS p (privilege, letter)
  WHERE has_schema_privilege(r.name, 'aftercommit', p.privilege)
  UNION ALL
  SELECT c.relname, r.name, r.place, p.letter FROM roles r, pg_class c,
    (VALUES ('SELECT', 'r'), ('INSERT', 'a'), ('UPDATE', 'w'), ('DELETE', 'd'), ('TRUNCATE', 'D'), ('REFERENCES', 'x'), ('TRIGGER', 't')) AS p (privilege, letter)
  WHERE c.relnamespace = 'aftercommit'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f') AND has_table_privilege(r.name, c.oid, p.privilege)
  UNION ALL
  SELECT c.relname || '.' || a.attname, r.name, r.place, p.letter FROM roles r, pg_class c JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0 AND NOT a.attisdropped,
    (VALUES ('SELECT', 'r'), ('INSERT', 'a'), ('UPDATE', 'w'), ('REFERENCES', 'x')) AS p (privilege, letter)
  WHERE c.relnamespace = 'aftercommit'::regnamespace AND c.relkind IN ('r', 'v', 'm', 'p', 'f') AND has_column_privilege(r.name, c.oid, a.attnum, p.privilege)
    AND NOT has_table_privilege(r.name, c.oid, p.privilege)
  UNION ALL
  SELECT c.relname, r.name, r.place, p.letter FROM roles r, pg_class c, (VALUES ('USAGE', 'U'), ('SELECT', 'r'), ('UPDATE', 'w')) AS p (privilege, letter)
  WHERE c.relnamespace = 'aftercommit'::regnamespace AND c.relkind = 'S' AND has_sequence_privilege(r.name, c.oid, p.privilege)
  UNION ALL
  SELECT p.proname || '()', r.name, r.place, 'X' FROM roles r, pg_proc p
  WHERE p.pronamespace = 'aftercommit'::regnamespace AND has_function_privilege(r.name, p.oid, 'EXECUTE')
), objects (object, kind) AS (
  SELECT 'schema', 0
  UNION ALL SELECT relname, CASE relkind WHEN 'v' THEN 2 WHEN 'S' THEN 3 ELSE 1 END FROM pg_class WHERE relnamespace = 'aftercommit'::regnamespace AND relkind IN ('r', 'v', 'm', 'p', 'f', 'S')
  UNION ALL SELECT DISTINCT proname || '()', 4 FROM pg_proc WHERE pronamespace = 'aftercommit'::regnamespace
  UNION ALL SELECT DISTINCT object, CASE WHEN relkind = 'v' THEN 2 ELSE 1 END FROM found JOIN pg_class ON relnamespace = 'aftercommit'::regnamespace AND relname = split_part(object, '.', 1) WHERE object LIKE '%.%'
)
SELECT CASE WHEN l.object LIKE '%.%' THEN min(split_part(l.object, '.', 1)) || '(' || string_agg(split_part(l.object, '.', 2), ',' ORDER BY l.object COLLATE "C") || ')'
            ELSE min(l.object) END || ' ' || l.rights AS line
FROM (
  SELECT o.object, o.kind, string_agg(coalesce(
      (SELECT string_agg(DISTINCT f.letter, '' ORDER BY f.letter) FROM found AS f WHERE f.object = o.object AND f.place = r.place), '-'),
    ' ' ORDER BY r.place) AS rights
  FROM objects AS o CROSS JOIN roles AS r GROUP BY o.object, o.kind) AS l
GROUP BY l.kind, CASE WHEN l.object LIKE '%.%' THEN split_part(l.object, '.', 1) ELSE l.object END, l.object LIKE '%.%', l.rights
ORDER BY l.kind, 1
