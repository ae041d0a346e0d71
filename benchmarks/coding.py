"""`autocoder code` against transformers' pipeline, on the same narratives and the same released encoder.

    python benchmarks/coding.py --bundle bundles/3f2a9c41d07b65e8 --narratives osha.csv

The pipeline is the feature-extraction one for a mean-pooled bundle (whose head is a matrix product, left out in its
favour) and the text-classification one for a standard head: with its defaults, which take one narrative at a time, and
with batch 32. Ours is the whole job of `autocoder code`: the file read twice, coded in length-sorted batches of a token
budget side by side, answers kept for a resume, the output written.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
import workload

from storage.tables.narratives import Narratives
from tasks.coding.coder import Coder
from tasks.coding.columns import Added
from tasks.coding.job import CodingJob, run


def main() -> None:
    """Measure and print one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="a released bundle")
    parser.add_argument("--narratives", type=Path, required=True, help="CSV")
    parser.add_argument("--column", default="Final Narrative")
    parser.add_argument("--records", type=int, default=5000, help="narratives (default: 5000)")
    parser.add_argument("--repeats", type=int, default=1, help="interleaved repeats (default: 1)")
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    with options.narratives.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = itertools.islice(csv.DictReader(file), options.records)
        texts = [row[options.column] for row in rows if row[options.column].strip()]
    coder = Coder.open(options.bundle)
    pipe = _pipeline(options.bundle)
    limit = {"truncation": True, "max_length": coder.model.max_length}

    def piped(**batching: Any) -> None:
        for _ in pipe(texts, **limit, **batching):
            pass

    times = workload.interleaved(
        {"ours": lambda: _ours(coder, texts), "default": piped, "batch_32": lambda: piped(batch_size=32)},
        repeats=options.repeats,
        device=torch.device("cpu"),
        warm_up=False,
    )
    default, batched = (workload.ratio(times[name], times["ours"]) for name in ("default", "batch_32"))
    workload.report(
        {
            "benchmark": "coding",
            "device": "cpu",
            "records": len(texts),
            "seconds": {name: workload.median(took) for name, took in times.items()},
            "narratives_a_second": round(len(texts) / workload.median(times["ours"])),
            "against_default": default,
            "against_default_target": ">= 3",
            "against_batch_32": batched,
            "against_batch_32_target": ">= 1.5",
            "met": default >= 3 and batched >= 1.5,
            "reading_a_million_rows": _streaming(),
        },
        options.json,
    )


def _pipeline(bundle: Path) -> Any:
    from transformers import pipeline

    pooled = (bundle / "modules.json").is_file()
    task: Any = "feature-extraction" if pooled else "text-classification"
    made: Any = pipeline(task, model=str(bundle), device="cpu")
    if not pooled:
        return made
    return lambda texts, *, batch_size=1, **limit: made(
        texts, batch_size=batch_size, tokenize_kwargs=limit, return_tensors=True
    )


def _ours(coder: Coder, texts: list[str]) -> None:
    from storage.tables.reading import survey

    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.csv", Path(folder) / "out.csv"
        with source.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["Text"], *([text] for text in texts)])
        table = survey(source, text_columns=["Text"])
        run(coder, CodingJob(table, out, Narratives(("Text",)), Added(1, None, None, grouped=False)))


def _streaming() -> dict[str, float]:
    """Memory and time of everything but the model over a million rows: survey, pieces, parts, merge."""
    import resource

    from mechanisms.model.export import Released
    from storage.tables.reading import survey

    class Nothing(Released):
        def logits(self, texts: Any) -> torch.Tensor:
            return torch.zeros(len(texts), 2)

    model = Nothing(torch.nn.Identity(), None, ("1", "2"), 128)
    coder = Coder("none", "none", "none", "none", model, {}, None, None)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.csv"
        with source.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["Text"], *([f"Employee {n} fell from a ladder. " * 8] for n in range(10**6))])
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        table = survey(source, text_columns=["Text"])
        run(
            coder,
            CodingJob(table, Path(folder) / "out.csv", Narratives(("Text",)), Added(1, None, None, grouped=False)),
        )
        took = time.perf_counter() - start
        size = source.stat().st_size
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": round(took, 1), "file_mb": round(size / 1e6), "memory_grown_mb": round(grown / 1e3)}


if __name__ == "__main__":
    main()
