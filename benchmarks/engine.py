#!/usr/bin/env python
"""Measures the engine and the ranks: the overhead of a part, and one process against several in the
same run.

    python benchmarks/engine.py [--records 4000] [--processes 2] [--parts encode code lora]
    python benchmarks/engine.py --table --records 20000 [--tiny-encoder]

Claims: a part has at most 50 ms of overhead. Two processes with one thread each encode and code at
least 1.7 times as fast as one process with one thread, with identical bytes, and two ranks with one
thread each run the steps of DP-SGD on LoRA adapters at least 1.7 times as fast as one. Word
features from titles, which are computed once per code list, are left out. The times of encoding and
coding include loading models and starting processes; steps are timed from the first one on. Needs
as many idle cores as processes. Prints one JSON object.

`--table` prints a Markdown table instead: seconds of each stage from the records to their codes, by
one process and by several of one thread each, and the ratio. It runs the commands of `scale.py`.
"""

from __future__ import annotations

import argparse
import csv
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import scale
import torch
import workload

from flows.commands import profiles
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Task
from mechanisms.model import classifier, export, onnx_graph
from mechanisms.model.config import ModelConfig
from storage.artifacts import ArtifactRef
from storage.demo_data import DemoData, write_demo_data
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import open_bundle
from tasks.coding.columns import AnswerColumns
from tasks.coding.distribute import distribute
from tasks.coding.job import CodingJob, run
from tasks.fitting import data, fits
from tasks.fitting.ingest import ingest_records
from tasks.parameters import RetrainParameters
from tasks.running import engine, progress
from tasks.running.stage import Context, run_step

Measured = tuple[float, object]
"""Seconds, and a result that must be equal."""


STAGES = {
    "ingest": ("read",),
    "encode": ("encode",),
    "fit": ("plan", "train"),
    "evaluate": ("predict", "score"),
}
"""Rows of the table, with the stages of `train` that each is made of."""


def table(records: int, folder: Path, processes: int, *, tiny: bool) -> str:
    """Returns the table of one process against several."""
    settings = []
    if tiny:
        encoder = workload.tiny_encoder(folder / "tiny-encoder")
        settings = [setting.format(encoder) for setting in scale.TINY]
    alone, together = (
        _seconds(scale.measure(records, folder, settings, processes=number))
        for number in (1, processes)
    )
    lines = [
        f"| {records:,} records | one process | {processes} processes | times as fast |",
        "|---|---:|---:|---:|",
    ]
    for name, seconds in alone.items():
        ratio = f"{seconds / together[name]:.2f}" if together[name] else "–"
        lines.append(f"| {name} | {seconds:,.1f} s | {together[name]:,.1f} s | {ratio} |")
    return "\n".join(lines)


def _seconds(result: dict[str, Any]) -> dict[str, float]:
    runs = {run["command"]: run for run in result["runs"]}
    stages = runs["retrain"]["stages"]
    seconds = {
        row: sum(stage["seconds"] or 0.0 for stage in stages if stage["stage"] in names)
        for row, names in STAGES.items()
    }
    return seconds | {"code": runs["code"]["seconds"]}


def nothing(part: str) -> str:
    """Computes nothing."""
    return part


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--records", type=int, default=4_000, help="narratives to encode and code (default: 4000)"
    )
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument(
        "--steps", type=int, default=8, help="DP-SGD steps, each over 64 narratives (default: 8)"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=("encode", "code", "lora"), default=("encode", "code", "lora")
    )
    parser.add_argument(
        "--table", action="store_true", help="print a table of all stages, and nothing else"
    )
    parser.add_argument(
        "--tiny-encoder", action="store_true", help="with --table: one of ten thousand parameters"
    )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    several = options.processes
    torch.set_num_threads(1)
    os.environ |= {
        "OMP_NUM_THREADS": "1",
        "MKL_NUM_THREADS": "1",
    }  # for onnxruntime and for further processes
    with tempfile.TemporaryDirectory() as folder:
        if options.table:
            print(table(options.records, Path(folder), several, tiny=options.tiny_encoder))
            return
        written = write_demo_data(Path(folder) / "data", records=options.records, seed=1)
        chosen = profiles.parameters(
            "demo-formal",
            ["model.lexical=none"],
            _given(written),
        )
        measures: dict[str, Callable[[int], Measured]] = {
            "encode": partial(_encode, Path(folder), chosen),
            "code": partial(_code, Path(folder), written.csv),
            "lora": partial(_lora, Path(folder), options.steps),
        }
        result: dict[str, Any] = {
            "records": options.records,
            "load_before": os.getloadavg()[0],
        } | _parts(str(several))
        for name in options.parts:
            (alone, first), (together, second) = measures[name](1), measures[name](several)
            seconds = {"1": round(alone, 1), str(several): round(together, 1)}
            result[name] = {"seconds_by_processes": seconds, "speed_up": round(alone / together, 2)}
            result[name] |= {} if first is None else {"same": first == second}
    result |= {"load_after": os.getloadavg()[0], "cores": os.cpu_count()}
    workload.report(result, options.json)


def _parts(several: str) -> dict[str, float]:
    started = time.perf_counter()
    engine.map_parts(nothing, ["x"] * int(several), engine=several)
    up = time.perf_counter() - started
    costs = []
    for _ in range(3):
        started = time.perf_counter()
        engine.map_parts(nothing, ["x"] * 1000, engine=several)
        costs.append((time.perf_counter() - started) / 1000)
    return {"engine_up_s": round(up, 1), "part_ms": round(1000 * statistics.median(costs), 2)}


def _encode(folder: Path, chosen: RetrainParameters, processes: int) -> Measured:
    home = folder / f"encode-{processes}"
    if processes > 1:  # the same key gives the same digests
        shutil.copytree(folder / "encode-1", home, ignore=lambda _, names: {"features"} & {*names})
    context, dataset = _ingested(home, chosen, engine=str(processes) if processes > 1 else "")
    step = data.prepare(chosen.model, dataset)
    started = time.perf_counter()
    digest = run_step(context, step).sha256
    return time.perf_counter() - started, digest


def _ingested(home: Path, chosen: RetrainParameters, **options: Any) -> tuple[Context, ArtifactRef]:
    context = Context(home=str(home), **options)
    context.workspace.create()
    return context, run_step(context, ingest_records(chosen.data))


def _code(folder: Path, narratives: Path, processes: int) -> Measured:
    bundle = _bundle(folder / f"bundle-{processes}")
    coder = open_bundle(bundle)
    column = Narratives(("Final Narrative",))
    answers = (AnswerColumns(1, None, grouped=False),)
    job = CodingJob(
        survey(narratives, text_columns=column.columns),
        folder / f"coded-{processes}.csv",
        column,
        answers,
    )
    bundles = Bundles.of(coder)
    workers = partial(
        distribute,
        bundles,
        job,
        engine=str(processes),
        report=lambda done, total: None,
        bundle=bundle,
    )
    started = time.perf_counter()
    run(bundles, job, distribute=workers if processes > 1 else None)
    return time.perf_counter() - started, job.out.read_bytes()


def _bundle(folder: Path) -> Path:
    """Writes a bundle with an untrained head on the packaged encoder, which is
    sufficient for speed.
    """
    config = ModelConfig(encoder="packaged-minilm", trainable="head", pooling="mean")
    codes = [f"{code:03}" for code in range(workload.LABELS)]
    export.save(classifier.build(config, num_labels=len(codes), seed=0), folder, codes=codes)
    (folder / "model.onnx").write_bytes(onnx_graph.graph(export.load(folder), folder))
    (folder / "privacy_statement.json").write_text(
        '{"release_id": "untrained"}\n', encoding="utf-8"
    )
    with (folder / "codelist.csv").open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([["code", "title"], *([code, ""] for code in codes)])
    return folder


class _Steps(progress.Listener):
    def __init__(self) -> None:
        self.reports: list[tuple[float, int]] = []

    def report(self, label: str, done: int, total: int | None) -> None:
        self.reports.append((time.perf_counter(), done))


def _given(written: DemoData) -> dict[str, Any]:
    files = {"data.source": [str(written.csv)], "data.codelist": str(written.codelist)}
    return files | {"method.target_epsilon": 5.0}


def _lora(folder: Path, steps: int, processes: int) -> Measured:
    written = write_demo_data(
        folder / f"few-{processes}", records=96 * steps, seed=1
    )  # two thirds are for training
    chosen = profiles.parameters("demo-formal", (), _given(written))
    context, dataset = _ingested(folder / f"lora-{processes}", chosen, processes=processes)
    model = ModelConfig(encoder="packaged-minilm", trainable="lora", pooling="mean")
    prepared = run_step(context, data.prepare(model, dataset))
    classes, records = (
        fits.label_count(context.store.open(dataset)),
        context.store.figures(dataset)["train"],
    )
    mechanism = DpSgd(batch_size=64, epochs=1)
    planned = run_step(
        context,
        fits.plan("dp-sgd", mechanism, Task(records=records, classes=classes, target_epsilon=5)),
    )
    step = fits.fit(
        "dp-sgd", mechanism, model, seed=0, dataset=dataset, prepared=prepared, planned=planned
    )
    heard = _Steps()
    with progress.listening(heard):
        run_step(context, step)
    (first, begun), (last, done) = heard.reports[0], heard.reports[-1]
    return (last - first) / (done - begun) * steps, None


if __name__ == "__main__":
    main()
