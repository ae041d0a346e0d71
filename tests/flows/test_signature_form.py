"""The form in which a release run asks for a signature."""

from typing import Any

import pytest
from prefect.utilities.schema_tools import ValidationError, validate

from flows.server import approvals
from flows.server.approvals import SignedDecision

SCHEMA = SignedDecision.model_json_schema()
EXPECTED = "Failure reason: 'the line that autocoder approve --print prints' was expected"


@pytest.mark.parametrize(
    ("answer", "said"),
    [
        ({}, "Validation failed. Failure reason: 'decision' is a required property"),
        ({"decision": ""}, EXPECTED),
        ({"decision": "I approve."}, EXPECTED),
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


def test_an_answer_that_does_not_count_is_told_in_whole_sentences() -> None:
    """Above the next question, whatever the refusal's own form is."""
    for problem in ("approval: invalid signature", "approval: invalid signature."):
        assert approvals._warning_of(problem) == (
            "**The last answer does not count.** Approval: invalid signature. "
            "The run is still waiting.\n\n"
        )
    assert approvals._warning_of("") == ""


def test_each_question_has_a_number_and_is_open_for_days(monkeypatch: pytest.MonkeyPatch) -> None:
    """Prefect keeps an answer by its question's key, so that a question that is asked again has
    another key.
    """
    asked: list[dict[str, Any]] = []

    def suspend(*, wait_for_input: Any, timeout: int, key: str) -> SignedDecision:
        asked.append({"text": wait_for_input._description, "timeout": timeout, "key": key})
        return SignedDecision(decision="d" * 300)

    monkeypatch.setattr(approvals, "suspend_flow_run", suspend)
    for number in (1, 2):
        assert approvals._ask(number, "Sign here.", days=3) == "d" * 300
    assert asked == [
        {"text": "Sign here.", "timeout": 259_200, "key": f"decision-{number}"} for number in (1, 2)
    ]
