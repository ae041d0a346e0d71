"""Measurements: evaluations and audits that training, maintenance and metrics record outside the
chain.

They are not signed, and nothing in this table can stop a release or change its cost. It is read
defensively: rows that are not measurements of this version are skipped, and only details in a known
form are kept. If a release depends on a measurement, its releasing worker copies it into the row of
the reservation and signs it.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.engine import Connection

from storage.errors import InputError, OutOfRange
from storage.ledger import chain
from storage.ledger.entries import Evaluated
from storage.ledger.models import Evaluation, Sample
from storage.ledger.schema import measurement

if TYPE_CHECKING:
    from storage.json_values import Figures, Json


_T = measurement.c
_MOST_DETAILS, _MOST_CHARACTERS = 100, 65_536
_LARGEST = 10**15
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_@. -]{0,79}")
_TEXTS = ("verdict", "branch")
"""Details that are names. All others are figures, or lists or tables of them."""


def add(connection: Connection, evaluation: Evaluation) -> Evaluated:
    """Adds a measurement. Repeating the same kind and idempotency key returns the first one."""
    moment = chain.now()
    Evaluated.of(0, moment, evaluation)  # refuses invalid amounts
    values = {
        "recorded_at": moment,
        "kind": evaluation.kind,
        "idempotency_key": evaluation.idempotency_key,
        "facts": chain.canonical(evaluation.model_dump(mode="json")),
    }
    if len(values["facts"]) > _MOST_CHARACTERS:
        raise OutOfRange(
            f"details: a measurement may have at most {_MOST_CHARACTERS:,} characters",
            kind="details-too-long",
        )
    number = connection.execute(_insert(connection).values(values).returning(_T.number)).scalar()
    if number is None:
        query = sa.select(_T.number).where(
            _T.kind == evaluation.kind, _T.idempotency_key == evaluation.idempotency_key
        )
        number = connection.execute(query).scalar()
    for row in _rows(connection, _T.number == number):
        return row
    raise OutOfRange(
        "details: only figures that can be read back are allowed", kind="details-not-figures"
    )


def _insert(connection: Connection) -> Any:
    from sqlalchemy.dialects import postgresql, sqlite

    dialect = postgresql if connection.dialect.name == "postgresql" else sqlite
    return dialect.insert(measurement).on_conflict_do_nothing()


def every(connection: Connection) -> list[Evaluated]:
    """The readable measurements, oldest first."""
    return list(_rows(connection, sa.true()))


def _rows(connection: Connection, which: sa.ColumnElement[bool]) -> Iterator[Evaluated]:
    # If a text is too long to be a measurement, only as much as proves its length is read.
    facts: Any = sa.func.substr(_T.facts, 1, _MOST_CHARACTERS + 1)
    if connection.dialect.name == "sqlite":
        facts = sa.cast(facts, sa.LargeBinary)
    query = sa.select(_T.number, _T.recorded_at, facts).where(which).order_by(_T.number)
    with connection.execute(query, execution_options={"yield_per": 1000}) as stored:
        for number, recorded_at, text in stored:
            row = _parse(number, recorded_at, text)
            # guard: test_a_measurement_that_is_none_is_skipped
            if row is not None:
                yield row


def _parse(number: int, recorded_at: object, facts: bytes | str) -> Evaluated | None:
    try:
        plain = json.loads(facts)
        fields = {name: value for name, value in plain.items() if name in Evaluation.model_fields}
        fields["details"] = dict(_figures(fields["details"]))
        fields["sample"] = _sample(fields.get("sample"))
        datetime.fromisoformat(str(recorded_at))
        row = Evaluated.of(number, str(recorded_at), Evaluation.model_validate(fields))
        chain.canonical(row.as_json())
    except (
        ArithmeticError,
        AttributeError,
        InputError,
        KeyError,
        RecursionError,
        TypeError,
        ValidationError,
        ValueError,
    ):
        return None
    return row


def _sample(value: Any) -> Sample | None:
    try:
        return Sample.model_validate(value)
    except ValidationError:
        return None


def _figures(details: Figures) -> Iterator[tuple[str, Json]]:
    for name, value in list(details.items())[:_MOST_DETAILS]:
        if _NAME.fullmatch(name) and _is_figure(name, value):
            yield name, value


def _is_figure(name: str, value: Any) -> bool:
    if name in _TEXTS:
        return _is_name(value)
    if isinstance(value, list):
        return len(value) <= _MOST_DETAILS and all(map(_is_name, value))
    if isinstance(value, dict):
        return len(value) <= _MOST_DETAILS and all(
            _is_name(key) and _is_number(entry) for key, entry in value.items()
        )
    return _is_number(value)


def _is_number(value: object) -> bool:
    return (
        isinstance(value, int | float)
        and not isinstance(value, bool)
        and math.isfinite(value)
        and abs(value) <= _LARGEST
    )


def _is_name(value: object) -> bool:
    return isinstance(value, str) and _NAME.fullmatch(value) is not None
