"""Would win: a release under a method's name that leaves out what its settings took from records,
or an estimate that goes out as a formal claim.
"""

from typing import Any

import pytest
from pydantic import ValidationError

from flows.server.form import FormalForm
from tasks.method import Method
from tasks.parameters import RetrainParameters

DECLARES = """
a run says of its method what the program knows of it
| `unprotected: []` beside a name, and beside a kind; an estimated method, by name and by profile,
in the form for formal claims
| methods under names of their own: their settings are compared when a release is planned
"""

DATA = {"source": "r.csv", "ingest": {}}


def method(**written: Any) -> Method:
    return RetrainParameters.model_validate({"data": DATA, "method": written}).method


@pytest.mark.parametrize("called", [{"name": "prior-descent"}, {"kind": "prior-descent"}])
def test_a_run_leaves_out_what_its_settings_took(called: dict[str, str]) -> None:
    """It stays, whatever the run writes; what it adds comes after; written and read
    it is the same.
    """
    usual = method(**called).unprotected
    assert usual
    assert method(**called, unprotected=[]).unprotected == usual
    more = method(**called, unprotected=["mine"])
    assert more.unprotected == (*usual, "mine")
    assert Method.model_validate(more.model_dump(mode="json")) == more


@pytest.mark.parametrize("advanced", ["profile: osha-head", "method: {name: swag-ppm}"])
def test_a_formal_form_makes_a_formal_claim(advanced: str) -> None:
    """Its run is titled formal, and its target is the epsilon of a formal claim."""
    fields: dict[str, Any] = {"source": "/r.csv", "codelist": "/c.csv", "text_columns": ["T"]}
    fields |= {"label_column": "C", "population": "own", "target_epsilon": 3}
    fields["advanced"] = "data: {classification: SOC}"
    FormalForm.model_validate(fields)
    classified = f"{{data: {{classification: SOC}}, {advanced}}}"
    with pytest.raises(ValidationError, match=r"Advanced \(YAML\): "):
        FormalForm.model_validate(fields | {"advanced": classified})
