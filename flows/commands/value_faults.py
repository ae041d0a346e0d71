"""Says what is wrong with a value, in the project's words instead of pydantic's."""

from __future__ import annotations

from pydantic_core import ErrorDetails

PREDICATES = {
    "missing": "is missing",
    "extra_forbidden": "is not a setting that exists here",
    "string_type": "must be a text",
    "string_too_short": "must not be shorter than {min_length} characters",
    "string_too_long": "must not be longer than {max_length} characters",
    "string_pattern_mismatch": "must match the pattern {pattern}",
    "too_short": "has too few entries: at least {min_length}",
    "too_long": "has too many entries: at most {max_length}",
    "float_type": "must be a number",
    "float_parsing": "must be a number",
    "int_type": "must be a whole number",
    "int_parsing": "must be a whole number",
    "int_from_float": "must be a whole number",
    "bool_type": "must be true or false",
    "bool_parsing": "must be true or false",
    "finite_number": "must be a finite number",
    "greater_than": "must be greater than {gt:g}",
    "greater_than_equal": "must be at least {ge:g}",
    "less_than": "must be less than {lt:g}",
    "less_than_equal": "must be at most {le:g}",
    "literal_error": "must be one of {expected}",
    "tuple_type": "must be a list",
    "list_type": "must be a list",
    "model_type": "must be a section with fields of its own",
}
"""What is wrong with a value, by pydantic's type of the fault."""
OTHERWISE = "has a value that does not fit"


def fault_of(entry: ErrorDetails) -> str:
    """Returns what is wrong with a value, as the predicate of a sentence about it."""
    words = PREDICATES.get(entry["type"], OTHERWISE)
    return words.format(**entry.get("ctx", {}))
