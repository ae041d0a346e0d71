CREATE TABLE ledger_row (
  sequence BIGINT NOT NULL PRIMARY KEY,
  hash VARCHAR(64) NOT NULL,
  body TEXT NOT NULL,
  CONSTRAINT ledger_row_one_line CHECK (length(body) <= 1000000 AND strpos(body, chr(10)) = 0)
);

CREATE TABLE record_set (
  sequence BIGINT NOT NULL PRIMARY KEY,
  marks BYTEA NOT NULL
);

CREATE TABLE measurement (
  number BIGINT NOT NULL GENERATED ALWAYS AS IDENTITY PRIMARY KEY,
  recorded_at VARCHAR(40) NOT NULL,
  kind VARCHAR(20) NOT NULL,
  idempotency_key VARCHAR(300),
  facts VARCHAR(65536) NOT NULL,
  CONSTRAINT measurement_once UNIQUE (kind, idempotency_key)
);

CREATE TABLE ledger_version (
  version_num VARCHAR(32) NOT NULL
);

-- The lock of all who write to the chain. No one without this function can hold it: an advisory lock would be anyone's.

CREATE FUNCTION ledger_lock() RETURNS void LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
BEGIN
  LOCK TABLE ledger_row IN EXCLUSIVE MODE;
END $$;

REVOKE ALL ON FUNCTION ledger_lock() FROM PUBLIC;
