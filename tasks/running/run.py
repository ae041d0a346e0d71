"""The context that a run executes in. This one does nothing; `flows.server.prefect_run` reports to
a server.

Prefect records runs and shows them. What a result depends on (locks, keys, resumption, ledger) is
in the workspace, so that a command alone on one machine needs no server.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tasks.running.progress import Listener

P = ParamSpec("P")
R = TypeVar("R")


class Run:
    """A plain call: stages are function calls in this process, and nothing is shown on a page."""

    id: str | None = None
    deployment: str | None = None
    """Id of the deployment that started the run."""
    shows = False
    """Whether someone can look at what is published."""

    def call(
        self, name: str, label: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Calls a function as a unit of the run. It is never retried and never cached: stages and
        the ledger resume.
        """
        return function(*args, **kwargs)

    def listeners(self) -> tuple[Listener, ...]:
        return ()

    def publish_markdown(self, *, key: str, markdown: str, description: str) -> None:
        """Publishes a text on the run's page."""


PLAIN = Run()
