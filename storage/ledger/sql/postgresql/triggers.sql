-- Triggers are written as pg_get_triggerdef prints them: `schema.changed` compares the two.

CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE EXCEPTION 'the ledger is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
END $$;

CREATE TRIGGER ledger_row_no_change BEFORE DELETE OR UPDATE OR TRUNCATE ON ledger_row
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();

CREATE FUNCTION ledger_row_append() RETURNS trigger LANGUAGE plpgsql AS $$
DECLARE last record;
BEGIN
  SELECT sequence, hash INTO last FROM ledger_row ORDER BY sequence DESC LIMIT 1;
  IF NEW.sequence IS DISTINCT FROM coalesce(last.sequence, 0) + 1
     OR NEW.previous_hash IS DISTINCT FROM coalesce(last.hash, repeat('0', 64)) THEN
    RAISE EXCEPTION 'the ledger is append-only: a row must follow the last one'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row
FOR EACH ROW EXECUTE FUNCTION ledger_row_append();

REVOKE ALL ON ledger_row FROM PUBLIC;

CREATE FUNCTION record_set_append() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  IF NEW.sequence IS DISTINCT FROM (SELECT max(sequence) FROM ledger_row) THEN
    RAISE EXCEPTION 'the ledger is append-only: records must belong to the last row'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  RETURN NEW;
END $$;

CREATE TRIGGER record_set_no_change BEFORE DELETE OR UPDATE OR TRUNCATE ON record_set
FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse();

CREATE TRIGGER record_set_append BEFORE INSERT ON record_set
FOR EACH ROW EXECUTE FUNCTION record_set_append();

REVOKE ALL ON record_set FROM PUBLIC;
