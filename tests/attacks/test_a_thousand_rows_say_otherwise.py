"""Would win: a history changed field by field, row by row, whose fold shows less spent, or another
release, and names nothing.

The attempts are made by rule from one history with every kind of row, always the same. Anyone who
makes them can write the whole database, and link and hash every row anew; some also sign, with a
key of their own or, of numbers alone, with the releasing worker's. `python
tests/attacks/test_a_thousand_rows_say_otherwise.py` prints what held.
"""

import copy
import json
import random
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from decimal import Decimal
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric import ec
from releases import make_plan, release_key

from storage.ledger import Ledger, Policy, ReleasePlan, chain
from storage.ledger.chain import StoredRow
from storage.ledger.content import policy_terms, release_terms
from storage.ledger.decisions import sign
from storage.ledger.entries import UNSIGNED, Begun, Blocked, HandedOver, Revoked
from storage.ledger.fold import State, fold
from storage.ledger.keys import encoded_key, public_pem, sign_bytes
from storage.ledger.models import GENESIS

DECLARES = """
No changed row makes a ledger say less than its events
| 2,391 by rule: fields of every kind of row dropped, doubled, emptied, negated, huge, not a number,
of another type, twins in Unicode; bodies that no writer writes; rows dropped, doubled, swapped, cut
off, of another time, taken from another ledger, signed by a stranger; the whole chain linked anew
| rows behind the last signed one, and evaluations and audits, are held by heads, journal and
witness alone
"""

OFFICER, STRANGER = (ec.derive_private_key(number, ec.SECP256R1()) for number in (55, 56))
Row = dict[str, Any]
HUGE = "9" * 400


def _policy(epsilon: int) -> Policy:
    pem = {
        name: public_pem(key.public_key()).decode()
        for name, key in (("o", OFFICER), ("w", release_key()))
    }
    rule = {"minimum": 1, "approvers": {"Officer": pem["o"]}}
    caps = {
        "formal": {"epsilon": epsilon, "delta": "0.001"},
        "asymptotic-local": {"epsilon": epsilon},
    }
    name = f"cap {epsilon}"
    return Policy.parse(
        {"name": name, "approvals": rule, "release_keys": {"worker": pem["w"]}, "default": caps}
    )


def _release(ledger: Ledger, plan: ReleasePlan) -> str:
    signed = sign(
        OFFICER, subject="release", decision="approve", digest="d" * 64, terms=release_terms(plan)
    )
    return str(ledger.reserve(plan, plan_digest="d" * 64, decisions=[signed]).release_id)


def _write(folder: Path, label: str) -> list[Row]:
    """A history with every kind of row; unsigned ones come last."""
    ledger = Ledger.open(f"sqlite:///{folder / label}.db", policy=_policy(20), key=release_key())
    ledger.put_in_force(requester="lead")
    ledger.note(Begun(requester="lead"))
    first = _release(ledger, make_plan("a", release_label=label, cohorts=("2023", "2024")))
    ledger.mark_drawn(
        first, draw_digest="1" * 64, plan_digest="d" * 64, sensitivity=2.5, epsilon=5.0
    )
    ledger.commit(first, bundle_digest="2" * 64, plan_digest="d" * 64)
    formal = _release(ledger, make_plan("b", kind="formal", cohorts=("2024",)))
    ledger.mark_drawn(formal, draw_digest="3" * 64, plan_digest="d" * 64)
    ledger.burn(_release(ledger, make_plan("c", cohorts=("2025",))), reason="lost")
    stated: dict[str, Any] = {"release_id": first, "requester": "operator"}
    stated["bundle_digest"] = "2" * 64
    packed: dict[str, Any] = {"archive_sha256": "3" * 64, "archive_bytes": 1_000}
    ledger.note(HandedOver(partner="bureau", **packed, **stated))
    ledger.note(Revoked(reason="a fault", **stated))
    refused = make_plan("r", cohorts=("2026",))
    no: dict[str, Any] = {
        "subject": "release",
        "digest": "e" * 64,
        "terms": release_terms(refused),
        "reason": "no",
    }
    ledger.refuse(refused, sign(OFFICER, decision="refuse", **no))
    wider, why = _policy(25), {"requester": "lead", "reason": "more"}
    terms = policy_terms(wider.name, ledger.state().policy_mark, **why)
    yes = sign(OFFICER, subject="policy", decision="approve", digest=wider.digest, terms=terms)
    ledger.change_policy(wider, decisions=[yes], **why)
    ledger.note(Blocked(plan_digest="e" * 64, audit_row=1, line="l", requester="lead"))
    with ledger.database.read() as connection:
        return [json.loads(entry.body) for entry in chain.whole_rows(connection)]


@cache
def history(label: str = "label") -> list[Row]:
    with tempfile.TemporaryDirectory() as folder:
        return _write(Path(folder), label)


def linked(
    rows: list[Row], *, first: int = 0, key: Any = None, edit: Callable[[str], str] = str
) -> list[StoredRow]:
    """The rows as a whole chain again; from `first` on, what has to be signed is signed with a key,
    if any.

    Args:
        edit: of the text of the row `first`, past any writer.
    """
    entries, previous = [], GENESIS
    copied: Any = copy.deepcopy(rows)
    for number, plain in enumerate(copied):
        if number >= first:
            plain |= {"sequence": number + 1, "previous_hash": previous}
            if key is not None and _is_signed(plain):
                plain |= {"signer": encoded_key(key.public_key())}
                plain["signature"] = sign_bytes(chain.signed_bytes(plain), key)
        text = chain.canonical(plain)
        text = edit(text) if number == first else text
        previous = chain.digest(text)
        entries.append(StoredRow(number + 1, previous, text))
    return entries


def _is_signed(plain: Row) -> bool:
    entry = plain.get("entry")
    return isinstance(entry, dict) and entry.get("kind") not in UNSIGNED


def said(state: State) -> dict[str, Any]:
    releases = {
        name: (
            release.row.state,
            release.row.epsilon,
            release.row.exact.delta,
            release.row.event,
            release.plan.cohorts,
            release.plan.population,
            release.reserved.approvals,
            release.row.draw_digest,
            release.row.bundle_digest,
            bool(release.revoked),
            bool(release.problem),
        )
        for name, release in state.releases.items()
    }
    return {"releases": releases, "policy": state.in_force.digest, "refusals": set(state.refusals)}


@cache
def as_it_was() -> State:
    return fold(linked(history()))


def outcome(entries: list[StoredRow]) -> str:
    """What became of an attempt: refused, named by `verify`, harmless, or through."""
    honest, state = as_it_was(), fold(entries)
    if state.broken:
        return "refused: the chain is damaged"
    if state.ledger != honest.ledger:
        return "refused: another ledger than plans, journal and partners name"
    if state.bad:
        return "named, without effect"
    if state.sequence < honest.sequence:
        return "refused: shorter than journal and heads"
    less = any(
        name not in state.accounts or state.accounts[name].epsilon < account.epsilon
        for name, account in honest.accounts.items()
    )
    return "THROUGH" if less or said(state) != said(honest) else "harmless: says the same"


# -- attempts
# ------------------------------------------------------------------------------------------------


def leaves(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    inside = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    for name, part in inside:
        yield (*path, name)
        yield from leaves(part, (*path, name))


def changed(row: Row, path: tuple[Any, ...], change: Callable[[Any], Any]) -> Row:
    copied = copy.deepcopy(row)
    parent: Any = copied
    for name in path[:-1]:
        parent = parent[name]
    new = change(parent[path[-1]])
    if new is DROPPED:
        del parent[path[-1]]
    else:
        parent[path[-1]] = new
    return copied


DROPPED = object()


def _negated(value: Any) -> Any:
    if isinstance(value, list | dict):
        return value
    try:
        return str(-Decimal(value)) if isinstance(value, str) else -(value or 1)
    except ArithmeticError:
        return f"-{value}"


def _twin(value: Any) -> Any:
    """The same to the eye: Cyrillic letters, full-width letters and digits, a zero width space."""
    twins = str.maketrans(
        "aeocp0123456789",
        "\u0430\u0435\u043e\u0441\u0440" + "".join(map(chr, range(0xFF10, 0xFF1A))),
    )
    return value.translate(twins) + "\u200b" if isinstance(value, str) else value


FIELD: dict[str, Callable[[Any], Any]] = {
    "drop a field": lambda value: DROPPED,
    "null": lambda value: None,
    "negate a number": _negated,
    "a billionth": lambda value: "0.000000001" if isinstance(value, str) else 1e-9,
    "a huge number": lambda value: HUGE if isinstance(value, str) else 2**53 - 1,
    "NaN and infinity as text": lambda value: random.Random(str(value)).choice(
        ["NaN", "Infinity", "-Infinity", "sNaN"]
    ),
    "another type": lambda value: [value] if not isinstance(value, list) else {"0": value},
    "true for one": lambda value: True,
    "twin in Unicode": _twin,
    "empty": lambda value: type(value)() if isinstance(value, str | list | dict) else 0,
    "a list doubled": lambda value: value + value if isinstance(value, list) else DROPPED,
}
TEXT: dict[str, Callable[[str], str]] = {
    "a key twice, first": lambda text: text.replace('"claim":{', '"claim":{"epsilon":1e-12,', 1),
    "a key twice, last": lambda text: text[:-1] + ',"schema_version":2}',
    "not a number, bare": lambda text: text.replace('"epsilon":', '"epsilon":NaN,"x":', 1),
    "an integer of 400 digits": lambda text: text.replace(
        '"epsilon":', f'"epsilon":{HUGE},"x":', 1
    ),
    "blanks": lambda text: text.replace(":", ": "),
    "escaped letters": lambda text: text.replace('"reserved"', '"\\u0072eserved"').replace(
        "injuries", "in\\u006auries"
    ),
    "a lone surrogate": lambda text: text.replace("injuries", "injuries\\ud800"),
    "nested ten thousand deep": lambda text: (
        text[:-1] + ',"z":' + "[" * 10_000 + "]" * 10_000 + "}"
    ),
    "a byte order mark": lambda text: "\ufeff" + text,
    "two documents": lambda text: text + text,
    "an array": lambda text: f"[{text}]",
    "nothing": lambda text: "",
}


def attempts() -> Iterator[tuple[str, list[StoredRow]]]:
    rows, other = history(), history("another ledger")
    random_ = random.Random(55)
    for kind, change in FIELD.items():
        places = [(number, path) for number, row in enumerate(rows) for path in leaves(row)]
        for number, path in random_.sample(places, 160):
            mutated = [*rows[:number], changed(rows[number], path, change), *rows[number + 1 :]]
            if mutated[number] != rows[number]:
                key = random_.choice([None, STRANGER])
                yield f"field: {kind}", linked(mutated, first=number, key=key)
    for kind, edit in TEXT.items():
        for number in range(len(rows)):
            yield f"text: {kind}", linked(rows, first=number, edit=edit)
    for first in range(len(rows)):
        yield "row: dropped", linked([*rows[:first], *rows[first + 1 :]], first=first)
        yield (
            "row: dropped, signed by a stranger",
            linked([*rows[:first], *rows[first + 1 :]], first=first, key=STRANGER),
        )
        yield "row: signed by a stranger", linked(rows, first=first, key=STRANGER)
        yield "row: cut off", linked(rows[:first])
        yield "row: gap left", [entry for entry in linked(rows) if entry.sequence != first + 1]
        yield "row: stored with another's hash", _swapped_hash(linked(rows), first)
        for second in range(first + 1, len(rows)):
            swapped = list(rows)
            swapped[first], swapped[second] = rows[second], rows[first]
            yield "row: two swapped", linked(swapped, first=first)
            yield (
                "row: a later one doubled here",
                linked([*rows[:first], rows[second], *rows[first:]], first=first),
            )
        for taken in other:
            yield (
                "row: from another ledger",
                linked([*rows[:first], taken, *rows[first:]], first=first),
            )
        for years in (-30, -1, 1, 30):
            yield "row: other years", linked(_moved(rows, first, 365 * years), first=first)
    for number, row in enumerate(rows):
        for later in rows[number + 1 :]:
            known = row["entry"]
            figures = {
                name: known[name] for name in ("epsilon", "plan", "release_id") if known.get(name)
            }
            mixed = later | {"entry": later["entry"] | figures}
            yield "row: another row's figures", linked([*rows, mixed], first=len(rows))


def _swapped_hash(entries: list[StoredRow], first: int) -> list[StoredRow]:
    return [
        entry._replace(hash=entries[0].hash) if entry.sequence == first + 1 else entry
        for entry in entries
    ]


def _moved(rows: list[Row], first: int, days: int) -> list[Row]:
    at = datetime.fromisoformat(rows[first]["recorded_at"]) + timedelta(days=days)
    return [*rows[:first], rows[first] | {"recorded_at": at.isoformat()}, *rows[first + 1 :]]


def by_the_worker() -> Iterator[tuple[str, list[StoredRow]]]:
    """Reservations that the worker's own key signs, with other figures: nothing is given back."""
    rows = history()
    numbers: list[Any] = [
        *(
            "-4",
            "0",
            "-0.000000000001",
            "NaN",
            "-Infinity",
            HUGE,
            "1e-30",
            -1,
            0,
            -1e308,
            True,
            None,
            [],
            {},
        )
    ]
    for number, row in enumerate(rows):
        for path in _figures_of(row["entry"]):
            for value in numbers:
                mutated = changed(row, path, lambda _, value=value: value)
                if row["entry"]["kind"] == "reserved":
                    mutated["entry"]["release_id"] = f"{number:016x}"
                    mutated["entry"]["plan"]["idempotency_key"] = "again"
                again = linked([*rows, mutated], first=len(rows), key=release_key())
                yield "worker: another figure", again


def _figures_of(entry: Row) -> list[tuple[Any, ...]]:
    if entry["kind"] == "drawn":
        return [("entry", "epsilon"), ("entry", "sensitivity")]
    if entry["kind"] != "reserved":
        return []
    claim = ("entry", "plan", "claim")
    event = ("entry", "plan", "event")
    named = ("epsilon", "delta", "max_records_per_unit", "sensitivity", "epsilon_add_remove")
    return [*leaves(entry["plan"]["event"], event), *((*claim, name) for name in named)]


def table() -> Counter[tuple[str, str]]:
    """How many attempts of each kind ended how."""
    return Counter((kind, outcome(entries)) for kind, entries in attempts())


def test_no_row_makes_the_ledger_say_less() -> None:
    counted = table()
    assert sum(counted.values()) > 1_000
    assert not {kind: number for (kind, end), number in counted.items() if end == "THROUGH"}


def test_the_attempts_bite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("storage.ledger.fold.verify_encoded", lambda *_: True)
    monkeypatch.setattr("storage.ledger.policy.Policy.release_key_ids", lambda self: frozenset())
    rows = history()
    number = next(number for number, row in enumerate(rows) if row["entry"]["kind"] == "reserved")
    elsewhere = changed(rows[number], ("entry", "plan", "cohorts"), lambda _: ["1999"])
    assert (
        outcome(linked([*rows[:number], elsewhere, *rows[number + 1 :]], first=number)) == "THROUGH"
    )


def test_a_row_of_the_workers_own_gives_nothing_back() -> None:
    honest = as_it_was()
    for _, entries in by_the_worker():
        state = fold(entries)
        assert not state.broken
        for name, account in honest.accounts.items():
            now = state.accounts[name]
            assert now.spent.epsilon.is_finite()
            assert now.spent.epsilon >= account.spent.epsilon
            assert now.spent.delta >= account.spent.delta
            assert (now.spent.mu_squared or 0) >= (
                account.spent.mu_squared or 0
            ) or now.spent.mu_squared is None


if __name__ == "__main__":
    counted = table()
    for (kind, end), number in sorted(counted.items()):
        sys.stdout.write(f"{number:6} {kind:38} {end}\n")
    sys.stdout.write(f"{sum(counted.values()):6} in all\n")
