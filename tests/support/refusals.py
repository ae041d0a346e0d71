"""Tells refusals apart by their kind, so that a sentence is free to change.

with pytest.raises(InputError, check=of_kind("no-column")):
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class of_kind:
    """Whether an error is of this kind."""

    name: str

    def __call__(self, error: BaseException) -> bool:
        found = getattr(error, "kind", None)
        assert found == self.name, f"{type(error).__name__} of kind {found!r}: {error}"
        return True
