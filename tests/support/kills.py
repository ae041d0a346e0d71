"""Kills of a test's own process, without any clearing up."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest


@contextmanager
def killed_at(
    monkeypatch: pytest.MonkeyPatch, owner: Any, name: str, *, after: int = 0
) -> Iterator[None]:
    """A block that dies at a call of this function, after so many others of it."""
    real, calls = getattr(owner, name), 0

    def dies(*arguments: Any, **options: Any) -> Any:
        nonlocal calls
        if calls == after:
            raise KeyboardInterrupt  # nothing of ours catches it
        calls += 1
        return real(*arguments, **options)

    with monkeypatch.context() as patch:
        patch.setattr(owner, name, dies)
        with pytest.raises(KeyboardInterrupt):
            yield
