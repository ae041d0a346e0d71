-- Amounts are fixed-point text: NUMERIC is a float here. Only INTEGER PRIMARY KEY is the row's own number.

CREATE TABLE ledger_row (
  sequence INTEGER NOT NULL PRIMARY KEY,
  previous_hash VARCHAR(64) NOT NULL,
  hash VARCHAR(64) NOT NULL,
  schema_version INTEGER NOT NULL,
  recorded_at VARCHAR(40) NOT NULL,
  kind VARCHAR(20) NOT NULL,
  state VARCHAR(20) NOT NULL,
  release_id VARCHAR(300),
  idempotency_key VARCHAR(300),
  population VARCHAR(300),
  mechanism VARCHAR(100),
  guarantee_kind VARCHAR(20) NOT NULL,
  epsilon VARCHAR(40),
  delta VARCHAR(40),
  sensitivity VARCHAR(40),
  body TEXT NOT NULL,
  CONSTRAINT ledger_row_no_fork UNIQUE (previous_hash),
  CONSTRAINT ledger_row_hash UNIQUE (hash)
);

CREATE UNIQUE INDEX ledger_row_state_once ON ledger_row (release_id, state) WHERE kind = 'release';

CREATE UNIQUE INDEX ledger_row_closed_once ON ledger_row (release_id) WHERE state IN ('committed', 'burned');

CREATE UNIQUE INDEX ledger_row_key_once ON ledger_row (kind, idempotency_key)
  WHERE idempotency_key IS NOT NULL AND state NOT IN ('drawn', 'committed', 'burned');

CREATE INDEX ledger_row_by_release ON ledger_row (release_id, sequence);

CREATE INDEX ledger_row_by_key ON ledger_row (idempotency_key, sequence);

CREATE INDEX ledger_row_policy ON ledger_row (sequence) WHERE kind = 'budget-change';

CREATE TABLE spend (
  population VARCHAR(300) NOT NULL,
  cohort VARCHAR(300) NOT NULL,
  guarantee_kind VARCHAR(20) NOT NULL,
  sequence BIGINT NOT NULL,
  neighbouring_relation VARCHAR(20) NOT NULL,
  privacy_unit VARCHAR(300) NOT NULL,
  epsilon VARCHAR(40) NOT NULL,
  delta VARCHAR(40) NOT NULL,
  PRIMARY KEY (population, cohort, guarantee_kind, sequence)
) WITHOUT ROWID;

CREATE INDEX spend_by_sequence ON spend (sequence);

CREATE INDEX spend_by_unit ON spend (population, guarantee_kind, privacy_unit);

CREATE TABLE record_set (
  sequence INTEGER NOT NULL PRIMARY KEY,
  marks BLOB NOT NULL
);
