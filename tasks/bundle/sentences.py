"""Lists the sentences of a privacy statement: each proved (where), measured (by which command) or assumed (what then).

One source for the statement in a bundle and for docs/claims.md. The statement decides which sentences apply to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Status = Literal["proved", "measured", "assumed"]

COUPLED = (
    "which records were used depends on the other records (caps, minimum sizes and shares by code, row numbers): one "
    "record more or less moves others in or out, and the claim is about the records used, taken as given"
)
"""The unprotected input of every sampling but `per-record`."""
AUDITED = (
    "the figures of the audit (AUC, TPR, lower bound): computed from the training and the test half and the model that "
    "is released, or reruns of it"
)
"""The unprotected input of a statement that holds an audit."""

_CONDITIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "coupled": ("where the sampling is stratified", lambda fields: COUPLED in fields["unprotected_inputs"]),
    "per record": ("where the sampling is per record", lambda fields: COUPLED not in fields["unprotected_inputs"]),
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
    """Holds the sentences of one guarantee kind. `mechanisms`: tags of events; empty means all of the kind."""

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
"""Makes a sentence that nobody checked or can check."""

_ONE_DRAW = proved(
    "The draw was taken once, without a seed, after the ledger had reserved its cost.",
    "`mechanisms/privacy/entropy.py`, `tasks/releasing/publish.py`; `tests/flows/test_kill.py` kills a release at each "
    "of its steps and finds one draw.",
)

EVERY = (
    measured(
        "An attack on this mechanism found the lower bound on epsilon that stands under `audit`, at its confidence.",
        "`autocoder audit`. A bound is one-sided: that it is small proves nothing, another attack may find more.",
        "audited",
    ),
    measured(
        "Nobody has measured what this release leaks.",
        "`autocoder audit` would have; a policy can ask for it (`require_audit`).",
        "not audited",
    ),
    proved(
        "Whatever is computed from the released files alone (codes, scores, thresholds, other models) reveals no more "
        "of the records than the files do.",
        "Post-processing: Dwork and Roth 2014, proposition 2.1. Thresholds in the folder are made from "
        "generated narratives, golden answers from titles of the code list (`tasks/bundle/thresholds.py`, "
        "`tasks/bundle/golden.py`).",
    ),
    proved(
        "Whether a record is used, and in which half, depends on its own id (or content), code, date and unit and on a "
        "key that owes nothing to the records: adding, removing or moving one record (one unit, where units are "
        "capped) moves no other.",
        "`storage/ingest/sampling.py`; `tests/storage/test_ingest_per_record.py` takes any record, or any unit, away "
        "and finds all others where they were. Ids must not be given again when records come or go.",
        "per record",
    ),
    assumed(
        "The records that were used are taken as given: the sampling by code, which couples them, is outside the "
        "claim.",
        "If neighbours are taken before the sampling, one record more or less is not one record more or less in "
        "training: of public OSHA reports one training row taken away moved 1,483 of 2,357 others in or out (median of "
        "300; rows behind it are numbered again), and up to 2 where rows keep their numbers "
        "(`pytest tests/storage/test_ingest_per_record.py -k osha`). Then no figure here is one for a record that is "
        "added or removed before the sampling. Sample with `data.ingest.sampling=per-record` instead.",
        "coupled",
    ),
    assumed(
        "The test half is not protected by the claim; nothing that ships is computed from it, but for what is listed "
        "as unprotected: figures of an audit, a label set that was observed, names of cohorts that were not declared.",
        "Its records were scored to evaluate the candidate (internal) and to tell members from others in audits; "
        "whoever chose a mechanism or a setting after seeing those scores let them through. Which records train "
        "depends on them too where the sampling is stratified.",
    ),
    assumed(
        "The number of records n is public and the same for both neighbours, and so is that the run ended: nothing "
        "was refused.",
        "Whoever did not know the number learns it, roughly, from the scale of noise and figures. Where n moves with "
        "the record, a mean over n moves by up to twice what is paid for (prior descent at epsilon 5: at most 5.26). "
        "A refusal (a code "
        "that is not on the list, an id twice, a record outside the declared cohorts) tells its sender, the operator, "
        "and nobody else.",
    ),
    assumed(
        "A file's form (encoding, delimiter, header) is a property of the file and not of one record.",
        "One record with a byte that is no UTF-8 has the whole file read as cp1252, and letters of others change.",
    ),
    assumed(
        "Settings were not chosen by looking at these records, or the choice is listed as unprotected.",
        "A setting that one record tipped tells of that record, outside every bound.",
    ),
    assumed(
        "A person has one record.",
        "Of a person with m records nothing better is promised than m times the figure for one (a formal delta grows "
        "faster). Name a unit column and `max_per_unit` to promise it.",
        "records",
    ),
    proved(
        "The figures are those of a unit with all of its records, of which no unit has more than stated.",
        "Records beyond are dropped at ingest; the factor is in `mechanisms/privacy/claims.py`, the mixture of "
        "Gaussians for sampled steps in `mechanisms/privacy/gaussian_cost.py`; `tests/flows/test_epsilon_of_units.py`.",
        "units",
    ),
    assumed(
        "Low-order bits of floating-point noise and side channels of the machine tell nothing.",
        "Attacks on the rounding of Gaussian samplers exist (Mironov 2012, and later ones); none is covered. Nor is "
        "that the last bits of a record's own gradient may depend on who shares its batch.",
        "float",
    ),
    proved(
        "The bound is one of the released bits: what records enter are sums of integers, and the noise is a normal "
        "number rounded to an integer without error.",
        "`mechanisms/descent/exact_sums.py`, `mechanisms/privacy/exact_normal.py` with the argument; "
        "`tests/attacks/test_low_bits_reveal_a_record.py`.",
        "exact",
    ),
    assumed(
        "The encoder's features of a record depend on that record only, to the last bit.",
        "Texts are encoded in batches, and the last bits of a product can depend on who shares its batch. Features are "
        "rounded to 1/2048 first, which hides most such differences but not one that straddles a rounding.",
        "exact",
    ),
    assumed(
        "The bits that a secret key is expanded to look random; side channels of the machine tell nothing.",
        "Time and memory of a fit depend on records and noise; anyone who can measure them may learn of both.",
        "exact",
    ),
    assumed(
        "The encoder, and whatever else training starts from, was made without these records.",
        "What it knows of them goes out with it, and no figure here counts it. The encoder that is packaged was "
        "trained on public texts of others; of one that was fine-tuned on these narratives, nothing stated here holds.",
    ),
    assumed(
        "The program does what its text says.",
        "Tests and audits look for faults and can miss one; a fault can void every figure here.",
    ),
)
"""Sentences of every release."""

_PSEUDO_POSTERIOR = (
    proved(
        "Were the draw one of the pseudo posterior itself, were the weights fixed and were Delta the largest "
        "weighted loss at all parameters, epsilon would bound one unit replaced, and half of it one unit added "
        "or removed.",
        "Chew et al., section 2.1; the table and its proof in `mechanisms/privacy/claims.py`; "
        "`tests/mechanisms/privacy/test_accounting.py` computes the ratios on a grid. None of the three holds "
        "exactly: see what is assumed.",
    ),
    assumed(
        "The sensitivity Delta is a supremum, over parameters and over data sets like this one.",
        "A fresh draw exceeds the largest of S with probability 1/(S+1), and another record may have a larger "
        "loss than any that is held: epsilon is then larger than stated.",
    ),
    assumed(
        "The sensitivity Delta, the weights alpha and the constant k are given.",
        "They are computed from the records. A record changes the weights of others, which no figure here counts.",
    ),
    assumed(
        "The delta that the bound is short by vanishes as records grow: O(n^-1/2), not quantified.",
        "At this n it may be large, for single records near one: epsilon alone is then no bound at all. "
        "What audits of public reports found of it: docs/truth.md.",
    ),
)
"""Sentences of a draw at the end of SWAG-PPM's rounds."""

SECTIONS = (
    Section(
        title="Formal",
        kind="formal",
        mechanisms=(),
        lead="A finite-sample (ε, δ), by whatever mechanism.",
        sentences=(
            proved(
                "For any two sets of training records that differ by one unit added or removed, the number of records "
                "n that the program divides by held fixed, any set of released parameters is at most e^epsilon times "
                "as probable under one as under the other, plus delta.",
                "The event that ran, by its accountant (`mechanisms/privacy/claims.py`), which no other event passes.",
                "added",
            ),
            proved(
                "For any two sets of as many training records that differ in the values of one unit, any set of "
                "released parameters is at most e^epsilon times as probable under one as under the other, plus "
                "delta.",
                "The event that ran, by its accountant (`mechanisms/privacy/claims.py`), which no other event passes.",
                "replaced",
            ),
            proved(
                "It holds for every set of records and every unit, these or others, whatever the attacker knows "
                "besides.",
                "The definition of differential privacy: Dwork and Roth 2014, definition 2.4.",
            ),
        ),
    ),
    Section(
        title="Formal: noise in training",
        kind="formal",
        mechanisms=("dp-sgd", "dp-sgd-class-weights", "gaussian-release", "composed", "prior-descent"),
        lead="DP-SGD and its schedules, prior descent; in addition to what every formal claim says.",
        sentences=(
            proved(
                "Epsilon and delta are those of all steps together, each with the noise that it had, and of whatever "
                "else was released with noise.",
                "The closed form of Gaussian noise; where records are sampled, composition by privacy loss "
                "distributions, an upper bound (`mechanisms/privacy/gaussian_cost.py`). Both are held against closed "
                "forms, published figures and other accountants in `tests/mechanisms/privacy/test_accounting.py`.",
            ),
            proved(
                "What ran is what was planned: other noise, clipping or sampling and the fit is refused.",
                "`Plan.fit` (`mechanisms/mechanism.py`) compares events; `tests/mechanisms/test_conformance.py`.",
            ),
            proved(
                "The noise was drawn while training, from a secret key of the operating system's that was no seed and "
                "is not kept.",
                "`mechanisms/privacy/noise.py`, `tests/mechanisms/privacy/test_noise.py`.",
            ),
            proved(
                "No record moves a step by more than the clipping norm that the noise is scaled by.",
                "`mechanisms/dp_sgd.py`, `mechanisms/model/ghost.py`, `mechanisms/prior_descent.py`; "
                "`tests/mechanisms/test_dpsgd.py` and `tests/mechanisms/test_prior_descent.py` compare with gradients "
                "record by record, `tests/attacks/test_one_record_moves_more_than_its_clip.py` with crafted ones. The "
                "network draws no random numbers (no dropout), norms are upper bounds of what float32 may hide, and "
                "sums over records are made in float64.",
            ),
        ),
    ),
    Section(
        title="Asymptotic-local: SWAG-PPM",
        kind="asymptotic-local",
        mechanisms=("swag-ppm",),
        lead="One draw from a SWAG pseudo posterior; ε = 2Δ is estimated on these records.",
        sentences=(
            *_PSEUDO_POSTERIOR,
            measured(
                "The sensitivity Delta is the largest weighted loss of a training record over the draws counted, and "
                "at the released draw.",
                "`autocoder train` (stages `sensitivity`), and once more at the draw (`tasks/releasing/publish.py`).",
            ),
            _ONE_DRAW,
            assumed(
                "SWAG's Gaussian is the pseudo posterior.",
                "It is not: it follows the path of an optimiser. The bound is then not proven of this draw, and on "
                "public reports reruns refute such claims (docs/truth.md).",
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
                "Nothing is promised, and nothing of it is released.",
                "The ledger refuses it (`storage/ledger/content.py`); `tests/storage/ledger`.",
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
        {"status": one.status, "text": one.text, "basis": one.basis}
        for sentences in (*by_kind, EVERY)
        for one in sentences
        if one.holds(statement)
    ]
