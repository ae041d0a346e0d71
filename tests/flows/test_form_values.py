"""The values of a form, as a run reads them: refused in the words of the form."""

from inspect import signature
from typing import Any

import pytest
from prefect.utilities.schema_tools import validate
from refusals import of_kind

from flows import deployed
from flows.server import form_values
from storage.errors import OutOfRange

FORM = {
    "source": "/data/injuries.csv",
    "codelist": "none",
    "text_columns": ["Narrative"],
    "label_column": "Code",
    "population": "injuries",
    "target_epsilon": 2,
}


@pytest.mark.parametrize(
    ("flow", "given", "said"),
    [
        (deployed.formal, {}, "Records and epsilon is missing."),
        (
            deployed.formal,
            {"parameters": FORM | {"target_epsilon": -1, "text_columns": []}},
            "Text columns has too few entries: at least 1. Target epsilon must be greater than 0.",
        ),
        (
            deployed.formal,
            {"parameters": FORM | {"target_epsilon": "two"}},
            "Target epsilon must be a number.",
        ),
        (
            deployed.formal,
            {"parameters": FORM | {"advanced": "method: {delta: -3}"}},
            "Advanced (YAML): method.delta: must be greater than 0 (got -3)",
        ),
        (
            deployed.audit,
            {"plan": "PLAN.json", "device": "tpu"},
            "Plan: must be an absolute path, since workers run elsewhere. "
            "Device must be one of 'auto', 'cpu' or 'cuda'.",
        ),
        (
            deployed.revoke,
            {"release": "3f2a", "reason": ""},
            "Release: must be the 16 hexadecimal digits of a release. "
            "Reason must not be shorter than 1 characters.",
        ),
    ],
)
def test_each_fault_is_told_by_the_title_of_its_field(
    flow: Any, given: dict[str, Any], said: str
) -> None:
    with pytest.raises(OutOfRange, check=of_kind("form-values")) as refused:
        form_values.read(signature(flow), given)
    assert str(refused.value) == said


def test_values_that_fit_become_the_arguments() -> None:
    """What the form leaves out has its default."""
    read = form_values.read(signature(deployed.formal), {"parameters": FORM})
    assert read["parameters"].target_epsilon == 2.0
    read = form_values.read(signature(deployed.audit), {"plan": "/plans/PLAN.json"})
    assert (read["device"], read["home"]) == ("auto", None)


@pytest.mark.parametrize(
    ("flow", "given", "said"),
    [
        (
            deployed.formal,
            {"parameters": FORM | {"population": "no commas, please"}},
            "'a name of up to 64 letters, digits, blanks, dots, hyphens and underscores' was "
            "expected",
        ),
        (
            deployed.audit,
            {"plan": "PLAN.json"},
            "'an absolute path, since workers run elsewhere' was expected",
        ),
    ],
)
def test_the_server_refuses_a_form_in_words(flow: Any, given: dict[str, Any], said: str) -> None:
    """By the schema, before there is a run; it quotes no pattern."""
    (fault,) = validate(given, flow.parameters.model_dump())
    assert fault.message == said
