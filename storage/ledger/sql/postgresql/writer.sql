-- The procedures by which the pipeline's role writes. It may read, and call ledger_append and ledger_register.
--
-- ledger_append takes a row's canonical JSON and derives hash, columns and running totals from it. It refuses another
-- form and what does not follow from the rows before: a state out of turn, a charge that does not add up or exceeds the
-- cap of the policy in force, a claim about units that is not charged to the account of all cohorts, fewer decisions
-- than that policy demands, and a change of a policy that demands approvals by anybody but the owner of the tables.
-- Of losses it checks that they add up, not that they follow from the event, nor what epsilon they come to: the program
-- and `verify` do. It does not check signatures: `verify` does.

CREATE FUNCTION ledger_cap(policy jsonb, population text, cohort text, kind text) RETURNS jsonb
LANGUAGE sql IMMUTABLE AS $$
  SELECT CASE WHEN cohort = 'all cohorts' THEN
      (SELECT jsonb_build_object(
          'epsilon', min((cap ->> 'epsilon')::numeric), 'delta', min((cap ->> 'delta')::numeric),
          'composition', min(cap ->> 'composition'))  -- basic is before exact
        FROM (SELECT nullif(budget -> kind, 'null') AS cap UNION ALL
          SELECT nullif(own.value -> kind, 'null') FROM jsonb_each(budget -> 'cohorts') AS own) AS caps)
    ELSE coalesce(nullif(budget -> 'cohorts' -> cohort -> kind, 'null'), nullif(budget -> kind, 'null')) END
  FROM (SELECT coalesce(policy -> 'populations' -> population, policy -> 'default') AS budget) AS budgets
$$;

CREATE FUNCTION ledger_refuse_unless(holds boolean, problem text) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
  IF holds IS NOT TRUE THEN
    RAISE EXCEPTION 'the ledger is append-only: %', problem USING ERRCODE = 'insufficient_privilege';
  END IF;
END $$;

CREATE FUNCTION ledger_losses_add_up(earlier jsonb, added jsonb, after jsonb) RETURNS boolean
LANGUAGE sql IMMUTABLE AS $$
  SELECT coalesce(bool_and(
      CASE WHEN earlier -> name = 'null' OR added -> name = 'null' THEN after -> name = 'null'
        ELSE (earlier ->> name)::numeric + (added ->> name)::numeric = (after ->> name)::numeric END), false)
    AND (SELECT bool_and((e.value #>> '{}')::numeric + (a.value #>> '{}')::numeric = (s.value #>> '{}')::numeric)
      FROM jsonb_array_elements(earlier -> 'curve') WITH ORDINALITY AS e (value, number)
        FULL JOIN jsonb_array_elements(added -> 'curve') WITH ORDINALITY AS a (value, number) USING (number)
        FULL JOIN jsonb_array_elements(after -> 'curve') WITH ORDINALITY AS s (value, number) USING (number))
  FROM unnest(ARRAY['epsilon', 'delta', 'pure', 'mu_squared', 'failure']) AS name
$$;

CREATE FUNCTION ledger_canonical(value json) RETURNS text LANGUAGE plpgsql IMMUTABLE AS $$
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
END $$;

CREATE FUNCTION ledger_append(content text) RETURNS void
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
  unit text := this ->> 'privacy_unit';
  owner text;
  cost numeric;
  cost_delta numeric;
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
        ' sensitivity sequence state subject supersedes trust_model unprotected_inputs',
    'this is not a row in canonical JSON');
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
      kind IN ('evaluation', 'audit', 'budget-change', 'refusal', 'handover', 'revocation', 'recovery')
        AND state IN ('internal', 'recorded') AND this -> 'charges' = '[]',
      'a row that is not a release spends nothing');
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
    cost := (this ->> 'epsilon')::numeric - coalesce((earlier ->> 'epsilon')::numeric, 0);
    cost_delta := CASE WHEN account = 'formal' AND state = 'reserved' THEN (this ->> 'delta')::numeric ELSE 0 END;
    IF state = 'reserved' THEN
      PERFORM ledger_refuse_unless(
        cost > 0 AND account IN ('formal', 'asymptotic-local'), 'a release without a cost');
      PERFORM ledger_refuse_unless(
        (SELECT count(DISTINCT decision ->> 'key_id')
          FROM jsonb_array_elements(coalesce(this -> 'details' -> 'decisions', '[]')) AS decision
          WHERE decision ->> 'decision' = 'approve'
            AND decision ->> 'digest' = this -> 'details' ->> 'plan_digest')
          >= coalesce((rule -> 'approvals' ->> 'minimum')::int, 0)
        AND jsonb_array_length(this -> 'approvals') >= coalesce((rule -> 'approvals' ->> 'minimum')::int, 0),
        'fewer approvals than the policy in force asks for');
    ELSE
      PERFORM ledger_refuse_unless(cost = 0 OR cost > 0 AND state = 'drawn', 'its cost fell, or grew too late');
    END IF;
    PERFORM ledger_refuse_unless(
      (SELECT coalesce(jsonb_agg(c -> 'cohort'), '[]') FROM jsonb_array_elements(this -> 'charges') AS c
          WHERE c ->> 'population' IS NULL)  -- with one, an account of another release of the same records
        = CASE WHEN cost > 0
            THEN (this -> 'cohorts') || CASE WHEN unit = 'record' THEN '[]'::jsonb ELSE '["all cohorts"]' END
            ELSE '[]' END
        AND NOT (this -> 'cohorts') ? 'all cohorts' AND unit IS NOT NULL,
      'the accounts charged are not those of its cohorts');
    IF cost > 0 THEN
      PERFORM ledger_refuse_unless(
        this ->> 'policy_digest' = in_force ->> 'policy_digest', 'it was checked against another policy');
    END IF;
    FOR charge IN SELECT * FROM jsonb_array_elements(this -> 'charges') LOOP
      owner := coalesce(charge ->> 'population', this ->> 'population');
      PERFORM ledger_refuse_unless(charge ->> 'privacy_unit' = unit, 'charged as of another privacy unit');
      IF unit <> (SELECT s.privacy_unit FROM spend AS s
            WHERE s.population = owner AND s.guarantee_kind = account ORDER BY s.privacy_unit LIMIT 1)
          OR unit <> (SELECT s.privacy_unit FROM spend AS s
            WHERE s.population = owner AND s.guarantee_kind = account ORDER BY s.privacy_unit DESC LIMIT 1) THEN
        PERFORM ledger_refuse_unless(
          NOT EXISTS (SELECT 1
            FROM spend AS s JOIN ledger_row AS r USING (sequence, guarantee_kind),
              jsonb_array_elements(r.body::jsonb -> 'charges') AS c
            WHERE s.population = owner AND s.guarantee_kind = account AND s.privacy_unit <> unit
              AND c ->> 'privacy_unit' = s.privacy_unit AND c ->> 'cohort' = s.cohort
              AND coalesce(c ->> 'population', r.population) = owner),
          'its population has accounts of another privacy unit');
      END IF;
      cap := ledger_cap(rule, owner, charge ->> 'cohort', account);
      SELECT s.epsilon, s.delta, c ->> 'composition' AS rule, c -> 'spent' AS spent INTO total
        FROM spend AS s JOIN ledger_row AS r USING (sequence, guarantee_kind),
          jsonb_array_elements(r.body::jsonb -> 'charges') AS c
        WHERE s.population = owner AND s.cohort = charge ->> 'cohort'
          AND s.guarantee_kind = account AND c ->> 'cohort' = s.cohort
          AND s.population = coalesce(c ->> 'population', r.population)
          AND (c ->> 'epsilon_after')::numeric = s.epsilon AND (c ->> 'delta_after')::numeric = s.delta
        ORDER BY s.sequence DESC LIMIT 1;  -- a total that differs from the chain does not count
      PERFORM ledger_refuse_unless(
        (charge ->> 'epsilon_before')::numeric = coalesce(total.epsilon, 0)
          AND (charge ->> 'delta_before')::numeric = coalesce(total.delta, 0)
          AND (charge ->> 'epsilon')::numeric >= cost
          AND (charge ->> 'delta')::numeric >= cost_delta
          AND CASE WHEN charge ->> 'composition' = 'basic' THEN
              (charge ->> 'epsilon_after')::numeric = (charge ->> 'epsilon')::numeric
                + coalesce((total.spent ->> 'epsilon')::numeric, total.epsilon, 0)
              AND (charge ->> 'delta_after')::numeric = (charge ->> 'delta')::numeric
                + coalesce((total.spent ->> 'delta')::numeric, total.delta, 0)
            ELSE account = 'formal' AND charge ->> 'composition' IN ('gaussian', 'renyi', 'mixed')
              AND cap ->> 'composition' <> 'basic' AND charge -> 'spent' <> 'null'
              AND (charge ->> 'delta_after')::numeric = (cap ->> 'delta')::numeric END
          AND CASE WHEN total.rule IS NULL THEN charge -> 'spent' = charge -> 'loss'
            WHEN total.spent = 'null' THEN charge ->> 'composition' = 'basic' AND charge -> 'spent' = 'null'
            ELSE ledger_losses_add_up(total.spent, charge -> 'loss', charge -> 'spent') END
          AND (charge -> 'loss' = 'null' OR (charge -> 'loss' ->> 'epsilon')::numeric
              = (charge ->> 'epsilon')::numeric),
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
    SELECT coalesce(c ->> 'population', this ->> 'population'), c ->> 'cohort', account, (this ->> 'sequence')::bigint,
      c ->> 'neighbouring_relation', c ->> 'privacy_unit', (c ->> 'epsilon_after')::numeric,
      (c ->> 'delta_after')::numeric
    FROM jsonb_array_elements(this -> 'charges') AS c;
END $$;

REVOKE ALL ON FUNCTION ledger_append(text) FROM PUBLIC;

CREATE FUNCTION ledger_register(marks bytea) RETURNS void
LANGUAGE plpgsql SECURITY DEFINER SET search_path FROM CURRENT AS $$
DECLARE newest record;
BEGIN
  PERFORM pg_advisory_xact_lock(2021092);
  SELECT sequence, kind, state, body::jsonb -> 'details' -> 'records' ->> 'stored' AS digest INTO newest
    FROM ledger_row ORDER BY sequence DESC LIMIT 1;
  PERFORM ledger_refuse_unless(
    newest.kind = 'release' AND newest.state = 'reserved' AND newest.digest = encode(sha256(marks), 'hex'),
    'these are not the records of the last row');
  INSERT INTO record_set VALUES (newest.sequence, marks);
END $$;

REVOKE ALL ON FUNCTION ledger_register(bytea) FROM PUBLIC;
