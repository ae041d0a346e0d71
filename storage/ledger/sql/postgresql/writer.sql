-- The procedures by which roles write, which may otherwise only read. Training, upkeep and metrics may call ledger_note,
-- which takes evaluations and audits alone; the releasing worker and the officer's desk ledger_append and
-- ledger_register. Each derives hash and columns from one text. What a row is worth is for those who read it to say: it
-- counts by its signatures and by what it follows from, not by being there.

CREATE FUNCTION ledger_put(content text, kinds text[]) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
  this jsonb := content::jsonb;
BEGIN
  PERFORM pg_advisory_xact_lock(2021092);
  IF (this ->> 'kind' = ANY (kinds) AND jsonb_typeof(this -> 'sequence') = 'number'
      AND length(content) < 10000000) IS NOT TRUE THEN
    RAISE EXCEPTION 'the ledger is append-only: this role adds no row of kind %', this ->> 'kind'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  INSERT INTO ledger_row (sequence, previous_hash, hash, kind, release_id, body)
    VALUES ((this ->> 'sequence')::bigint, this ->> 'previous_hash',
      encode(sha256(convert_to(content, 'UTF8')), 'hex'), this ->> 'kind', this ->> 'release_id', content);
END $$;

REVOKE ALL ON FUNCTION ledger_put(text, text[]) FROM PUBLIC;

CREATE FUNCTION ledger_note(content text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM ledger_put(content, ARRAY['evaluation', 'audit']);
END $$;

REVOKE ALL ON FUNCTION ledger_note(text) FROM PUBLIC;

CREATE FUNCTION ledger_append(content text) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  PERFORM ledger_put(content, ARRAY['evaluation', 'audit', 'release', 'budget-change', 'refusal', 'handover',
    'revocation']);
END $$;

REVOKE ALL ON FUNCTION ledger_append(text) FROM PUBLIC;

CREATE FUNCTION ledger_register(marks bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE newest record;
BEGIN
  PERFORM pg_advisory_xact_lock(2021092);
  SELECT sequence, body::jsonb -> 'details' -> 'records' ->> 'set' AS digest INTO newest
    FROM ledger_row ORDER BY sequence DESC LIMIT 1;
  IF newest.digest IS DISTINCT FROM encode(sha256(marks), 'hex') THEN
    RAISE EXCEPTION 'the ledger is append-only: these are not the records of the last row'
      USING ERRCODE = 'insufficient_privilege';
  END IF;
  INSERT INTO record_set VALUES (newest.sequence, marks);
END $$;

REVOKE ALL ON FUNCTION ledger_register(bytea) FROM PUBLIC;
