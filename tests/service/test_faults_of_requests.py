"""What is wrong with a request is said without a text of the request."""

from service.messages import fault_of


def test_the_name_of_an_unknown_field_is_not_quoted() -> None:
    """A client may have put a narrative where a name belongs."""
    name = "The employee was greasing the conveyor chain"
    error = {
        "type": "extra_forbidden",
        "loc": ("body", name),
        "msg": "Extra inputs are not permitted",
    }
    assert name not in fault_of([error])
    assert "narratives" in fault_of([error | {"type": "missing", "loc": ("body", "narratives")}])
