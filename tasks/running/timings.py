"""What stages took in this workspace, as a multiple of the rough estimate: what the next estimate is corrected by.

One small file, `private/timings.json`: kind of stage, and the multiple when it was last computed from its beginning.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from storage.durable import write_atomically
from tasks.running.progress import Listener

_FILE = "timings.json"
_BRIEF = 0.2
"""Seconds: what is estimated below them tells nothing of the machine."""


def read(private: Path) -> dict[str, float]:
    """Multiples by kind of stage; none where nothing was timed, or the file is no longer whole."""
    with suppress(OSError, ValueError):
        content = json.loads((private / _FILE).read_text(encoding="utf-8"))
        return {str(kind): float(value) for kind, value in content.items() if 0 < float(value) < 1e6}
    return {}


def kind_of(label: str) -> str:
    """The kind of stage that a label is of: without round or seed, but with the branch that an audit reruns."""
    return label if label.startswith("audit trials") else label.partition(" (")[0].partition(", seed")[0]


class TimingsListener(Listener):
    """Keeps how long each kind of stage takes.

    Args:
        rough: estimated seconds of one stage, by kind.
    """

    def __init__(self, private: Path, rough: Mapping[str, float]) -> None:
        self._private, self._rough = private, rough
        self._resumed: set[str] = set()
        self._seen: set[str] = set()

    def report(self, label: str, done: int, total: int | None) -> None:
        """A stage whose first word is of its middle goes on from a checkpoint, and its time is not that of a whole."""
        if label not in self._seen:
            self._seen.add(label)
            if total and done > 0.2 * total:
                self._resumed.add(label)

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """Keep the time of a stage that was computed as a whole."""
        kind = kind_of(label)
        rough = self._rough.get(kind, 0.0)
        if reused or label in self._resumed or rough < _BRIEF:
            return
        with suppress(OSError):
            known = read(self._private) | {kind: round(seconds / rough, 3)}
            write_atomically(self._private / _FILE, json.dumps(known, sort_keys=True).encode())
