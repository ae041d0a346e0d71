"""Stores the actual time of stages as a multiple of the rough estimate, to correct the next
estimate.

The only file is `private/timings.json`. For each kind of stage it has the multiple from the last
time that the stage was computed in full.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from storage.durable import write_atomically
from storage.json_values import Figures
from tasks.running.progress import Listener

_FILE = "timings.json"
_BRIEF = 0.2
"""Seconds. Shorter estimates are not informative about the machine."""


def read(private: Path) -> dict[str, float]:
    with suppress(OSError, ValueError):
        content = json.loads((private / _FILE).read_text(encoding="utf-8"))
        return {
            str(kind): float(value) for kind, value in content.items() if 0 < float(value) < 1e6
        }
    return {}


def kind_of(label: str) -> str:
    """Returns the kind of stage for a label: without round or seed, but with the branch that an
    audit reruns.
    """
    return (
        label
        if label.startswith("audit trials")
        else label.partition(" (")[0].partition(", seed")[0]
    )


class TimingsListener(Listener):
    def __init__(self, private: Path, rough: Mapping[str, float]) -> None:
        self._private, self._rough = private, rough
        self._resumed: set[str] = set()
        self._reported: set[str] = set()

    def report(self, label: str, done: int, total: int | None) -> None:
        """Marks a stage as resumed if its first report is past the beginning, because its time is
        then not the time of a full computation.
        """
        if label not in self._reported:
            self._reported.add(label)
            if total and done > 0.2 * total:
                self._resumed.add(label)

    def finished(self, label: str, figures: Figures, *, reused: bool, seconds: float) -> None:
        kind = kind_of(label)
        rough = self._rough.get(kind, 0.0)
        if reused or label in self._resumed or rough < _BRIEF:
            return
        with suppress(OSError):
            multiples = read(self._private) | {kind: round(seconds / rough, 3)}
            write_atomically(self._private / _FILE, json.dumps(multiples, sort_keys=True).encode())


class WholeListener(TimingsListener):
    """Records the time of stages that are known to start from the beginning."""

    def report(self, label: str, done: int, total: int | None) -> None:
        pass
