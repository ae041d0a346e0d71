"""Lists the sentences of a privacy statement, each with its basis.

A sentence is *proved* by a theorem, *tested* by tests of the program, *measured* by a command, or
*assumed*. The basis of an assumption says what follows if it is wrong.

The statement in a bundle and docs/reference/statement-sentences.md both come from here. The fields
of a statement decide which sentences apply to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal

Status = Literal["proved", "tested", "measured", "assumed"]

COUPLED = (
    "which records were used: sampling by code lets one record move others in or out, and the "
    "claim is about the "
    "records used"
)
"""The unprotected input of every sampling except `per-record`."""
AUDITED = (
    "the figures of the audits, if any are published: they are computed from the training records, "
    "the held-out records and the released model or repeated training runs"
)
"""An unprotected input of every plan, because a plan is signed as it was before any audit of it."""

_OF_NOISE = (
    "dp-sgd",
    "dp-sgd-class-weights",
    "gaussian-release",
    "composed",
    "prior-descent",
)
"""Mechanisms with Gaussian noise in training, which read their noise from the event."""


def _per_record(*, by_date: bool, of_units: bool) -> Callable[[Mapping[str, Any]], bool]:
    def holds(fields: Mapping[str, Any]) -> bool:
        return (
            fields["sampling"] == "per-record"
            and (fields.get("train_before") is not None) == by_date
            and ((fields.get("privacy_unit") or "record") != "record") == of_units
        )

    return holds


_CONDITIONS: dict[str, tuple[str, Callable[[Mapping[str, Any]], bool]]] = {
    "coupled": ("stratified sampling", lambda fields: fields["sampling"] != "per-record"),
    "by hash": ("sampling per record", _per_record(by_date=False, of_units=False)),
    "by date": ("sampling per record, split by date", _per_record(by_date=True, of_units=False)),
    "by hash of units": (
        "sampling per record, with units",
        _per_record(by_date=False, of_units=True),
    ),
    "by date with units": (
        "sampling per record, split by date, with units",
        _per_record(by_date=True, of_units=True),
    ),
    "not of noise": (
        "another mechanism",
        lambda fields: fields["mechanism"] not in _OF_NOISE,
    ),
    "float": ("floating point", lambda fields: not fields["exact_arithmetic"]),
    "exact": ("integer sums", lambda fields: fields["exact_arithmetic"]),
    "exact batches": (
        "DP-SGD",
        lambda fields: fields["exact_arithmetic"] and fields["mechanism"].startswith("dp-sgd"),
    ),
    "stated": ("accuracy stated", lambda fields: fields.get("accuracy_stated", False)),
    "two parts": (
        "accuracy and scale stated",
        lambda fields: fields.get("accuracy_stated", False) and fields.get("scale_stated", False),
    ),
    "other counts": (
        "accuracy stated without the scale",
        lambda fields: (
            fields.get("accuracy_stated", False) and not fields.get("scale_stated", False)
        ),
    ),
    "not stated": (
        "accuracy not stated",
        lambda fields: not fields.get("accuracy_stated", False),
    ),
    "audited": ("audited", lambda fields: "audit" in fields),
    "not audited": ("not audited", lambda fields: "audit" not in fields),
    "records": ("unit: a record", lambda fields: (fields["max_records_per_unit"] or 1) == 1),
    "units": ("unit: several records", lambda fields: (fields["max_records_per_unit"] or 1) > 1),
    "added": (
        "add/remove",
        lambda fields: fields.get("neighbouring_relation") != "replace-one",
    ),
    "replaced": (
        "replace-one",
        lambda fields: fields.get("neighbouring_relation") == "replace-one",
    ),
}


@dataclass(frozen=True)
class Sentence:
    """A sentence of a promise.

    basis: its proof, the command that measures it, or the consequence if the assumption is wrong.
    when: the condition under which it applies; empty for always.
    """

    status: Status
    text: str
    basis: str
    when: str = ""

    @property
    def condition(self) -> str:
        """The condition in words, or an empty text."""
        return _CONDITIONS[self.when][0] if self.when else ""

    def holds(self, statement: Mapping[str, Any]) -> bool:
        """Returns whether the sentence applies to this release."""
        return not self.when or _CONDITIONS[self.when][1](statement)


@dataclass(frozen=True)
class Section:
    """The sentences of one type of guarantee. `mechanisms` has tags of events; if it is empty, the
    section applies to all mechanisms of the kind.
    """

    title: str
    kind: str
    mechanisms: tuple[str, ...]
    lead: str
    sentences: tuple[Sentence, ...]


proved = partial(Sentence, "proved")
"""Makes a sentence that a theorem proves."""
tested = partial(Sentence, "tested")
"""Makes a sentence about the program's behaviour, which tests check."""
measured = partial(Sentence, "measured")
"""Makes a sentence with a figure of this release or of a similar one."""
assumed = partial(Sentence, "assumed")
"""Makes a sentence that nobody checked or can check."""

_ONE_DRAW = tested(
    "The parameters were sampled once, without a seed, after the ledger reserved the cost.",
    "`mechanisms/privacy/entropy.py`, `tasks/releasing/drawing.py`, `tests/flows/test_kill.py`.",
)

EVERY = (
    measured(
        "An attack on this mechanism found the lower bound on ε given under `audit`.",
        "`autocoder audit`; another attack may find more.",
        "audited",
    ),
    assumed(
        "Training had the effect that its claim describes, although no attack measured this "
        "release.",
        "If the program has a mistake, ε and δ may be too small. `autocoder audit` looks for one.",
        "not audited",
    ),
    proved(
        "Anything computed only from the released files reveals no more than they do.",
        (
            "Dwork and Roth 2014, proposition 2.1. Thresholds that are fitted on records come from "
            "a noisy table of them, test vectors from the code list."
        ),
    ),
    tested(
        "Adding, removing or changing a record does not move any other in or out of training.",
        "A keyed hash of its id or content decides (`storage/ingest/sampling.py`). Ids must not be "
        "reused.",
        "by hash",
    ),
    tested(
        "Adding, removing or changing a record does not move any other in or out of training.",
        "The record's own date decides, and a keyed hash of its id or content if "
        "`holdout_share` sets records aside (`storage/ingest/sampling.py`).",
        "by date",
    ),
    tested(
        "Adding, removing or changing a record does not move a record of another unit in or out of "
        "training.",
        "A keyed hash decides, of the unit or of the record's id or content. Which records of a "
        "unit are used depends on that unit's records alone (`storage/ingest/sampling.py`).",
        "by hash of units",
    ),
    tested(
        "Adding, removing or changing a record does not move a record of another unit in or out of "
        "training.",
        "The record's own date decides, and a keyed hash if `holdout_share` sets records "
        "aside. Which records of a unit are used depends on that unit's records alone "
        "(`storage/ingest/sampling.py`).",
        "by date with units",
    ),
    assumed(
        "How records were sampled for training is outside the claim.",
        "Sampling by code lets a record move others: removing one public OSHA report moved 1,483 "
        "of 2,357. No figure "
        "here holds for a record added or removed before sampling.",
        "coupled",
    ),
    assumed(
        "The held-out records are not protected. Only the items listed under “Not covered by ε” "
        "depend "
        "on them, among them audit figures, an observed label set and undeclared cohort names, if "
        "there are any.",
        "If their scores decided the method, they influenced the release.",
        "not stated",
    ),
    proved(
        "Because no record is both (tested), the held-out records are protected by the "
        "same ε and δ as the training records.",
        "Parallel composition (McSherry 2009, theorem 4; Smith et al. 2022). The proof, for units "
        "of several records too, is in `mechanisms/privacy/accuracy_table.py`.",
        "stated",
    ),
    tested(
        "Each record is either a training record or a held-out record, never both.",
        "`storage/ingest/sampling.py`, `tests/storage/test_ingest_per_record.py`.",
        "stated",
    ),
    tested(
        "One noisy table of the held-out records was computed. It has two parts, whose costs are "
        "added: one for the scale of the model's scores (part of its weights, if an accuracy is "
        "stated) and one for its accuracy.",
        "`mechanisms/privacy/accuracy_table.py`, `mechanisms/privacy/gaussian_cost.py`; "
        "`tests/mechanisms/privacy/test_accuracy_table.py`.",
        "two parts",
    ),
    tested(
        "Only the noisy counts that the event in the agency's ledger lists were computed from the "
        "held-out records. Their costs are added.",
        "`mechanisms/privacy/gaussian_cost.py`; `tests/mechanisms/privacy/test_accuracy_table.py`.",
        "other counts",
    ),
    tested(
        "The counts of the held-out records were drawn once, with the model, in integers with "
        "rounded "
        "noise.",
        "`tasks/releasing/drawing.py`, `mechanisms/privacy/exact_normal.py`; "
        "`tests/mechanisms/privacy/test_accuracy_table.py`.",
        "stated",
    ),
    assumed(
        "Apart from the noisy table, only the items listed under “Not covered by ε” depend on the "
        "held-out records, among them audit figures, an observed label set and undeclared cohort "
        "names, if there are any.",
        "If their scores decided the method, they influenced the release.",
        "stated",
    ),
    assumed(
        "The program uses one published n, whether or not the record is present, and the run "
        "finished.",
        "The number of steps, their size and the noise follow from n, so they would reveal it.",
    ),
    assumed(
        "A file's format (encoding, delimiter, header) does not depend on one record.",
        "One byte that is not UTF-8 makes the file cp1252, which changes letters in other records.",
    ),
    assumed(
        "No setting was chosen by looking at these records, unless listed as not covered.",
        "A setting chosen because of one record may reveal it.",
    ),
    assumed(
        "Each person has one record.",
        "A person with m records is protected at m times this ε and m·e^((m − 1)ε) times this δ "
        "(if a formal ε was stated).",
        "records",
    ),
    tested(
        "The figures are for a unit with all of its records, at most as many as stated.",
        "Ingest drops further ones (`storage/ingest/sampling.py`); `mechanisms/privacy/claims.py` "
        "computes the cost.",
        "units",
    ),
    assumed(
        "Low-order bits of floating-point noise reveal nothing.",
        (
            "Attacks on the rounding of Gaussian samplers exist (Mironov 2012 and later) and are "
            "not "
            "covered."
        ),
        "float",
    ),
    proved(
        "Rounding noise that was drawn exactly costs nothing. As sums are integers (tested), the "
        "bound holds for the released bits.",
        "Post-processing: Dwork and Roth 2014, proposition 2.1.",
        "exact",
    ),
    tested(
        "The program's sums are integers and its noise is rounded without error.",
        "`mechanisms/descent/exact_sums.py`, `mechanisms/privacy/exact_normal.py`; "
        "`tests/attacks/test_low_bits_reveal_a_record.py`.",
        "exact",
    ),
    tested(
        "The encoder's features of a text are a function of that text alone, to the last bit.",
        "`tests/mechanisms/model/test_features_of_one_text.py`.",
        "exact",
    ),
    assumed(
        "A record's gradient depends only on that record, to the last bit.",
        "Which records share a batch can change last bits. Prior descent sums integers only.",
        "exact batches",
    ),
    assumed(
        "Nobody breaks AES-256. Its output under a secret key is the noise.",
        "Anyone who predicts the noise can remove it.",
    ),
    assumed(
        "Nobody measures the time, memory or power of the training.",
        "All three depend on the records and on the noise.",
    ),
    assumed(
        "The encoder, and anything else training starts from, was made without these records.",
        "If it knows something about them, that is released without being counted.",
    ),
    assumed(
        "The program does what its source says.",
        "Tests and audits can miss a fault that voids every figure.",
    ),
)
"""Sentences of every release."""

_PSEUDO_POSTERIOR = (
    proved(
        "If the sample came from the pseudo posterior, with fixed weights and the true largest "
        "loss Δ, ε would bound "
        "one unit replaced, and ε/2 one added or removed.",
        "Chew et al., 2.1; `mechanisms/privacy/claims.py`. No condition holds exactly.",
    ),
    assumed(
        "Δ is the largest loss over all parameters and similar data sets.",
        (
            "A new sample exceeds the largest of S with probability 1/(S+1); an unseen record may "
            "have a larger loss."
        ),
    ),
    assumed(
        "Δ, the weights α and the constant k are fixed in advance.",
        "Each record changes them and the weights of others, uncounted.",
    ),
    assumed(
        "The missing δ vanishes as n grows: O(n^-1/2), not quantified.",
        "At this n it may be large, close to 1 for single records. Without δ, ε is no bound.",
    ),
)
"""Sentences of a posterior sample at the end of SWAG-PPM's rounds."""

_BY_ACCOUNTANT = (
    "The accountant that the claim names: where every step reads all records, Balle and Wang 2018, "
    "theorem 8 (noise adds up by Dong, Roth and Su 2022, corollary 3.3); where records are "
    "sampled, privacy loss distributions (Koskela et al. 2020, by dp-accounting)."
)

SECTIONS = (
    Section(
        title="Formal",
        kind="formal",
        mechanisms=(),
        lead="These sentences apply to every formal mechanism.",
        sentences=(
            proved(
                "If training ran the event (noise, clip, steps and sampling) in the agency's "
                "ledger, which the agency shows on request, then for any two training sets that "
                "differ by one unit added or removed (with n fixed), any set of released models is "
                "at most e^ε times as likely under one as under the other, plus δ.",
                _BY_ACCOUNTANT,
                "added",
            ),
            proved(
                "If training ran the event (noise, clip, steps and sampling) in the agency's "
                "ledger, which the agency shows on request, then for any two training sets that "
                "differ in the values of one unit, any set of released models is at most e^ε times "
                "as likely under one as under the other, plus δ.",
                _BY_ACCOUNTANT,
                "replaced",
            ),
            proved(
                "This holds for every data set and unit, whatever else an attacker knows.",
                "By definition (Dwork and Roth 2014, 2.4).",
            ),
            assumed(
                "Training ran the event in the agency's ledger.",
                "If it added less noise or read the records more often, ε and δ are too small.",
                "not of noise",
            ),
        ),
    ),
    Section(
        title="Formal: noise in training",
        kind="formal",
        mechanisms=_OF_NOISE,
        lead="For prior descent and DP-SGD, these sentences apply in addition.",
        sentences=(
            proved(
                "If training ran the event in the agency's ledger (tested, below), ε and δ cover "
                "all of its steps together and all else that it lists as released with noise.",
                _BY_ACCOUNTANT,
            ),
            tested(
                "Training read its noise, its clip and its sampling from the event that is "
                "accounted for.",
                "`mechanisms/descent/noisy_descent.py`; audits measure the noise and the clip that "
                "really ran (`autocoder audit`, `tests/mechanisms/audit`).",
            ),
            tested(
                "The key of the noise came from the operating system's random generator and was "
                "deleted when training ended.",
                "`mechanisms/privacy/noise.py`, `tests/mechanisms/privacy/test_noise.py`.",
            ),
            tested(
                "No record changes a step by more than the clipping norm that scales the noise.",
                (
                    "`tests/attacks/test_one_record_moves_more_than_its_clip.py`. Dropout is off. "
                    "Integer sums are exact; floating-point sums can round up."
                ),
            ),
        ),
    ),
    Section(
        title="Asymptotic-local: SWAG-PPM",
        kind="asymptotic-local",
        mechanisms=("swag-ppm",),
        lead="The release is one sample from a SWAG pseudo posterior, and ε = 2Δ is an estimate.",
        sentences=(
            *_PSEUDO_POSTERIOR,
            measured(
                (
                    "Δ is a training record's largest weighted loss over the counted samples and "
                    "the "
                    "released one."
                ),
                "`autocoder train` and the release (`tasks/releasing/publish.py`).",
            ),
            _ONE_DRAW,
            assumed(
                "SWAG's Gaussian is the pseudo posterior.",
                (
                    "It follows an optimiser's path. Audits violated such claims "
                    "(docs/studies/audits.md)."
                ),
            ),
        ),
    ),
    Section(
        title="None",
        kind="none",
        mechanisms=("non-private",),
        lead="The model was trained without protection.",
        sentences=(
            tested(
                "Nothing is promised. Such a model cannot be released.",
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
