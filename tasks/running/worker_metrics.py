"""What a worker measures, for Prometheus: how long stages take, how fast records pass, GPU memory.

A run is a process of its own that may end before anybody scrapes it, so nothing listens in it. It leaves its figures in
the private workspace, one text file a host in Prometheus' own format, counters added to under a lock; `autocoder
metrics` hands them on (flows/commands/metrics.py). A figure that can't be written never fails a run.

No count of records is kept: the rate is rounded to two digits, so that with the time it doesn't tell one.
"""

from __future__ import annotations

import fcntl
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from storage.durable import write_atomically
from tasks.running.progress import Listener

COUNTERS = {
    "autocoder_stage_runs": "stages that ended, by result: computed, reused, failed",
    "autocoder_stage_seconds": "seconds spent computing stages that ended well",
}
GAUGES = {
    "autocoder_stage_last_seconds": "seconds that the newest computed one took",
    "autocoder_stage_progress_ratio": "how far the newest one is, 0 to 1",
    "autocoder_stage_records_per_second": "records through the model a second, two digits",
    "autocoder_stage_gpu_memory_peak_bytes": "most GPU memory allocated in the stage",
    "autocoder_stage_updated_timestamp_seconds": "its last sign of life, seconds since 1970",
}
_SECONDS_BETWEEN_WRITES = 5.0
_SIDE_BY_SIDE = 120.0
"""Seconds: stages heard of so much earlier than the newest of their flow are of another run."""
_KEPT_DAYS = 7
"""Of a host that is heard of no more, such as a container that another has replaced."""
_KEPT_SERIES = 500
"""Of one name: labels of stages hold branch names and seeds, which must not grow for ever."""

Key = tuple[str, tuple[tuple[str, str], ...]]


def folder(private: Path) -> Path:
    """Where the files of all hosts lie."""
    return private / "metrics"


class Families(Collector):
    """Samples of any number of hosts as Prometheus' families; one name is one family, whoever measured it."""

    def __init__(self, samples: Mapping[Key, float]) -> None:
        self._samples = samples

    def collect(self) -> Iterator[Metric]:
        """The families, each with its samples."""
        for names, kind in ((COUNTERS, CounterMetricFamily), (GAUGES, GaugeMetricFamily)):
            for name, text in names.items():
                family = kind(name, text)
                for (own, labels), value in self._samples.items():
                    if own == name:
                        suffix = "_total" if kind is CounterMetricFamily else ""
                        family.add_sample(name + suffix, dict(labels), value)
                if family.samples:
                    yield family


def read(private: Path) -> dict[Key, float]:
    """Samples of all hosts; a file that is no longer whole is left out, and one of a host long gone."""
    samples: dict[Key, float] = {}
    for file in sorted(folder(private).glob("*.prom")):
        with suppress(OSError, ValueError):
            if time.time() - file.stat().st_mtime < _KEPT_DAYS * 86_400:
                samples |= _parse(file.read_text(encoding="utf-8"))
    return samples


def _parse(text: str) -> dict[Key, float]:
    return {
        (family.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if family.name in COUNTERS or family.name in GAUGES
    }


@dataclass(frozen=True)
class AtWork:
    """A stage that was begun and has not ended."""

    flow: str
    host: str
    stage: str
    share: float
    seconds_since: float
    """Since it was last heard of."""


def at_work(private: Path) -> list[AtWork]:
    """Stages of the newest work of each flow and host that were begun and did not end, as their process left them.

    Whether that process lives is not told: one that was killed leaves the same, and is heard of no more.
    """
    samples = read(private)
    heard: dict[tuple[str, str], list[tuple[float, float, str]]] = {}
    for (name, labels), when in samples.items():
        if name == "autocoder_stage_updated_timestamp_seconds":
            own = dict(labels)
            share = samples.get(("autocoder_stage_progress_ratio", labels), 1.0)
            heard.setdefault((own["flow"], own["host"]), []).append((when, share, own["stage"]))
    found = []
    for (flow, host), stages in sorted(heard.items()):
        newest = max(when for when, _, _ in stages)
        found += [
            AtWork(flow, host, stage, share, max(0.0, time.time() - when))
            for when, share, stage in sorted(stages)
            if share < 1 and newest - when < _SIDE_BY_SIDE
        ]
    return found


@contextmanager
def _adding(private: Path, host: str) -> Iterator[dict[Key, float]]:
    """Samples of this host, to change; written when the block ends, one process at a time."""
    here = folder(private)
    here.mkdir(mode=0o700, parents=True, exist_ok=True)
    file = here / f"{host}.prom"
    with (here / f"{host}.lock").open("w") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        samples: dict[Key, float] = {}
        with suppress(OSError, ValueError):
            samples = _parse(file.read_text(encoding="utf-8"))
        yield samples
        registry = CollectorRegistry()
        registry.register(Families(_newest(samples)))
        write_atomically(file, generate_latest(registry))


def _newest(samples: Mapping[Key, float]) -> dict[Key, float]:
    """Those of the stages that were heard of last."""
    heard = {labels: value for (name, labels), value in samples.items() if name.endswith("_timestamp_seconds")}
    if len(heard) <= _KEPT_SERIES:
        return dict(samples)
    kept = set(sorted(heard, key=lambda labels: heard[labels])[-_KEPT_SERIES:])
    return {
        key: value for key, value in samples.items() if tuple(label for label in key[1] if label[0] != "result") in kept
    }


@dataclass
class _Stage:
    """A stage at work in this process."""

    started: float = field(default_factory=time.monotonic)
    records: int | None = None
    first: tuple[float, int] | None = None
    last: tuple[float, int, int] | None = None
    written: float = 0.0

    def rate(self) -> float | None:
        """Records a second since the first report, so that neither set-up nor what was resumed counts."""
        if self.records is None or self.first is None or self.last is None:
            return None
        seconds, steps = self.last[0] - self.first[0], self.last[1] - self.first[1]
        if seconds <= 0 or steps <= 0:
            return None
        return float(f"{self.records * steps / self.last[2] / seconds:.2g}")


class MetricsListener(Listener):
    """Writes what it hears of a flow's stages to this host's file, every few seconds and at each end.

    Args:
        private: the private workspace.
        flow: name of the flow, a label of every figure.
        host: another name for this host; tests give one.
    """

    def __init__(self, private: Path, flow: str, *, host: str | None = None) -> None:
        self._private, self._flow = private, flow
        self._host = host or socket.gethostname() or "unknown"
        self._stages: dict[str, _Stage] = {}

    def started(self, label: str) -> None:
        """The clock starts; so does the count of GPU memory."""
        self._stages[label] = _Stage()
        self._write(label, self._stages[label], {"autocoder_stage_progress_ratio": 0.0}, result=None)
        if torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def sized(self, label: str, records: int) -> None:
        """How many records pass through the model in the whole stage."""
        self._stage(label).records = records

    def report(self, label: str, done: int, total: int | None) -> None:
        """Progress, written every few seconds."""
        stage, now = self._stage(label), time.monotonic()
        if not total:
            return
        stage.first = stage.first or (now, done)
        stage.last = (now, done, total)
        if now - stage.written >= _SECONDS_BETWEEN_WRITES:
            stage.written = now
            self._write(label, stage, {"autocoder_stage_progress_ratio": round(done / total, 3)}, result=None)

    def finished(self, label: str, figures: Mapping[str, Any], *, reused: bool, seconds: float) -> None:
        """The end of a stage; its figures stay out."""
        stage = self._stages.pop(label, _Stage())
        own: dict[str, float] = {"autocoder_stage_progress_ratio": 1.0}
        if not reused:
            own["autocoder_stage_last_seconds"] = round(seconds, 3)
        self._write(label, stage, own, result="reused" if reused else "computed")

    def failed(self, label: str) -> None:
        """A stage that ended in an error, which was told: it is neither at work nor interrupted."""
        self._write(label, self._stages.pop(label, _Stage()), {}, result="failed")

    def _stage(self, label: str) -> _Stage:
        return self._stages.setdefault(label, _Stage())

    def _write(self, label: str, stage: _Stage, own: dict[str, float], *, result: str | None) -> None:
        own["autocoder_stage_updated_timestamp_seconds"] = round(time.time())
        if result != "reused":
            rate = stage.rate()
            if rate is not None:
                own["autocoder_stage_records_per_second"] = rate
            if torch.cuda.is_available():
                own["autocoder_stage_gpu_memory_peak_bytes"] = torch.cuda.max_memory_allocated()
        labels = (("flow", self._flow), ("host", self._host), ("stage", label))
        # A full disk ends the stage by itself, with its own words; this must not hide them.
        with suppress(OSError), _adding(self._private, self._host) as samples:
            if result == "failed":
                samples.pop(("autocoder_stage_progress_ratio", labels), None)
            samples |= {(name, labels): float(value) for name, value in own.items()}
            if result is not None:
                ended = ("autocoder_stage_runs", tuple(sorted((*labels, ("result", result)))))
                samples[ended] = samples.get(ended, 0.0) + 1
            if result == "computed":
                spent = ("autocoder_stage_seconds", labels)
                samples[spent] = samples.get(spent, 0.0) + own["autocoder_stage_last_seconds"]
