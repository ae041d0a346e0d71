CREATE TABLE ledger_row (
  sequence BIGINT NOT NULL PRIMARY KEY,
  previous_hash VARCHAR(64) NOT NULL,
  hash VARCHAR(64) NOT NULL,
  kind VARCHAR(20) NOT NULL,
  release_id VARCHAR(300),
  body TEXT NOT NULL,
  CONSTRAINT ledger_row_no_fork UNIQUE (previous_hash),
  CONSTRAINT ledger_row_hash UNIQUE (hash)
);

CREATE TABLE record_set (
  sequence BIGINT NOT NULL PRIMARY KEY,
  marks BYTEA NOT NULL
);

CREATE TABLE ledger_version (
  version_num VARCHAR(32) NOT NULL
);
