"""Lays out the ledger for readers: releases, rows, one release, budgets. Spent
amounts are rounded up.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from decimal import ROUND_CEILING, ROUND_FLOOR, Decimal
from itertools import groupby
from typing import TYPE_CHECKING

from flows.commands.layout import Column
from mechanisms.privacy.numerics import epsilon_text
from storage.figures import delta_text, left_text

if TYPE_CHECKING:
    from mechanisms.privacy.events import Claim
    from storage.ledger import ReleaseRow
    from storage.ledger.budget import Balance
    from storage.ledger.entries import Evaluated, LedgerRow
    from storage.ledger.report import Section

KINDS = {"formal": "formal", "asymptotic-local": "estimated", "none": "–"}


def spent(epsilon: Decimal | None) -> str:
    """Formats an epsilon that was spent or is claimed, rounded up to four decimals."""
    return "–" if epsilon is None else epsilon_text(epsilon)


def delta(value: Decimal | None, *, rounding: str = ROUND_CEILING) -> str:
    """Formats a delta with three digits, rounded up if it is spent and down if it remains."""
    return "–" if value is None else delta_text(value, rounding=rounding)


def cohorts(names: Iterable[str]) -> str:
    """Formats names of cohorts. Consecutive years are shortened to the first and the last."""
    runs: list[list[str]] = []
    for name in names:
        year = re.fullmatch(r"\d{4}", name)
        if (
            year
            and runs
            and re.fullmatch(r"\d{4}", runs[-1][-1])
            and int(name) == int(runs[-1][-1]) + 1
        ):
            runs[-1].append(name)
        else:
            runs.append([name])
    return ", ".join(f"{run[0]}-{run[-1]}" if len(run) > 2 else ", ".join(run) for run in runs)


def release_columns(rows: Sequence[ReleaseRow], revoked: Collection[str]) -> list[Column]:
    """Returns the six columns of a list of releases, at every width. `ledger show RELEASE` has all
    details of one release.
    """
    return [
        Column("release", [row.release_id for row in rows]),
        _made(rows),
        Column("state", [_state(row, revoked) for row in rows]),
        *_amounts(rows),
        Column("cohorts", [cohorts(row.plan.cohorts) or "–" for row in rows], wraps=True),
    ]


def every_row_columns(
    rows: Sequence[LedgerRow | Evaluated], revoked: Collection[str]
) -> list[Column]:
    """Returns the six columns of a list of rows of every kind, at every width."""
    return [
        Column("row", [_number(row) for row in rows], right=True),
        Column("what", [row.title for row in rows], wraps=True),
        _made(rows),
        Column("state", [_state(row, revoked) for row in rows]),
        *_amounts(rows),
    ]


def _number(row: LedgerRow | Evaluated) -> str:
    """Measurements are not part of the chain and have numbers of their own."""
    from storage.ledger.entries import Evaluated

    return f"m{row.sequence}" if isinstance(row, Evaluated) else str(row.sequence)


def _made(rows: Sequence[LedgerRow | Evaluated]) -> Column:
    return Column("made", [row.recorded_at[:16].replace("T", " ") for row in rows])


def _state(row: LedgerRow | Evaluated, revoked: Collection[str]) -> str:
    from storage.ledger.entries import Evaluated, ReleaseRow

    if isinstance(row, ReleaseRow):
        return "revoked" if row.release_id in revoked else row.state
    return row.evaluation.kind if isinstance(row, Evaluated) else row.entry.kind


def _amounts(rows: Sequence[LedgerRow | Evaluated]) -> Iterator[Column]:
    from storage.ledger.entries import Row

    costs = [None if isinstance(row, Row) else row for row in rows]
    epsilons = [None if row is None else row.epsilon for row in costs]
    yield Column("ε", [spent(epsilon) for epsilon in epsilons], right=True)
    yield Column("kind", [KINDS["none" if row is None else row.guarantee_kind] for row in costs])


def release_text(sections: Mapping[str, Section], *, width: int) -> Iterator[str]:
    """Yields the lines of one release: a heading per section, then its labels and values."""
    for name, rows in sections.items():
        yield name
        for label, value in rows:
            head = f"  {label:<15} " if label else "  - "
            yield from textwrap.wrap(
                value, width, initial_indent=head, subsequent_indent=" " * min(len(head), 18)
            )


def relation(claim: Claim) -> str:
    return relation_in_words(claim.neighbouring_relation, claim.privacy_unit)


def relation_in_words(name: str | None, unit: str | None) -> str:
    verbs = {"add-remove": "added or removed", "replace-one": "replaced"}
    return f"one {unit or 'record'} {verbs[name]}" if name in verbs else "relation not fixed yet"


def budget_text(lines: Sequence[Balance], policy: str, records: Mapping[str, int]) -> Iterator[str]:
    """Yields paragraphs: a heading per population, four lines for cohorts with equal balances, and
    finally the unused caps.

    Args:
        records: approximate number of records that each population's largest release was trained
            on.
    """
    from tasks.releasing.ledger_access import (
        describe_large_delta,
    )  # imports ledgers, which a light installation lacks

    used = [line for line in lines if line.used]
    for population, group in groupby(used, key=lambda line: line.account.population):
        accounts = list(group)
        words = {relation_in_words(line.relation, line.account.privacy_unit) for line in accounts}
        yield f"Budget of {population} (policy {policy}), {', '.join(sorted(words))}"
        yield ""
        balances: dict[tuple[str, ...], list[str]] = {}
        for line in accounts:
            balances.setdefault(tuple(_balance(line)), []).append(line.account.cohort)
        for (kind, spent_, *rest), names in balances.items():
            yield f"{cohorts(names)} ({kind}): {spent_}"
            yield from (f"  {line}" for line in rest)
            yield ""
        most = max(
            (line.cap.delta for line in accounts if line.cap and line.cap.delta is not None),
            default=None,
        )
        if most is not None and (
            large := describe_large_delta(records.get(population, 0), float(most))
        ):
            yield f"warning: {large} in the policy"
            yield ""
    granted: dict[str, list[str]] = {}
    for line in lines:
        if not line.used and line.cap is not None:
            counted = (
                f" (δ {delta(line.cap.delta, rounding=ROUND_FLOOR)})"
                if line.cap.delta is not None
                else ""
            )
            text = f"{KINDS[line.account.guarantee_kind]} ε {left_text(line.cap.epsilon)}{counted}"
            granted.setdefault(_whose(line.account.population, line.account.cohort), []).append(
                text
            )
    for whose, texts in granted.items():
        yield f"budgets not used yet ({whose}): {', '.join(texts)}"


def _balance(line: Balance) -> Iterator[str]:
    account, cap = line.account, line.cap
    yield KINDS[account.guarantee_kind]
    if cap is None:
        yield f"spent ε {spent(account.epsilon)}; the policy has no cap for it"
        yield "left nothing"
        yield "no release fits"
    else:
        adding = cap.delta is not None and not account.exact
        counted = (
            f" and δ {delta(account.delta)} of {delta(cap.delta, rounding=ROUND_FLOOR)}"
            if adding
            else ""
        )
        at_delta = f", at δ {delta(cap.delta, rounding=ROUND_FLOOR)}" if account.exact else ""
        yield f"spent ε {spent(account.epsilon)} of {left_text(cap.epsilon)}{counted}{at_delta}"
        counted = f" and δ {delta(line.delta_left, rounding=ROUND_FLOOR)}" if adding else ""
        yield f"left ε {left_text(line.left)}{counted}"
        more = line.more or 0
        yield f"about {more} more release{'' if more == 1 else 's'} of this size"
    yield f"composition {_COMPOSITION[account.rule or 'basic']}"


_COMPOSITION = {
    "basic": "basic: the releases' epsilons and deltas are added",
    "gaussian": (
        "exact, of Gaussian noise (Smith and Thakurta 2022); other noise is added by its claims"
    ),
    "sampled": (
        "exact, of the steps of sampled DP-SGD (dp_accounting); other noise is added by its claims"
    ),
}


def _whose(population: str, cohort: str) -> str:
    name = "any other population" if population == "*" else population
    return f"{name}, {'each other cohort' if cohort == '*' else cohort}"
