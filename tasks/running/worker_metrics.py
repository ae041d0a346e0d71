"""Measures workers for Prometheus: duration of stages, records per second, GPU memory.

A run may end before it is scraped, so it serves nothing itself. It writes a text file in
Prometheus' format to the private workspace, and `autocoder status --serve` serves the files of all
runs of the past week. A figure that cannot be written never fails a run. No count of records is
stored, and the rate is rounded to two digits so that rate and time do not reveal one.
"""

from __future__ import annotations

import fcntl
import os
import socket
import sys
import time
import uuid
import weakref
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from storage.durable import open_regular
from storage.errors import InputError
from storage.json_values import Figures
from tasks.running.progress import Listener

if TYPE_CHECKING:
    from prometheus_client import Metric

_LABELS = ("flow", "host", "stage")
COUNTERS = {
    "autocoder_stage_runs": "stages that ended, by result: computed, reused, failed",
    "autocoder_stage_seconds": "seconds spent computing stages that succeeded",
}
GAUGES = {
    "autocoder_stage_last_seconds": "seconds that the newest computed stage took",
    "autocoder_stage_progress_ratio": "progress of the newest stage, 0 to 1",
    "autocoder_stage_records_per_second": "records through the model per second, two digits",
    "autocoder_stage_gpu_memory_peak_bytes": "most GPU memory allocated in the stage",
    "autocoder_stage_updated_timestamp_seconds": "time of the last report, seconds since 1970",
}
_SECONDS_BETWEEN_WRITES, _SAME_RUN_SECONDS, _RETENTION_SECONDS = 5.0, 120.0, 7 * 86_400
"""A stage belongs to an earlier run if its last report is older than its flow's newest report by
more than the second constant.
"""


def folder(private: Path) -> Path:
    return private / "metrics"


def families(private: Path) -> list[Metric]:
    """Returns the metrics of all runs of the past week. Counters are added up; gauges are the
    newest run's.
    """
    from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily
    from prometheus_client.parser import text_string_to_metric_families

    values: dict[str, dict[tuple[tuple[str, str], ...], float]] = {}
    for file in _files(private):
        with suppress(OSError, ValueError):  # a file that was written incompletely
            for family in text_string_to_metric_families(file.read_text(encoding="utf-8")):
                samples = values.setdefault(family.name, {})
                for sample in family.samples:
                    key = tuple(sorted(sample.labels.items()))
                    samples[key] = sample.value + (
                        samples.get(key, 0.0) if family.name in COUNTERS else 0.0
                    )
    metrics: list[Metric] = []
    for name, text in (COUNTERS | GAUGES).items():
        merged = (CounterMetricFamily if name in COUNTERS else GaugeMetricFamily)(name, text)
        for labels, value in values.get(name, {}).items():
            merged.add_sample(f"{name}_total" if name in COUNTERS else name, dict(labels), value)
        metrics += [merged] if merged.samples else []
    return metrics


def _files(private: Path) -> list[Path]:
    times: dict[Path, float] = {}
    for file in folder(private).glob("*.prom"):
        with suppress(OSError):
            times[file] = file.stat().st_mtime
    recent = [file for file, when in times.items() if time.time() - when < _RETENTION_SECONDS]
    return sorted(recent, key=times.__getitem__)


class RunningStage(TypedDict):
    """A stage that has started and not ended."""

    flow: str
    host: str
    stage: str
    share: float
    """Share of its steps that are done."""
    seconds_since: float
    """Seconds since its last report."""
    working: bool
    """Whether a process of this flow runs on this host. A long silence does not mean that it died.
    """


def running_stages(private: Path) -> list[RunningStage]:
    """Returns the stages of each flow's and host's newest run that have started and not ended."""
    samples: dict[tuple[str, str, str], dict[str, float]] = {}
    for family in families(private):
        for name, labels, value, *_ in family.samples:
            samples.setdefault((labels["flow"], labels["host"], labels["stage"]), {})[name] = value
    updated = {
        key: values.get("autocoder_stage_updated_timestamp_seconds", 0.0)
        for key, values in samples.items()
    }
    newest = {
        key[:2]: max(when for other_key, when in updated.items() if other_key[:2] == key[:2])
        for key in updated
    }
    at_work = _at_work(private)
    stages: list[RunningStage] = []
    for key, when in sorted(updated.items(), key=lambda item: item[1]):
        flow, host, stage = key
        share = samples[key].get("autocoder_stage_progress_ratio", 1.0)
        if share >= 1 or newest[flow, host] - when >= _SAME_RUN_SECONDS:
            continue
        stages.append(
            {
                "flow": flow,
                "host": host,
                "stage": stage,
                "share": share,
                "seconds_since": max(0.0, time.time() - when),
                "working": (flow, host) in at_work,
            }
        )
    return stages


def _at_work(private: Path) -> set[tuple[str, str]]:
    """Returns flow and host of each run with a process that holds its lock."""
    found = set()
    for lock in folder(private).glob("*.lock"):
        with suppress(OSError, InputError), open_regular(lock) as handle:
            try:
                fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
            except BlockingIOError:
                found.add(tuple(handle.read(4096).decode(errors="replace").split("\n")[:2]))
    return {(flow, host) for flow, host in found}


@dataclass
class _Stage:
    name: str = ""
    records: int | None = None
    first: tuple[float, int] | None = None
    last: tuple[float, int, int] | None = None
    written: float = 0.0

    def rate(self) -> float | None:
        """Records per second since the first report, excluding set-up and resumed steps."""
        if self.records is None or self.first is None or self.last is None:
            return None
        seconds, steps = self.last[0] - self.first[0], self.last[1] - self.first[1]
        return (
            float(f"{self.records * steps / self.last[2] / seconds:.2g}")
            if seconds > 0 and steps > 0
            else None
        )


@dataclass
class MetricsListener(Listener):
    """Writes the events of a flow's stages to this run's file, every few seconds and whenever a
    stage ends.
    """

    private: Path
    flow: str
    host: str = field(default_factory=lambda: socket.gethostname() or "unknown")

    def __post_init__(self) -> None:
        from prometheus_client import CollectorRegistry, Counter, Gauge

        self._registry = CollectorRegistry()
        self._runs, self._seconds = (
            Counter(name, text, [*_LABELS, *more], registry=self._registry)
            for (name, text), more in zip(COUNTERS.items(), (["result"], []), strict=True)
        )
        self._gauges = {
            name: Gauge(name, text, _LABELS, registry=self._registry)
            for name, text in GAUGES.items()
        }
        self._stages: dict[str, _Stage] = {}
        self._file = folder(self.private) / f"{self.host}-{uuid.uuid4().hex}.prom"
        self._lock: int | None = None

    def named(self, label: str, name: str) -> None:
        self._stages[label] = _Stage(name)

    def started(self, label: str) -> None:
        self._write(self._stage(label), progress_ratio=0.0)
        if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
            torch.cuda.reset_peak_memory_stats()

    def sized(self, label: str, records: int) -> None:
        self._stage(label).records = records

    def report(self, label: str, done: int, total: int | None) -> None:
        stage, now = self._stage(label), time.monotonic()
        if not total:
            return
        stage.first = stage.first or (now, done)
        stage.last = (now, done, total)
        if now - stage.written >= _SECONDS_BETWEEN_WRITES:
            stage.written = now
            self._write(stage, progress_ratio=round(done / total, 3))

    def finished(self, label: str, figures: Figures, *, reused: bool, seconds: float) -> None:
        stage = self._stage(label)
        self._runs.labels(
            self.flow, self.host, stage.name, "reused" if reused else "computed"
        ).inc()
        if not reused:
            self._seconds.labels(self.flow, self.host, stage.name).inc(round(seconds, 3))
        self._write(
            stage, progress_ratio=1.0, **({} if reused else {"last_seconds": round(seconds, 3)})
        )

    def failed(self, label: str) -> None:
        stage = self._stage(label)
        self._runs.labels(self.flow, self.host, stage.name, "failed").inc()
        self._write(stage, progress_ratio=1.0)

    def _stage(self, label: str) -> _Stage:
        return self._stages.setdefault(label, _Stage(label))

    def _write(self, stage: _Stage, **values: float) -> None:
        from prometheus_client import write_to_textfile

        values["updated_timestamp_seconds"] = round(time.time())
        if (rate := stage.rate()) is not None:
            values["records_per_second"] = rate
        if (torch := sys.modules.get("torch")) and torch.cuda.is_available():
            values["gpu_memory_peak_bytes"] = torch.cuda.max_memory_allocated()
        for name, value in values.items():
            self._gauges[f"autocoder_stage_{name}"].labels(self.flow, self.host, stage.name).set(
                value
            )
        # A full disk fails the stage with a message of its own, which must not be hidden here.
        with suppress(OSError):
            self._file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            self._hold_lock()
            write_to_textfile(str(self._file), self._registry)

    def _hold_lock(self) -> None:
        """Locks a file next to the metrics until this listener or its process ends."""
        if self._lock is None:
            lock = os.open(self._file.with_suffix(".lock"), os.O_WRONLY | os.O_CREAT, 0o600)
            weakref.finalize(self, os.close, lock)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(lock, f"{self.flow}\n{self.host}\n".encode())
            self._lock = lock
