"""The form in which a release run asks for a signature."""

import pytest
from prefect.utilities.schema_tools import ValidationError, validate

from flows.server.approvals import SignedDecision

SCHEMA = SignedDecision.model_json_schema()


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "Validation failed. Failure reason: 'decision' is a required property"),
        ({"decision": ""}, "Failure reason: '' is too short"),
        ({"decision": "I approve."}, "Failure reason: 'I approve.' is too short"),
    ],
)
def test_no_run_is_resumed_without_a_signature(answer: dict[str, str], said: str) -> None:
    """The server refuses by this schema, in one sentence, and a run waits on."""
    with pytest.raises(ValidationError) as refused:
        validate(answer, SCHEMA, raise_on_error=True)
    assert str(refused.value).endswith(said)
    assert "\n" not in str(refused.value)


def test_the_field_is_the_only_one_and_without_markup() -> None:
    """Prefect's page shows a field's description as it is written."""
    (field,) = SCHEMA["properties"].values()
    assert "`" not in field["description"]
    assert "autocoder approve PLAN --key KEY.pem --print" in field["description"]
