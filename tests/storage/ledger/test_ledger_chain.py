"""Canonical JSON as RFC 8785 writes it, whichever way is taken."""

from __future__ import annotations

from typing import Any

import pytest
import rfc8785
from hypothesis import given
from hypothesis import strategies as st

from storage.errors import InputError
from storage.ledger import chain
from storage.ledger.chain import canonical

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(2**53) + 1, 2**53 - 1)
    | st.floats(allow_nan=False)
    | st.text()
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner))


@given(st.dictionaries(st.text(), VALUES))
def test_canonical_text_is_that_of_the_standard(content: dict[str, Any]) -> None:
    try:
        expected = rfc8785.dumps(content).decode()
    except (rfc8785.CanonicalizationError, OverflowError):
        with pytest.raises(InputError):
            canonical(content)
    else:
        assert canonical(content) == expected


TAIL = ',"signature":"x","signer":"y"}'
AWKWARD = st.sampled_from([TAIL, '"', "\\", "é", "\u2028", "signature", "", None, {"signer": "y"}])


@given(
    content=st.fixed_dictionaries(
        {},
        optional={
            name: AWKWARD for name in ("a", "sequence", "signature", "signatures", "signer", "z")
        },
    )
)
def test_what_a_signature_is_over_is_cut_out_of_the_text(content: Any) -> None:
    """The same bytes as without the signature, whatever stands before or behind it."""
    body = canonical(content)
    assert chain.signed_bytes_of(content, body) == chain.signed_bytes(content)


@pytest.mark.parametrize(
    "value", [1e-5, 1e16, 1e21, 2.0, -0.0, 2**53, 10**20, [1.0], {"b": 1, "a": {"d": 1e-7}}]
)
@pytest.mark.parametrize("other", ["", "e-5", "\ue000 \U0001f600"])
def test_numbers_that_are_written_otherwise(value: Any, other: str) -> None:
    test_canonical_text_is_that_of_the_standard.hypothesis.inner_test({other: other, "v": value})  # pyrefly: ignore
