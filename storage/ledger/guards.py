"""What the database itself holds of the ledger's rules: triggers and, on PostgreSQL, the one procedure that writes.

Migrations put these texts in place, and `changed` compares them with what is there, to the letter: a trigger of the
right name that does nothing protects nothing. A text that a migration used is never edited; a newer migration replaces
it.

On PostgreSQL the application's role may read, and call `ledger_append`. That takes a row's canonical JSON, derives
hash, columns and running totals from it, and refuses another form and what does not follow from the rows before: a
state out of turn, a charge that does not add up or exceeds the cap of the policy in force, a claim about units that is
not charged to the account of all cohorts, fewer decisions than that
policy asks for, and another policy in the place of one that asks for approvals, from anybody but the owner of the
tables. It does not check signatures: a decision that nobody signed is found by `verify`.
"""

from __future__ import annotations

import re

import sqlalchemy as sa
from sqlalchemy.engine import Connection

# The insert triggers make every insert an append to the end of the chain. On SQLite that also stops INSERT OR
# REPLACE, which deletes the old row without firing the delete trigger unless recursive_triggers is on.
CHAIN: dict[str, tuple[str, ...]] = {
    "sqlite": (
        """CREATE TRIGGER ledger_row_no_update BEFORE UPDATE ON ledger_row
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END""",
        """CREATE TRIGGER ledger_row_no_delete BEFORE DELETE ON ledger_row
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END""",
        """CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row
    WHEN NEW.sequence IS NOT (SELECT coalesce(max(sequence), 0) + 1 FROM ledger_row)
      OR NEW.previous_hash IS NOT coalesce(
           (SELECT hash FROM ledger_row ORDER BY sequence DESC LIMIT 1), printf('%064d', 0))
      OR EXISTS (SELECT 1 FROM ledger_row WHERE hash = NEW.hash)
      OR (NEW.kind = 'release' AND EXISTS (SELECT 1 FROM ledger_row
           WHERE kind = 'release' AND release_id = NEW.release_id
             AND (state = NEW.state OR state IN ('committed', 'burned'))))
      OR (NEW.idempotency_key IS NOT NULL AND NEW.state NOT IN ('drawn', 'committed', 'burned')
           AND EXISTS (SELECT 1 FROM ledger_row
             WHERE kind = NEW.kind AND idempotency_key = NEW.idempotency_key))
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: a row must follow the last one'); END""",
    ),
    "postgresql": (
        """CREATE FUNCTION ledger_refuse() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      RAISE EXCEPTION 'the ledger is append-only: % refused', TG_OP USING ERRCODE = 'insufficient_privilege';
    END $$""",
        """CREATE TRIGGER ledger_row_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON ledger_row
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()""",
        """CREATE FUNCTION ledger_row_append() RETURNS trigger LANGUAGE plpgsql AS $$
    DECLARE last record;
    BEGIN
      SELECT sequence, hash INTO last FROM ledger_row ORDER BY sequence DESC LIMIT 1;
      IF NEW.sequence IS DISTINCT FROM coalesce(last.sequence, 0) + 1
         OR NEW.previous_hash IS DISTINCT FROM coalesce(last.hash, repeat('0', 64)) THEN
        RAISE EXCEPTION 'the ledger is append-only: a row must follow the last one'
          USING ERRCODE = 'insufficient_privilege';
      END IF;
      RETURN NEW;
    END $$""",
        """CREATE TRIGGER ledger_row_append BEFORE INSERT ON ledger_row
    FOR EACH ROW EXECUTE FUNCTION ledger_row_append()""",
        "REVOKE ALL ON ledger_row FROM PUBLIC",
    ),
}

# A total may only be written beside the row that charges it, which is the newest one.
TOTALS: dict[str, tuple[str, ...]] = {
    "sqlite": (
        """CREATE TRIGGER spend_no_update BEFORE UPDATE ON spend
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END""",
        """CREATE TRIGGER spend_no_delete BEFORE DELETE ON spend
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END""",
        """CREATE TRIGGER spend_append BEFORE INSERT ON spend
    WHEN NEW.sequence IS NOT (SELECT max(sequence) FROM ledger_row)
      OR EXISTS (SELECT 1 FROM spend WHERE population = NEW.population AND cohort = NEW.cohort
           AND guarantee_kind = NEW.guarantee_kind AND sequence >= NEW.sequence)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: a total must belong to the last row'); END""",
    ),
    "postgresql": (
        """CREATE TRIGGER spend_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON spend
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()""",
        """CREATE FUNCTION spend_append() RETURNS trigger LANGUAGE plpgsql AS $$
    BEGIN
      IF NEW.sequence IS DISTINCT FROM (SELECT max(sequence) FROM ledger_row) THEN
        RAISE EXCEPTION 'the ledger is append-only: a total must belong to the last row'
          USING ERRCODE = 'insufficient_privilege';
      END IF;
      RETURN NEW;
    END $$""",
        """CREATE TRIGGER spend_append BEFORE INSERT ON spend
    FOR EACH ROW EXECUTE FUNCTION spend_append()""",
        "REVOKE ALL ON spend FROM PUBLIC",
    ),
}

WRITER = (
    """CREATE FUNCTION ledger_cap(policy jsonb, population text, cohort text, kind text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
      SELECT coalesce(nullif(budget -> 'cohorts' -> cohort -> kind, 'null'), nullif(budget -> kind, 'null'))
      FROM (SELECT coalesce(policy -> 'populations' -> population, policy -> 'default') AS budget) AS found
    $$""",
    """CREATE FUNCTION ledger_refuse_unless(holds boolean, problem text) RETURNS void LANGUAGE plpgsql AS $$
    BEGIN
      IF holds IS NOT TRUE THEN
        RAISE EXCEPTION 'the ledger is append-only: %', problem USING ERRCODE = 'insufficient_privilege';
      END IF;
    END $$""",
    """CREATE FUNCTION ledger_canonical(value json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
    DECLARE
      shown text := btrim(value::text);
    BEGIN
      CASE json_typeof(value)
        WHEN 'object' THEN
          RETURN (SELECT CASE WHEN count(*) = count(DISTINCT e.key) THEN '{' || coalesce(string_agg(
              to_json(e.key)::text || ':' || ledger_canonical(e.value), ',' ORDER BY e.key COLLATE "C"), '') || '}' END
            FROM json_each(value) AS e);
        WHEN 'array' THEN
          RETURN '[' || (SELECT coalesce(string_agg(ledger_canonical(e.value), ',' ORDER BY e.number), '')
            FROM json_array_elements(value) WITH ORDINALITY AS e (value, number)) || ']';
        WHEN 'string' THEN
          RETURN to_json(value #>> '{}')::text;
        WHEN 'number' THEN  -- the shortest digits, an exponent only outside [1e-6, 1e21)
          RETURN CASE WHEN shown ~ '^-?(0|[1-9][0-9]*)([.][0-9]*[1-9])?(e[+-][1-9][0-9]*)?$' AND shown <> '-0'
            AND (shown ~ 'e') = (abs(shown::float8) >= 1e21 OR shown::float8 <> 0 AND abs(shown::float8) < 1e-6)
            AND btrim(regexp_replace(shown, 'e.*|[^0-9]', '', 'g'), '0')
              = btrim(regexp_replace(shown::float8::text, 'e.*|[^0-9]', '', 'g'), '0')
            THEN shown END;
        ELSE
          RETURN shown;
      END CASE;
    END $$""",
    """CREATE FUNCTION ledger_append(content text) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    DECLARE
      this jsonb := content::jsonb;
      kind text := this ->> 'kind';
      state text := this ->> 'state';
      account text := this ->> 'guarantee_kind';
      in_force jsonb;
      rule jsonb;
      earlier jsonb;
      charge jsonb;
      cap jsonb;
      total record;
      asked numeric;
      asked_delta numeric;
      changing text[] := ARRAY['sequence', 'previous_hash', 'recorded_at', 'state', 'charges', 'draw_digest',
        'bundle_digest', 'epsilon', 'sensitivity', 'event', 'epsilon_add_remove', 'reason', 'policy_digest'];
    BEGIN
      PERFORM pg_advisory_xact_lock(2021092);
      PERFORM ledger_refuse_unless(
        ledger_canonical(content::json) = content AND this ->> 'schema_version' = '1'
          AND (SELECT string_agg(key, ' ' ORDER BY key COLLATE "C") FROM jsonb_object_keys(this) AS key) =
            'accountant approvals artifact_digests assumptions bundle_digest charges code_commit code_dirty'
            ' cohorts composition data_fingerprint delta delta_text details draw_digest draws epsilon'
            ' epsilon_add_remove event floating_point_caveat guarantee_kind idempotency_key kind label'
            ' lock_digest max_records_per_unit mc_failure_prob mechanism neighbouring_relation'
            ' parameters_digest policy_digest population prefect_run_id previous_hash privacy_unit'
            ' randomness_source reason recorded_at records_rounded release_id requester schema_version'
            ' sensitivity sequence state supersedes trust_model unprotected_inputs',
        'this is no row in canonical JSON');
      SELECT body::jsonb INTO in_force FROM ledger_row AS r
        WHERE r.kind = 'budget-change' ORDER BY sequence DESC LIMIT 1;
      rule := in_force -> 'details' -> 'policy';
      IF kind = 'budget-change' THEN
        PERFORM ledger_refuse_unless(
          coalesce((rule -> 'approvals' ->> 'minimum')::int, 0) = 0
            OR pg_has_role(session_user, (SELECT relowner FROM pg_class WHERE oid = 'ledger_row'::regclass), 'MEMBER'),
          'the policy in force asks for approvals; another is recorded by the owner of the tables');
        PERFORM ledger_refuse_unless(
          (this -> 'details' ->> 'previous_policy_digest') IS NOT DISTINCT FROM (in_force ->> 'policy_digest'),
          'the policy before it was another one');
      END IF;
      IF kind <> 'release' THEN
        PERFORM ledger_refuse_unless(
          kind IN ('evaluation', 'audit', 'budget-change', 'refusal', 'handover', 'revocation')
            AND state IN ('internal', 'recorded') AND this -> 'charges' = '[]',
          'a row that is no release spends nothing');
      ELSE
        SELECT body::jsonb INTO earlier FROM ledger_row AS r
          WHERE r.kind = 'release' AND r.release_id = this ->> 'release_id' ORDER BY sequence DESC LIMIT 1;
        PERFORM ledger_refuse_unless(
          state = 'reserved' AND earlier IS NULL
            OR state = 'drawn' AND earlier ->> 'state' = 'reserved' AND this ->> 'draw_digest' IS NOT NULL
            OR state = 'committed' AND earlier ->> 'state' = 'drawn' AND this ->> 'bundle_digest' IS NOT NULL
            OR state = 'burned' AND earlier ->> 'state' IN ('reserved', 'drawn'),
          'a release is reserved, drawn and committed, or burned, in this order');
        PERFORM ledger_refuse_unless(
          earlier IS NULL OR this - changing = earlier - changing
            AND coalesce(earlier ->> 'draw_digest', this ->> 'draw_digest')
              IS NOT DISTINCT FROM (this ->> 'draw_digest'),
          'a field of the release changed that may not');
        asked := (this ->> 'epsilon')::numeric - coalesce((earlier ->> 'epsilon')::numeric, 0);
        asked_delta := CASE WHEN account = 'formal' AND state = 'reserved' THEN (this ->> 'delta')::numeric ELSE 0 END;
        IF state = 'reserved' THEN
          PERFORM ledger_refuse_unless(
            asked > 0 AND account IN ('formal', 'asymptotic-local'), 'a release without a cost');
          PERFORM ledger_refuse_unless(
            (SELECT count(DISTINCT decision ->> 'key_id')
              FROM jsonb_array_elements(coalesce(this -> 'details' -> 'decisions', '[]')) AS decision
              WHERE decision ->> 'decision' = 'approve'
                AND decision ->> 'digest' = this -> 'details' ->> 'plan_digest')
              >= coalesce((rule -> 'approvals' ->> 'minimum')::int, 0)
            AND jsonb_array_length(this -> 'approvals') >= coalesce((rule -> 'approvals' ->> 'minimum')::int, 0),
            'fewer approvals than the policy in force asks for');
        ELSE
          PERFORM ledger_refuse_unless(asked = 0 OR asked > 0 AND state = 'drawn', 'its cost fell, or grew too late');
        END IF;
        PERFORM ledger_refuse_unless(
          (SELECT coalesce(jsonb_agg(c -> 'cohort'), '[]') FROM jsonb_array_elements(this -> 'charges') AS c)
            = CASE WHEN asked > 0 THEN this -> 'cohorts' ELSE '[]' END,
          'the accounts charged are not those of its cohorts');
        IF asked > 0 THEN
          PERFORM ledger_refuse_unless(
            this ->> 'policy_digest' = in_force ->> 'policy_digest', 'it was checked against another policy');
        END IF;
        FOR charge IN SELECT * FROM jsonb_array_elements(this -> 'charges') LOOP
          cap := ledger_cap(rule, this ->> 'population', charge ->> 'cohort', account);
          SELECT s.epsilon, s.delta INTO total
            FROM spend AS s JOIN ledger_row AS r USING (sequence, population, guarantee_kind),
              jsonb_array_elements(r.body::jsonb -> 'charges') AS c
            WHERE s.population = this ->> 'population' AND s.cohort = charge ->> 'cohort'
              AND s.guarantee_kind = account AND c ->> 'cohort' = s.cohort
              AND (c ->> 'epsilon_after')::numeric = s.epsilon AND (c ->> 'delta_after')::numeric = s.delta
            ORDER BY s.sequence DESC LIMIT 1;  -- a total that the chain does not bear out counts for nothing
          PERFORM ledger_refuse_unless(
            (charge ->> 'epsilon_before')::numeric = coalesce(total.epsilon, 0)
              AND (charge ->> 'delta_before')::numeric = coalesce(total.delta, 0)
              AND (charge ->> 'epsilon')::numeric >= asked AND (charge ->> 'delta')::numeric >= asked_delta
              AND (charge ->> 'epsilon_after')::numeric
                = (charge ->> 'epsilon_before')::numeric + (charge ->> 'epsilon')::numeric
              AND (charge ->> 'delta_after')::numeric
                = (charge ->> 'delta_before')::numeric + (charge ->> 'delta')::numeric,
            'a charge does not add up');
          PERFORM ledger_refuse_unless(
            (charge ->> 'epsilon_after')::numeric <= (cap ->> 'epsilon')::numeric
              AND (charge ->> 'delta_after')::numeric <= coalesce((cap ->> 'delta')::numeric, 'Infinity'),
            'a charge exceeds the cap of the policy in force');
        END LOOP;
      END IF;
      INSERT INTO ledger_row (sequence, previous_hash, hash, schema_version, recorded_at, kind, state, release_id,
          idempotency_key, population, mechanism, guarantee_kind, epsilon, delta, sensitivity, body)
        VALUES ((this ->> 'sequence')::bigint, this ->> 'previous_hash',
          encode(sha256(convert_to(content, 'UTF8')), 'hex'), (this ->> 'schema_version')::int, this ->> 'recorded_at',
          kind, state, this ->> 'release_id', this ->> 'idempotency_key', this ->> 'population', this ->> 'mechanism',
          account, (this ->> 'epsilon')::numeric, (this ->> 'delta')::numeric, (this ->> 'sensitivity')::numeric,
          content);
      INSERT INTO spend (population, cohort, guarantee_kind, sequence, neighbouring_relation, privacy_unit, epsilon,
          delta)
        SELECT this ->> 'population', c ->> 'cohort', account, (this ->> 'sequence')::bigint,
          c ->> 'neighbouring_relation', c ->> 'privacy_unit', (c ->> 'epsilon_after')::numeric,
          (c ->> 'delta_after')::numeric
        FROM jsonb_array_elements(this -> 'charges') AS c;
    END $$""",
    "REVOKE ALL ON FUNCTION ledger_append(text) FROM PUBLIC",
)
"""PostgreSQL alone. Whoever could add rows before may call this instead."""

RECORDS: dict[str, tuple[str, ...]] = {
    "sqlite": (
        """CREATE TRIGGER record_set_no_update BEFORE UPDATE ON record_set
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: UPDATE refused'); END""",
        """CREATE TRIGGER record_set_no_delete BEFORE DELETE ON record_set
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: DELETE refused'); END""",
        """CREATE TRIGGER record_set_append BEFORE INSERT ON record_set
    WHEN NEW.sequence IS NOT (SELECT max(sequence) FROM ledger_row)
      OR EXISTS (SELECT 1 FROM record_set WHERE sequence = NEW.sequence)
    BEGIN SELECT RAISE(ABORT, 'the ledger is append-only: records must belong to the last row'); END""",
    ),
    "postgresql": (
        """CREATE TRIGGER record_set_no_change BEFORE UPDATE OR DELETE OR TRUNCATE ON record_set
    FOR EACH STATEMENT EXECUTE FUNCTION ledger_refuse()""",
        """CREATE TRIGGER record_set_append BEFORE INSERT ON record_set
    FOR EACH ROW EXECUTE FUNCTION spend_append()""",
        "REVOKE ALL ON record_set FROM PUBLIC",
    ),
}


def _replaced(text: str, *changes: tuple[str, str]) -> str:
    for before, after in changes:
        assert text.count(before) == 1, before
        text = text.replace(before, after)
    return text


_OF = "coalesce({} ->> 'population', {} ->> 'population')"
WRITER_OF_RECORDS = (
    _replaced(
        WRITER[3],
        ("CREATE FUNCTION", "CREATE OR REPLACE FUNCTION"),
        ("'refusal', 'handover', 'revocation')", "'refusal', 'handover', 'revocation', 'recovery')"),
        # a charge that names its population is of another release's account, which shares records with this one
        (
            "(SELECT coalesce(jsonb_agg(c -> 'cohort'), '[]') FROM jsonb_array_elements(this -> 'charges') AS c)",
            "(SELECT coalesce(jsonb_agg(c -> 'cohort'), '[]') FROM jsonb_array_elements(this -> 'charges') AS c"
            "\n              WHERE c ->> 'population' IS NULL)",
        ),
        ("ledger_cap(rule, this ->> 'population',", f"ledger_cap(rule, {_OF.format('charge', 'this')},"),
        ("USING (sequence, population, guarantee_kind)", "USING (sequence, guarantee_kind)"),
        ("WHERE s.population = this ->> 'population' AND", f"WHERE s.population = {_OF.format('charge', 'this')} AND"),
        (
            "AND c ->> 'cohort' = s.cohort\n",
            "AND c ->> 'cohort' = s.cohort\n"
            "              AND s.population = coalesce(c ->> 'population', r.population)\n",
        ),
        ("SELECT this ->> 'population', c ->> 'cohort',", f"SELECT {_OF.format('c', 'this')}, c ->> 'cohort',"),
    ),
    """CREATE FUNCTION ledger_register(marks bytea) RETURNS void
    LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
    DECLARE newest record;
    BEGIN
      PERFORM pg_advisory_xact_lock(2021092);
      SELECT sequence, kind, state, body::jsonb -> 'details' -> 'records' ->> 'set' AS digest INTO newest
        FROM ledger_row ORDER BY sequence DESC LIMIT 1;
      PERFORM ledger_refuse_unless(
        newest.kind = 'release' AND newest.state = 'reserved' AND newest.digest = encode(sha256(marks), 'hex'),
        'these are not the records of the last row');
      INSERT INTO record_set VALUES (newest.sequence, marks);
    END $$""",
    "REVOKE ALL ON FUNCTION ledger_register(bytea) FROM PUBLIC",
)
"""PostgreSQL alone: charges to accounts of other populations, recoveries, and sets of records."""

WRITER_OF_UNITS = (
    """CREATE OR REPLACE FUNCTION ledger_cap(policy jsonb, population text, cohort text, kind text) RETURNS jsonb
    LANGUAGE sql IMMUTABLE AS $$
      SELECT CASE WHEN cohort = 'all cohorts' THEN
          (SELECT jsonb_build_object(
              'epsilon', min((cap ->> 'epsilon')::numeric), 'delta', min((cap ->> 'delta')::numeric))
            FROM (SELECT nullif(budget -> kind, 'null') AS cap UNION ALL
              SELECT nullif(own.value -> kind, 'null') FROM jsonb_each(budget -> 'cohorts') AS own) AS caps)
        ELSE coalesce(nullif(budget -> 'cohorts' -> cohort -> kind, 'null'), nullif(budget -> kind, 'null')) END
      FROM (SELECT coalesce(policy -> 'populations' -> population, policy -> 'default') AS budget) AS found
    $$""",
    _replaced(
        WRITER_OF_RECORDS[0],
        (
            "      total record;\n",
            "      total record;\n      taken numeric;\n      taken_delta numeric;\n"
            "      unit text := this ->> 'privacy_unit';\n      whose text;\n",
        ),
        # a claim about units is charged to the account of its population's units as well
        (
            "= CASE WHEN asked > 0 THEN this -> 'cohorts' ELSE '[]' END,",
            "= CASE WHEN asked > 0 THEN (this -> 'cohorts') || CASE WHEN unit = 'record' THEN '[]'::jsonb"
            " ELSE '[\"all cohorts\"]' END ELSE '[]' END\n"
            "            AND NOT (this -> 'cohorts') ? 'all cohorts' AND unit IS NOT NULL,",
        ),
        (
            f"          cap := ledger_cap(rule, {_OF.format('charge', 'this')},",
            f"""          whose := {_OF.format("charge", "this")};
          PERFORM ledger_refuse_unless(charge ->> 'privacy_unit' = unit, 'charged as of another privacy unit');
          IF unit <> (SELECT s.privacy_unit FROM spend AS s
                WHERE s.population = whose AND s.guarantee_kind = account ORDER BY s.privacy_unit LIMIT 1)
              OR unit <> (SELECT s.privacy_unit FROM spend AS s
                WHERE s.population = whose AND s.guarantee_kind = account ORDER BY s.privacy_unit DESC LIMIT 1) THEN
            PERFORM ledger_refuse_unless(
              NOT EXISTS (SELECT 1
                FROM spend AS s JOIN ledger_row AS r USING (sequence, guarantee_kind),
                  jsonb_array_elements(r.body::jsonb -> 'charges') AS c
                WHERE s.population = whose AND s.guarantee_kind = account AND s.privacy_unit <> unit
                  AND c ->> 'privacy_unit' = s.privacy_unit AND c ->> 'cohort' = s.cohort
                  AND coalesce(c ->> 'population', r.population) = whose),
              'its population has accounts of another privacy unit');
          END IF;
          cap := ledger_cap(rule, whose,""",
        ),
        (
            f"            WHERE s.population = {_OF.format('charge', 'this')} AND",
            "            WHERE s.population = whose AND",
        ),
        (
            "-- a total that the chain does not bear out counts for nothing\n",
            """-- a total that the chain does not bear out counts for nothing
          IF total IS NULL AND charge ->> 'cohort' = 'all cohorts' THEN  -- it takes over what was charged before it
            SELECT coalesce(sum(r.epsilon), 0), coalesce(sum(r.delta) FILTER (WHERE account = 'formal'), 0)
              INTO taken, taken_delta
              FROM ledger_row AS r
              WHERE r.kind = 'release' AND r.population = whose AND r.guarantee_kind = account
                AND r.sequence = (SELECT max(n.sequence) FROM ledger_row AS n
                  WHERE n.release_id = r.release_id AND n.kind = 'release');
          ELSE
            taken := 0;
            taken_delta := 0;
          END IF;
""",
        ),
        (
            "AND (charge ->> 'epsilon')::numeric >= asked AND (charge ->> 'delta')::numeric >= asked_delta",
            "AND (charge ->> 'epsilon')::numeric >= asked + taken\n"
            "              AND (charge ->> 'delta')::numeric >= asked_delta + taken_delta",
        ),
    ),
)
"""PostgreSQL alone: an account of each population's units, beside those of its cohorts, and one unit a population."""

_TRIGGERS = {
    "ledger_row_no_change": "BEFORE DELETE OR UPDATE OR TRUNCATE ON ledger_row FOR EACH STATEMENT"
    " EXECUTE FUNCTION ledger_refuse()",
    "ledger_row_append": "BEFORE INSERT ON ledger_row FOR EACH ROW EXECUTE FUNCTION ledger_row_append()",
    "spend_no_change": "BEFORE DELETE OR UPDATE OR TRUNCATE ON spend FOR EACH STATEMENT"
    " EXECUTE FUNCTION ledger_refuse()",
    "spend_append": "BEFORE INSERT ON spend FOR EACH ROW EXECUTE FUNCTION spend_append()",
    "record_set_no_change": "BEFORE DELETE OR UPDATE OR TRUNCATE ON record_set FOR EACH STATEMENT"
    " EXECUTE FUNCTION ledger_refuse()",
    "record_set_append": "BEFORE INSERT ON record_set FOR EACH ROW EXECUTE FUNCTION spend_append()",
}
"""As PostgreSQL tells them."""


def changed(connection: Connection) -> list[str]:
    """Names of triggers and functions that are gone, are not as the migrations put them, or were added."""
    sqlite = connection.dialect.name == "sqlite"
    wanted = _wanted_sqlite() if sqlite else _wanted_postgresql()
    found: dict[str, str] = {}
    for name, definition in connection.execute(sa.text(_FOUND_SQLITE if sqlite else _FOUND_POSTGRESQL)):
        found[name] = _plain(definition)
    return sorted(name for name in wanted.keys() | found.keys() if wanted.get(name) != found.get(name))


def functions() -> list[str]:
    """The functions that a migrated PostgreSQL ledger has, as `changed` names them."""
    return [name for name in _wanted_postgresql() if name.startswith("function ")]


def _plain(definition: str) -> str:
    return " ".join(definition.split())


def _wanted_sqlite() -> dict[str, str]:
    return {text.split()[2]: _plain(text) for text in CHAIN["sqlite"] + TOTALS["sqlite"] + RECORDS["sqlite"]}


def _wanted_postgresql() -> dict[str, str]:
    wanted = {f"trigger {name}": f"CREATE TRIGGER {name} {text} O" for name, text in _TRIGGERS.items()}
    for text in CHAIN["postgresql"] + TOTALS["postgresql"] + WRITER + WRITER_OF_RECORDS + WRITER_OF_UNITS:
        function = re.match(r"CREATE (?:OR REPLACE )?FUNCTION (\w+).*?\$\$(.*)\$\$", text, re.DOTALL)
        if function is not None:
            definer = "definer" if "SECURITY DEFINER" in text else "invoker"
            wanted[f"function {function[1]}"] = f"{definer} {_plain(function[2])}"
    return wanted


_FOUND_SQLITE = (
    "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' AND tbl_name IN ('ledger_row', 'spend', 'record_set')"
)
_FOUND_POSTGRESQL = """
SELECT 'trigger ' || tgname, pg_get_triggerdef(oid, true) || ' ' || tgenabled::text FROM pg_trigger
  WHERE NOT tgisinternal AND tgrelid IN ('ledger_row'::regclass, 'spend'::regclass, 'record_set'::regclass)
UNION ALL
SELECT 'rule ' || rulename, pg_get_ruledef(oid) FROM pg_rewrite
  WHERE ev_class IN ('ledger_row'::regclass, 'spend'::regclass, 'record_set'::regclass)
UNION ALL
SELECT 'row security of ' || relname, 'on' FROM pg_class
  WHERE oid IN ('ledger_row'::regclass, 'spend'::regclass, 'record_set'::regclass) AND relrowsecurity
UNION ALL
SELECT 'function ' || proname,
  CASE WHEN prosecdef THEN 'definer ' ELSE 'invoker ' END || prosrc
    || CASE WHEN prosecdef AND coalesce(array_to_string(proconfig, ' '), '') !~ '^search_path=.*, pg_temp$'
         THEN ' (open path)' ELSE '' END
    || CASE WHEN proowner <> (SELECT relowner FROM pg_class WHERE oid = 'ledger_row'::regclass)
         THEN ' (of another role)' ELSE '' END
  FROM pg_proc WHERE pronamespace = (SELECT relnamespace FROM pg_class WHERE oid = 'ledger_row'::regclass)
    AND (proname LIKE 'ledger\\_%' OR proname = 'spend_append')
"""
