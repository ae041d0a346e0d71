"""Lists the sentences of a privacy statement: each proved (where), measured (by which command) or assumed (what then).

One source for the statement in a bundle and for docs/reference/statement-sentences.md. The statement decides which
sentences apply to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Status = Literal["proved", "measured", "assumed"]

COUPLED = (
    "which records were used: sampling by code lets one record move others in or out, and the claim is about the "
    "records used"
)
"""The unprotected input of every sampling but `per-record`."""
AUDITED = (
    "the figures of the audit, computed from the training half, the test half and the released model or repeated "
    "training runs"
)
"""The unprotected input of a statement that holds an audit."""

_CONDITIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "coupled": ("where the sampling is stratified", lambda fields: fields["sampling"] != "per-record"),
    "per record": ("where the sampling is per record", lambda fields: fields["sampling"] == "per-record"),
    "float": ("where noise is sampled in floating point", lambda fields: not fields["exact_arithmetic"]),
    "exact": (
        "where sums are of integers and noise is rounded without error",
        lambda fields: fields["exact_arithmetic"],
    ),
    "audited": ("where it was audited", lambda fields: "audit" in fields),
    "not audited": ("where it was not audited", lambda fields: "audit" not in fields),
    "records": ("where the unit is a record", lambda fields: (fields["max_records_per_unit"] or 1) == 1),
    "units": ("where a unit has several records", lambda fields: (fields["max_records_per_unit"] or 1) > 1),
    "added": (
        "where neighbours differ by one unit more or less",
        lambda fields: fields.get("neighbouring_relation") != "replace-one",
    ),
    "replaced": (
        "where neighbours differ in the values of one unit",
        lambda fields: fields.get("neighbouring_relation") == "replace-one",
    ),
}


@dataclass(frozen=True)
class Sentence:
    """Holds one sentence of a promise.

    basis: its proof, the command that measures it, or the consequence if the assumption fails.
    when: the condition under which it applies; empty: always.
    """

    status: Status
    text: str
    basis: str
    when: str = ""

    @property
    def condition(self) -> str:
        """Returns the condition in words, or an empty text."""
        return _CONDITIONS[self.when][0] if self.when else ""

    def holds(self, statement: Mapping[str, Any]) -> bool:
        """Returns whether it applies to this release."""
        return not self.when or _CONDITIONS[self.when][1](statement)


@dataclass(frozen=True)
class Section:
    """Holds the sentences of one type of guarantee. `mechanisms`: tags of events; empty means all of the kind."""

    title: str
    kind: str
    mechanisms: tuple[str, ...]
    lead: str
    sentences: tuple[Sentence, ...]


proved = partial(Sentence, "proved")
"""Makes a sentence that a theorem proves, or that the program ensures and a test checks."""
measured = partial(Sentence, "measured")
"""Makes a sentence with a figure of this release or of a similar one."""
assumed = partial(Sentence, "assumed")
"""Makes a sentence that no one checked or can check."""

_ONE_DRAW = proved(
    "The released parameters were sampled once, without a seed, after the ledger had reserved the cost.",
    "`mechanisms/privacy/entropy.py`, `tasks/releasing/publish.py`; `tests/flows/test_kill.py` kills a release at each "
    "step and finds one sample.",
)

EVERY = (
    measured(
        "An attack on this mechanism found the lower bound on ε given under `audit`.",
        "`autocoder audit`. The bound is one-sided: another attack may find more.",
        "audited",
    ),
    measured(
        "No audit has measured what this release leaks.",
        "`autocoder audit` would; a policy can require it (`require_audit`).",
        "not audited",
    ),
    proved(
        "Anything computed only from the released files reveals no more about the records than the files do.",
        "Post-processing: Dwork and Roth 2014, proposition 2.1. Thresholds come from synthetic narratives and test "
        "answers from code titles (`tasks/bundle/thresholds.py`, `tasks/bundle/golden.py`).",
    ),
    proved(
        "Adding, removing or changing one record does not move any other record in or out of training.",
        "Each record is chosen by a keyed hash of its own id or content, code, date and unit "
        "(`storage/ingest/sampling.py`; `tests/storage/test_ingest_per_record.py`). Ids must not be reused.",
        "per record",
    ),
    assumed(
        "The records used for training are taken as given: how they were sampled is outside the claim.",
        "Sampling by code lets records decide about each other. Of public OSHA reports, removing one moved 1,483 of "
        "2,357 others in or out. No figure here then holds for a record added or removed before the sampling. Use "
        "`data.ingest.sampling=per-record` instead.",
        "coupled",
    ),
    assumed(
        "The test half is not protected. Only the listed items depend on it: audit figures, an observed label set and "
        "undeclared cohort names.",
        "Anyone who chose a method after seeing scores on the test half let those records influence the release.",
    ),
    assumed(
        "The number of records n is public, the same for both neighbours, and the run finished.",
        "Otherwise the scale of noise reveals n roughly, and a mean over n moves by up to twice what is paid for "
        "(the default mechanism at ε 5: at most 5.26).",
    ),
    assumed(
        "A file's format (encoding, delimiter, header) does not depend on a single record.",
        "One byte that is not UTF-8 makes the whole file be read as cp1252, and letters in other records change.",
    ),
    assumed(
        "Settings were not chosen by looking at these records, or the choice is listed as not covered.",
        "If a setting was chosen because of one record, it may reveal that record; ε does not cover that.",
    ),
    assumed(
        "Each person has one record.",
        "A person with m records is protected by about m times this ε, and by a larger δ. Set a unit column and "
        "`max_per_unit` to protect people.",
        "records",
    ),
    proved(
        "The figures are for a unit with all of its records, and no unit has more than stated.",
        "Further records are dropped at ingest; `mechanisms/privacy/claims.py` and `gaussian_cost.py` there compute "
        "the cost; `tests/flows/test_epsilon_of_units.py`.",
        "units",
    ),
    assumed(
        "Low-order bits of floating-point noise reveal nothing.",
        "Attacks on the rounding of Gaussian samplers exist (Mironov 2012 and later) and are not covered.",
        "float",
    ),
    proved(
        "The bound holds for the released bits: records enter integer sums, and the noise is rounded to integers "
        "without error.",
        "`mechanisms/descent/exact_sums.py`, `mechanisms/privacy/exact_normal.py`; "
        "`tests/attacks/test_low_bits_reveal_a_record.py`.",
        "exact",
    ),
    assumed(
        "The encoder's features of a record depend only on that record, to the last bit.",
        "Texts are encoded in batches, which can change the last bits of a feature. Rounding to 1/2048 hides most such "
        "differences, but not all.",
        "exact",
    ),
    assumed(
        "The noise generator's output looks random, and side channels such as time and memory reveal nothing.",
        "Anyone who can predict the generator, or measure the training, may learn about records and noise.",
    ),
    assumed(
        "The encoder, and anything else training starts from, was made without these records.",
        "What the encoder knows about them is released with it, and no figure here counts it.",
    ),
    assumed(
        "The program does what its source says.",
        "Tests and audits look for faults and can miss them; a fault can void every figure here.",
    ),
)
"""Sentences of every release."""

_PSEUDO_POSTERIOR = (
    proved(
        "If the sample came from the pseudo posterior itself, with fixed weights and the true largest loss Δ, ε would "
        "bound one unit replaced and ε/2 one unit added or removed.",
        "Chew et al., section 2.1; proof in `mechanisms/privacy/claims.py`; "
        "`tests/mechanisms/privacy/test_accounting.py`. None of the three conditions holds exactly.",
    ),
    assumed(
        "The sensitivity Δ is the largest loss over all parameters and over data sets like this one.",
        "A new sample exceeds the largest of S with probability 1/(S+1), and an unseen record may have a larger loss.",
    ),
    assumed(
        "Δ, the weights α and the constant k are fixed in advance.",
        "They are computed from the records, and each record changes the weights of others. No figure counts that.",
    ),
    assumed(
        "The missing δ vanishes as the number of records grows: O(n^-1/2), not quantified.",
        "At this n it may be large, for single records close to 1. Without δ, ε is no bound (docs/studies/audits.md).",
    ),
)
"""Sentences of a posterior sample at the end of SWAG-PPM's rounds."""

SECTIONS = (
    Section(
        title="Formal",
        kind="formal",
        mechanisms=(),
        lead="(ε, δ)-differential privacy, by any mechanism.",
        sentences=(
            proved(
                "For any two training sets that differ by one unit added or removed (with n fixed), the probability "
                "of any set of released models is at most e^ε times as high under one as under the other, plus δ.",
                "Computed from the event that ran (`mechanisms/privacy/claims.py`).",
                "added",
            ),
            proved(
                "For any two training sets of equal size that differ in the values of one unit, the probability of any "
                "set of released models is at most e^ε times as high under one as under the other, plus δ.",
                "Computed from the event that ran (`mechanisms/privacy/claims.py`).",
                "replaced",
            ),
            proved(
                "This holds for every data set and every unit, whatever else an attacker knows.",
                "The definition of differential privacy: Dwork and Roth 2014, definition 2.4.",
            ),
        ),
    ),
    Section(
        title="Formal: noise in training",
        kind="formal",
        mechanisms=("dp-sgd", "dp-sgd-class-weights", "gaussian-release", "composed", "prior-descent"),
        lead="The default mechanism, DP-SGD and its schedules, in addition to the sentences above.",
        sentences=(
            proved(
                "ε and δ cover all training steps together and everything else that was released with noise.",
                "The closed form for Gaussian noise, or composition of privacy loss distributions where records are "
                "sampled (`mechanisms/privacy/gaussian_cost.py`; `tests/mechanisms/privacy/test_accounting.py`).",
            ),
            proved(
                "What ran is what was planned: a training run with other noise, clipping or sampling is refused.",
                "`Plan.fit` in `mechanisms/mechanism.py`; `tests/mechanisms/test_conformance.py`.",
            ),
            proved(
                "The noise came from the operating system's random generator; the key was discarded.",
                "`mechanisms/privacy/noise.py`, `tests/mechanisms/privacy/test_noise.py`.",
            ),
            proved(
                "No record changes a step by more than the clipping norm that the noise is scaled to.",
                "`tests/mechanisms/test_dpsgd.py` and `tests/mechanisms/test_prior_descent.py` compare with gradients "
                "per record, `tests/attacks/test_one_record_moves_more_than_its_clip.py` with crafted records. Dropout "
                "is off, and sums over records are exact or in float64.",
            ),
        ),
    ),
    Section(
        title="Asymptotic-local: SWAG-PPM",
        kind="asymptotic-local",
        mechanisms=("swag-ppm",),
        lead="One sample from a SWAG pseudo posterior; ε = 2Δ is estimated on these records.",
        sentences=(
            *_PSEUDO_POSTERIOR,
            measured(
                "Δ is the largest weighted loss of a training record over the counted samples and the released one.",
                "`autocoder train` (stages `sensitivity`), and again at the release (`tasks/releasing/publish.py`).",
            ),
            _ONE_DRAW,
            assumed(
                "SWAG's Gaussian is the pseudo posterior.",
                "It is not: it follows the path of an optimiser. On public reports, audits violate such claims "
                "(docs/studies/audits.md).",
            ),
        ),
    ),
    Section(
        title="None",
        kind="none",
        mechanisms=("non-private",),
        lead="Training without protection, for comparison.",
        sentences=(
            proved(
                "Nothing is promised, and such a model cannot be released.",
                "The ledger refuses it (`storage/ledger/content.py`; `tests/storage/ledger`).",
            ),
        ),
    ),
)


def sentences_of(statement: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns status, text and basis of every sentence that applies to a release.

    Args:
        statement: its privacy statement, with all fields of the ledger's row.
    """
    by_kind = [
        section.sentences
        for section in SECTIONS
        if section.kind == statement["guarantee_kind"]
        and (not section.mechanisms or statement["mechanism"] in section.mechanisms)
    ]
    return [
        {"status": sentence.status, "text": sentence.text, "basis": sentence.basis}
        for sentences in (*by_kind, EVERY)
        for sentence in sentences
        if sentence.holds(statement)
    ]
