"""Measures workers for Prometheus: duration of stages, records per second, GPU memory.

A run may end before it is scraped, so it serves nothing itself. It writes its figures into the private workspace, one
JSON file per host, counters added under a lock; `autocoder status --serve` serves them
(flows/commands/metrics.py). A figure that cannot be written never fails a run.

No count of records is stored: the rate is rounded to two digits, so that rate and time do not give one.
"""

from __future__ import annotations

import fcntl
import json
import socket
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from storage.durable import write_atomically
from tasks.running.progress import Listener

if TYPE_CHECKING:
    from prometheus_client.metrics_core import Metric

COUNTERS = {
    "autocoder_stage_runs": "stages that ended, by result: computed, reused, failed",
    "autocoder_stage_seconds": "seconds spent computing stages that ended well",
}
GAUGES = {
    "autocoder_stage_last_seconds": "seconds that the newest computed stage took",
    "autocoder_stage_progress_ratio": "progress of the newest stage, 0 to 1",
    "autocoder_stage_records_per_second": "records through the model per second, two digits",
    "autocoder_stage_gpu_memory_peak_bytes": "most GPU memory allocated in the stage",
    "autocoder_stage_updated_timestamp_seconds": "time of the last report, seconds since 1970",
}
_SECONDS_BETWEEN_WRITES = 5.0
_SAME_RUN_SECONDS = 120.0
"""Stages whose last report is this much older than the newest of their flow belong to another run."""
_RETENTION_DAYS = 7
"""Retention of a host that reports no more, such as a replaced container."""
_DAMAGED = (OSError, ValueError, TypeError, RecursionError)
"""Errors of a file that cannot be read, or holds something else."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def folder(private: Path) -> Path:
    """Returns the folder of all hosts' files."""
    return private / "metrics"


def families(samples: Mapping[Key, float]) -> Iterator[Metric]:
    """Yields the samples of all hosts as Prometheus families, one per name."""
    from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

    for names, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
        for name, text in names.items():
            family = kind(name, text)
            for (series, labels), value in samples.items():
                if series == name:
                    suffix = "_total" if kind is CounterMetricFamily else ""
                    family.add_sample(name + suffix, dict(labels), value)
            if family.samples:
                yield family


def read(private: Path) -> dict[Key, float]:
    """Reads the samples of all hosts; skips damaged files and those past retention."""
    samples: dict[Key, float] = {}
    for file in sorted(folder(private).glob("*.json")):
        with suppress(*_DAMAGED):
            if time.time() - file.stat().st_mtime < _RETENTION_DAYS * 86_400:
                samples |= _parse(file.read_text(encoding="utf-8"))
    return samples


def _parse(text: str) -> dict[Key, float]:
    return {
        (str(name), tuple((str(label), str(of)) for label, of in labels)): float(value)
        for name, labels, value in json.loads(
            text, parse_int=float
        )  # a whole number past float is infinite, and no error
        if name in COUNTERS or name in GAUGES
    }


@dataclass(frozen=True)
class RunningStage:
    """Describes a stage that has started and not ended."""

    flow: str
    host: str
    stage: str
    share: float
    seconds_since: float
    """Since its last report."""


def running_stages(private: Path) -> list[RunningStage]:
    """Returns the stages of the newest run of each flow and host that started and did not end.

    A killed process leaves the same entry, whose last report then grows old.
    """
    samples = read(private)
    reports: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for (name, labels), when in samples.items():
        if name == "autocoder_stage_updated_timestamp_seconds":
            label = dict(labels)
            share = samples.get(("autocoder_stage_progress_ratio", labels), 1.0)
            reports.setdefault((label["flow"], label["host"]), []).append((when, share, label["stage"]))
    running = []
    for (flow, host), stages in sorted(reports.items()):
        newest = max(when for when, _, _ in stages)
        running += [
            RunningStage(flow, host, stage, share, max(0.0, time.time() - when))
            for when, share, stage in sorted(stages)
            if share < 1 and newest - when < _SAME_RUN_SECONDS
        ]
    return running


@contextmanager
def _update(private: Path, host: str) -> Iterator[dict[Key, float]]:
    """Yields this host's samples for update; writes them when the block ends, one process at a time."""
    metrics = folder(private)
    metrics.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = metrics / f"{host}.json"
    with (metrics / f"{host}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        samples: dict[Key, float] = {}
        with suppress(*_DAMAGED):
            samples = _parse(file.read_text(encoding="utf-8"))
        yield samples
        rows = [(name, labels, value) for (name, labels), value in samples.items()]
        write_atomically(file, json.dumps(rows).encode())


@dataclass
class _Stage:
    """Tracks a running stage of this process."""

    started: float = field(default_factory=time.monotonic)
    records: int | None = None
    first: tuple[float, int] | None = None
    last: tuple[float, int, int] | None = None
    written: float = 0.0

    def rate(self) -> float | None:
        """Returns records per second since the first report, without set-up and resumed steps."""
        if self.records is None or self.first is None or self.last is None:
            return None
        seconds, steps = self.last[0] - self.first[0], self.last[1] - self.first[1]
        if seconds <= 0 or steps <= 0:
            return None
        return float(f"{self.records * steps / self.last[2] / seconds:.2g}")


class MetricsListener(Listener):
    """Writes the events of a flow's stages to this host's file, every few seconds and at each end."""

    def __init__(self, private: Path, flow: str, *, host: str | None = None) -> None:
        self._private, self._flow = private, flow
        self._host = host or socket.gethostname() or "unknown"
        self._stages: dict[str, _Stage] = {}
        self._names: dict[str, str] = {}

    def named(self, label: str, name: str) -> None:
        """Takes the name under which a stage's figures go: names are few, and no seed is in them."""
        self._names[label] = name

    def started(self, label: str) -> None:
        """Starts the clock and the peak of GPU memory."""
        self._stages[label] = _Stage()
        self._write(label, self._stages[label], {"autocoder_stage_progress_ratio": 0.0}, result=None)
        if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def sized(self, label: str, records: int) -> None:
        """Stores the number of records of the whole stage."""
        self._stage(label).records = records

    def report(self, label: str, done: int, total: int | None) -> None:
        """Writes progress every few seconds."""
        stage, now = self._stage(label), time.monotonic()
        if not total:
            return
        stage.first = stage.first or (now, done)
        stage.last = (now, done, total)
        if now - stage.written >= _SECONDS_BETWEEN_WRITES:
            stage.written = now
            self._write(label, stage, {"autocoder_stage_progress_ratio": round(done / total, 3)}, result=None)

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """Writes the end of a stage, without its figures."""
        stage = self._stages.pop(label, _Stage())
        values: dict[str, float] = {"autocoder_stage_progress_ratio": 1.0}
        if not reused:
            values["autocoder_stage_last_seconds"] = round(seconds, 3)
        self._write(label, stage, values, result="reused" if reused else "computed")

    def failed(self, label: str) -> None:
        """Writes a failure: the stage is neither running nor interrupted."""
        self._write(label, self._stages.pop(label, _Stage()), {}, result="failed")

    def _stage(self, label: str) -> _Stage:
        return self._stages.setdefault(label, _Stage())

    def _write(self, label: str, stage: _Stage, values: dict[str, float], *, result: str | None) -> None:
        values["autocoder_stage_updated_timestamp_seconds"] = round(time.time())
        if result != "reused":
            rate = stage.rate()
            if rate is not None:
                values["autocoder_stage_records_per_second"] = rate
            if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
                values["autocoder_stage_gpu_memory_peak_bytes"] = torch.cuda.max_memory_allocated()
        labels = (("flow", self._flow), ("host", self._host), ("stage", self._names.get(label, label)))
        # A full disk ends the stage with its own message, which this must not hide.
        with suppress(OSError), _update(self._private, self._host) as samples:
            if result == "failed":
                samples.pop(("autocoder_stage_progress_ratio", labels), None)
            samples |= {(name, labels): float(value) for name, value in values.items()}
            if result is not None:
                ended = ("autocoder_stage_runs", tuple(sorted((*labels, ("result", result)))))
                samples[ended] = samples.get(ended, 0.0) + 1
            if result == "computed":
                spent = ("autocoder_stage_seconds", labels)
                samples[spent] = samples.get(spent, 0.0) + values["autocoder_stage_last_seconds"]
