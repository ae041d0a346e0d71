"""One stack for all end-to-end tests: `scripts/stack.py`, as `make stack` starts it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from sinks import Sink, listening
from stacks import Stack, missing, started, with_officer


@pytest.fixture(scope="session")
def sink() -> Iterator[Sink]:
    """What receives the stack's notifications; at $AUTOCODER_TEST_SINK for a stack that runs
    already.
    """
    with listening(int(os.environ.get("AUTOCODER_TEST_SINK", "0"))) as receiving:
        yield receiving


@pytest.fixture(scope="session")
def stack(sink: Sink) -> Iterator[Stack]:
    """The stack, started once; a running one by $AUTOCODER_TEST_STACK, for anyone who works on
    these tests.
    """
    running = os.environ.get("AUTOCODER_TEST_STACK")
    if running:
        yield Stack(Path(running))
        return
    lacking = missing()
    if lacking:
        pytest.skip(lacking)
    with started(webhook=sink.url) as new:
        yield new


@pytest.fixture(scope="session")
def officer(stack: Stack) -> Path:
    """Private key of the one officer whom the budget policy names; the first use puts that policy
    in force.
    """
    return with_officer(stack)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """`test_production` first: it counts what a fresh stack has; the others look only at their own
    runs.
    """
    here = [n for n, item in enumerate(items) if item.path.parent == Path(__file__).parent]
    moved = sorted(
        (items[n] for n in here), key=lambda item: item.path.name != "test_production.py"
    )
    for n, item in zip(here, moved, strict=True):
        items[n] = item
