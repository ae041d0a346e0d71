"""The context that a run executes in. This one does nothing; `flows.server.prefect_run` reports to
a server.

Prefect only records and displays runs. Locks, keys, resumption and the ledger are in the workspace,
so a command on a single machine needs no server.
"""

from collections.abc import Callable
from typing import ParamSpec, TypeVar

from tasks.running.progress import Listener

P = ParamSpec("P")
R = TypeVar("R")


class Run:
    """A run without a server: stages are plain function calls, and nothing is published."""

    id: str | None = None
    deployment: str | None = None
    """Id of the deployment that started the run."""
    shows = False
    """Whether published content is visible to a user."""

    def call(
        self, name: str, label: str, function: Callable[P, R], *args: P.args, **kwargs: P.kwargs
    ) -> R:
        """Calls a function as a unit of the run. It is never retried or cached, because stages and
        the ledger resume by themselves.
        """
        return function(*args, **kwargs)

    def listeners(self) -> tuple[Listener, ...]:
        return ()

    def publish_markdown(self, *, key: str, markdown: str, description: str) -> str | None:
        """Publishes Markdown on the run's page, and returns the address of the content, if any."""
        return None

    def log(self, text: str) -> None:
        """Adds a line to the log of the run's page, where addresses are links."""


PLAIN = Run()
