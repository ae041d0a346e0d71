"""How often a claim has been tested: what one false-alarm rate is spent on, over all audits of the claim.

Each kind of test has its own share of alpha, fixed before anything is measured, and its own count. The k-th evidence
of a kind may raise a false alarm, in each of the kind's tests, with probability

    alpha / (all tests of all kinds) / (k (k + 1))

Evidence is known by what it holds. The same again, asked for by other settings, is the same look: it raises the same
alarms, or at another confidence a subset of them. What was drawn anew is another look, also by the same settings.

**A true claim is contradicted with probability alpha at most, however often it is audited, whoever decides when to
stop.** A kind of t tests spends alpha t / (all tests) sum_k 1/(k (k + 1)) at most, and that sum is 1 or less; over the
kinds it is alpha. (Candidates that are audited together share what their own tests may spend. Rows of earlier code
spent alpha sum_{k <= K} 1/(k (k + 1)) = alpha (1 - 1/(K + 1)), whatever they tested: every kind goes on at K + 1.)

**A false claim gains nothing by being audited often.** Somebody who wants a release gains from a small alpha: bounds
fall, and a claim between the bound at alpha and the one at less would no longer be contradicted. Therefore

- evidence of one kind takes nothing from another: an audit without reruns leaves to reruns what they had;
- other numbers of canaries in an audit without reruns, or another confidence, are no evidence at all;
- what an audit would say if all of its tests were first ones (`first`) is computed beside what it may say. Where that
  lies above the claim, the audit is contradicted or *inconclusive*, never "not contradicted"; and so are audits of the
  claim after it, else one could go on until chance lets one pass.

So the number k only tells contradicted from inconclusive, and what is "not contradicted" has withstood tests at the
rate of first ones. True claims that are audited again and again pay for it: each audit makes itself and those after it
inconclusive by mistake with probability alpha / 2 at most, which a person may override.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from storage.artifacts import MANIFEST, ArtifactRef, Store, digest
from storage.ledger import Row
from tasks.auditing.pool import FAMILIES
from tasks.branches.outcome import Outcome, Study
from tasks.releasing.claims import NOT_METHOD, method_of

TESTS = {"pairs": 1, "reruns": len(FAMILIES) + 2, "gradients": 1, "densities": 1}
"""Tests of each kind: reruns have the families, the one canary over trials, and the largest delta by counts."""
_READ = {
    "pairs": ("predictions", "pool", "trials"),
    "reruns": ("trials", "pool"),
    "gradients": ("gradients",),
    "densities": ("densities",),
}
"""Stages that each kind reads; without the first there is no such test."""
_OF_CANDIDATES = ("pairs", "densities")
"""Kinds that look at each candidate; the others look at the mechanism once."""


@dataclass(frozen=True)
class Look:
    """One audit of a claim among all that it has had.

    claim_of: digest of records and method, whatever the seed; evidence: digest of each kind's, by kind.
    numbers: which evidence of its kind it is, the first being 1, by kind; confidence: that all audits share.
    candidates: audited together. suspected: what earlier audits would have refuted as first ones.
    """

    claim_of: str
    evidence: Mapping[str, str]
    numbers: Mapping[str, int]
    confidence: float
    candidates: int = 1
    suspected: float = 0.0

    @property
    def number(self) -> int:
        """Of the kind that has been looked at most often."""
        return max(self.numbers.values())

    @property
    def alpha(self) -> dict[str, float]:
        """What one test of each kind may spend."""
        return {kind: self._of_test(kind, number) for kind, number in self.numbers.items()}

    @property
    def first(self) -> dict[str, float]:
        """What it might spend if this were the first audit."""
        return {kind: self._of_test(kind, 1) for kind in self.numbers}

    @property
    def spent(self) -> float:
        """What this audit may spend in all."""
        shared = {kind: self.candidates if kind in _OF_CANDIDATES else 1 for kind in TESTS}
        return sum(TESTS[kind] * alpha * shared[kind] for kind, alpha in self.alpha.items())

    def _of_test(self, kind: str, number: int) -> float:
        among = sum(TESTS.values()) * (self.candidates if kind in _OF_CANDIDATES else 1)
        return (1 - self.confidence) / (among * number * (number + 1))


def evidence_of(store: Store, inputs: Mapping[str, ArtifactRef | None], *, candidates: int) -> dict[str, str]:
    """Digest of the numbers that each kind of test reads, by kind, whatever settings or code they came from.

    Args:
        inputs: stages by name, as `membership.measure` takes them.
    """
    read = {name for names in _READ.values() for name in names}
    held = {name: _content(store, ref) for name, ref in inputs.items() if ref is not None and name in read}
    return {
        kind: digest(
            {"of": [held.get(name) for name in names], "candidates": candidates if kind in _OF_CANDIDATES else 1}
        )
        for kind, names in _READ.items()
        if names[0] in held
    }


def _content(store: Store, ref: ArtifactRef) -> str:
    manifest = json.loads((store.open(ref) / MANIFEST).read_text(encoding="utf-8"))
    files = {name: file["sha256"] for name, file in manifest["files"].items()}
    return digest({"files": files, "figures": manifest["figures"]})


def look(
    study: Study, outcome: Outcome, evidence: Mapping[str, str], rows: Sequence[Row], *, confidence: float
) -> Look:
    """Which evidence of the claim this is, kind by kind: the number of the same before, or one more than there were.

    Rows from before audits were counted are one each, where records and mechanism are the same.
    """
    claim_of = digest(
        {
            "records": study.facts["fingerprint"],
            "parameters": method_of(study.parameters, NOT_METHOD | {"fit": {"seed": True}}),
            "mechanism": outcome.mechanism.model_dump(mode="json"),
            "delta": study.delta(outcome.branch),
        }
    )
    before, suspected = 0, 0.0
    earlier: dict[str, dict[str, int]] = {kind: {} for kind in TESTS}
    for row in rows:
        told: Mapping[str, Any] = row.details
        if row.kind != "audit" or "epsilon_lower_bound" not in told:
            continue
        uncounted = "claim_of" not in told and row.data_fingerprint == study.facts["fingerprint"]
        if told.get("claim_of") != claim_of and not (uncounted and row.mechanism == outcome.event.mechanism):
            continue
        if "looks" not in told:  # of earlier code, which had one count of all kinds
            before = max(before + uncounted, told.get("look", 0))
            continue
        for kind, number in told["looks"].items():
            earlier[kind].setdefault(told["evidence"][kind], number)
        if told["evidence"] != evidence:
            suspected = max(suspected, told["epsilon_as_first"])
    numbers = {
        kind: earlier[kind].get(of, max(before, *earlier[kind].values(), 0) + 1) for kind, of in evidence.items()
    }
    return Look(claim_of, evidence, numbers, confidence, study.settings.seeds, suspected)
