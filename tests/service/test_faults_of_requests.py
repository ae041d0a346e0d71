"""What is wrong with a request is said without a text of the request."""

from pydantic_core import ErrorDetails

from service.messages import fault_of


def test_the_name_of_an_unknown_field_is_not_quoted() -> None:
    """A client may have put a narrative where a name belongs."""
    name = "The employee was greasing the conveyor chain"
    error: ErrorDetails = {
        "type": "extra_forbidden",
        "loc": ("body", name),
        "msg": "Extra inputs are not permitted",
        "input": None,
    }
    assert name not in fault_of([error])
    missing: ErrorDetails = {**error, "type": "missing", "loc": ("body", "narratives")}
    assert "narratives" in fault_of([missing])
