-- 0009 Recipients: a mail to several people is one effect per recipient.
--
-- A mail server answers for each recipient, and an effect has one outcome: so a row for a mail must name one. Differs because SQLite
-- has no functions: the application, or the library's `for_each_recipient`, writes one row per recipient. Two spellings of one
-- address count as two here.
CREATE TRIGGER aftercommit_effects_recipients BEFORE INSERT ON aftercommit_effects
WHEN NEW.target IS NULL AND typeof(NEW.payload) = 'text' AND instr(NEW.payload, char(0)) = 0 AND json_valid(NEW.payload)
    AND EXISTS (SELECT 1 FROM aftercommit_downstreams AS d WHERE d.name = NEW.downstream AND d.kind = 'smtp')
BEGIN
    SELECT RAISE(ABORT, 'aftercommit: column target: must name one recipient: the payload has several, and an effect is one mail to one of them (write one row per recipient, each with its target and a key of its own)')
    WHERE (SELECT count(DISTINCT item.value)
        FROM json_each(NEW.payload) AS field,
            json_each(CASE WHEN field.type = 'array' THEN field.value ELSE json_array(CASE WHEN field.type = 'object' THEN json(field.value) ELSE field.value END) END) AS item
        WHERE field.key IN ('to', 'cc', 'bcc') AND field.type <> 'null') > 1;
END;

INSERT INTO aftercommit_schema_version (version, applied_at) VALUES (9, CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000);
