"""Spends one false-alarm rate alpha over all audits of a claim (alpha spending for sequential tests).

Each kind of test has a share of alpha, fixed before anything is measured, and a count. The k-th evidence of a kind may
raise a false alarm, in each of the kind's tests, with probability

    alpha / (all tests of all kinds) / (k (k + 1))

Evidence is identified by its content. The same evidence under other settings is the same attempt: it raises the same
alarms, or at another confidence a subset of them. Fresh draws are another attempt, also under the same settings.

**A true claim is contradicted with probability alpha at most, however often it is audited, whoever decides when to
stop.** A kind of t tests spends alpha t / (all tests) sum_k 1/(k (k + 1)) at most, and that sum is 1 or less; over the
kinds it is alpha.

**A false claim gains nothing by being audited often.** A small alpha helps a false claim: bounds fall, and a claim
between the bound at alpha and the one at less would no longer be contradicted. Therefore

- evidence of one kind takes nothing from another: an audit without reruns leaves the share of reruns untouched;
- other numbers of canaries in an audit without reruns, or another confidence, are no new evidence;
- the verdict as a first audit (`first`) is computed in addition. If its bound lies above the claim, the audit is
  contradicted or *inconclusive*, never "not contradicted"; and so are later audits of the claim, since otherwise one
  could repeat audits until chance lets one pass.

So the number k only separates contradicted from inconclusive, and a claim that is "not contradicted" has withstood
tests at the rate of first ones. True claims that are audited repeatedly pay for it: each audit makes itself and those
after it inconclusive by mistake with probability alpha / 2 at most, which a person may override.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.artifacts import MANIFEST, ArtifactRef, Store, digest
from storage.ledger import Row
from tasks.auditing.pool import FAMILIES
from tasks.branches.experiment import Outcome, Study
from tasks.releasing.claims import NOT_METHOD, method_of

TESTS = {"reruns": len(FAMILIES) + 1, "gradients": 1}
"""Tests of each kind: reruns have the families, and the largest delta by counts."""
_READ = {"reruns": ("trials", "pool"), "gradients": ("gradients",)}
"""Stages that each kind reads; without the first the test does not exist."""


@dataclass(frozen=True)
class AuditAttempt:
    """Numbers one audit of a claim among all audits of that claim.

    claim_of: digest of records and method, without the seed; evidence: digest of the evidence, by kind.
    numbers: position of the evidence in its kind, from 1, by kind; confidence: shared by all audits.
    refuted_before: largest epsilon that earlier audits would have refuted as first ones.
    """

    claim_of: str
    evidence: Mapping[str, str]
    numbers: Mapping[str, int]
    confidence: float
    refuted_before: float = 0.0

    @property
    def number(self) -> int:
        """Returns the largest number over the kinds."""
        return max(self.numbers.values(), default=1)

    @property
    def alpha(self) -> dict[str, float]:
        """Returns the rate of one test, by kind."""
        return {kind: self._of_test(number) for kind, number in self.numbers.items()}

    @property
    def first(self) -> dict[str, float]:
        """Returns the rates that a first audit would have."""
        return {kind: self._of_test(1) for kind in self.numbers}

    @property
    def spent(self) -> float:
        """Returns the total rate of this audit."""
        return sum(TESTS[kind] * alpha for kind, alpha in self.alpha.items())

    def _of_test(self, number: int) -> float:
        return (1 - self.confidence) / (sum(TESTS.values()) * number * (number + 1))


def evidence_of(store: Store, inputs: Mapping[str, ArtifactRef | None]) -> dict[str, str]:
    """Returns the digest of the numbers that each kind of test reads, by kind, whatever settings or code made them."""
    read = {name for names in _READ.values() for name in names}
    contents = {name: _content(store, ref) for name, ref in inputs.items() if ref is not None and name in read}
    return {
        kind: digest([contents.get(name) for name in names]) for kind, names in _READ.items() if names[0] in contents
    }


def _content(store: Store, ref: ArtifactRef) -> str:
    manifest = json.loads((store.open(ref) / MANIFEST).read_text(encoding="utf-8"))
    files = {name: file["sha256"] for name, file in manifest["files"].items()}
    return digest({"files": files, "figures": manifest["figures"]})


def count_attempt(
    study: Study,
    outcome: Outcome,
    evidence: Mapping[str, str],
    rows: Sequence[Row],
    *,
    confidence: float,
) -> AuditAttempt:
    """Numbers the evidence of the claim, by kind: repeated evidence keeps its number, new evidence gets the next."""
    claim_of = digest(
        {
            "records": study.facts["fingerprint"],
            "parameters": method_of(study.parameters, NOT_METHOD | {"fit": {"seed": True}}),
            "mechanism": outcome.mechanism.model_dump(mode="json"),
            "delta": study.at(outcome.branch).delta,
        }
    )
    refuted_before = 0.0
    earlier: dict[str, dict[str, int]] = {kind: {} for kind in TESTS}
    for row in rows:
        details: Mapping[str, Any] = row.details
        if row.kind != "audit" or details.get("claim_of") != claim_of:
            continue
        for kind, number in details["attempts"].items():
            earlier[kind].setdefault(details["evidence"][kind], number)
        if details["evidence"] != evidence:
            # guard: test_trying_again_until_one_passes
            refuted_before = max(refuted_before, details["epsilon_as_first"])
    # guard: test_audits_that_test_nothing_before_the_one_that_does
    # guard: test_reruns_asked_for_at_many_confidences
    numbers = {
        kind: earlier[kind].get(content, max(earlier[kind].values(), default=0) + 1)
        for kind, content in evidence.items()
    }
    return AuditAttempt(claim_of, evidence, numbers, confidence, refuted_before)
