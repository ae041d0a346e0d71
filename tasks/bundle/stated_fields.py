"""Lists the fields of a privacy statement with the origin of their text, which decides what is
listed for the signer of a plan.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

Origin = Literal["program", "quotes", "person"]
"""The program writes the text, the program writes sentences that quote a person, or a person
enters it.
"""

REPEATED: Mapping[str, Origin] = {
    "release_id": "program",
    "population": "person",
    "cohorts": "person",
    "mechanism": "program",
    "guarantee_kind": "program",
    "epsilon": "program",
    "delta": "program",
    "delta_text": "program",
    "sensitivity": "program",
    "epsilon_add_remove": "program",
    "draws": "person",
    "mc_failure_prob": "program",
    "neighbouring_relation": "program",
    "privacy_unit": "person",
    "max_records_per_unit": "person",
    "accountant": "program",
    "assumptions": "quotes",
    "unprotected_inputs": "quotes",
    "trust_model": "program",
    "randomness_source": "program",
    "floating_point_caveat": "program",
    "code_commit": "program",
}
"""Fields that a statement repeats from the ledger's row."""

_ADDED = (
    "accuracy_untold",
    "audit",
    "documents",
    "does_not_mean",
    "epsilon_replace_one",
    "sampling",
    "sentences",
)
"""Fields with text from the program that only the statement has."""


def _fields_from(origin: Origin) -> frozenset[str]:
    return frozenset(name for name, writer in REPEATED.items() if writer == origin)


WRITTEN_BY_THE_PROGRAM = _fields_from("program") | frozenset(_ADDED)
"""Fields with text from the program. The text of every other field is listed for the signer."""

SENTENCES = _fields_from("quotes")
"""Fields with sentences from the program. Text that they quote, in backquotes, is listed."""
