-- Only INTEGER PRIMARY KEY is the row's own number.

CREATE TABLE ledger_row (
  sequence INTEGER NOT NULL PRIMARY KEY,
  hash VARCHAR(64) NOT NULL,
  body TEXT NOT NULL,
  CONSTRAINT ledger_row_one_line CHECK (length(body) <= 1000000 AND instr(body, char(10)) = 0)
);

CREATE TABLE record_set (
  sequence INTEGER NOT NULL PRIMARY KEY,
  marks BLOB NOT NULL
);

CREATE TABLE measurement (
  number INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
  recorded_at VARCHAR(40) NOT NULL,
  kind VARCHAR(20) NOT NULL,
  idempotency_key VARCHAR(300),
  facts VARCHAR(65536) NOT NULL,
  CONSTRAINT measurement_once UNIQUE (kind, idempotency_key)
);

CREATE TABLE ledger_version (
  version_num VARCHAR(32) NOT NULL
);
