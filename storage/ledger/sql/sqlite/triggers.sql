-- Every insert is an append to the end of the chain. On SQLite that also stops INSERT OR REPLACE, which deletes the old
-- row without firing the delete trigger unless recursive_triggers is on.

CREATE TRIGGER ledger_row_no_update BEFORE UPDATE ON ledger_row
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END;

CREATE TRIGGER ledger_row_no_delete BEFORE DELETE ON ledger_row
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END;

CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row
WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_row)
  OR NEW.previous_hash IS NOT coalesce(
       (SELECT hash FROM ledger_row ORDER BY sequence DESC LIMIT 1), printf('%064d', 0))
  OR EXISTS (SELECT 1 FROM ledger_row WHERE hash = NEW.hash)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: a row must follow the last one'); END;

CREATE TRIGGER record_set_no_update BEFORE UPDATE ON record_set
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END;

CREATE TRIGGER record_set_no_delete BEFORE DELETE ON record_set
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END;

CREATE TRIGGER record_set_append BEFORE INSERT ON record_set
WHEN NEW.sequence IS NOT (SELECT max(sequence) FROM ledger_row)
  OR EXISTS (SELECT 1 FROM record_set WHERE sequence = NEW.sequence)
BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: records must belong to the last row'); END;
