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
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import workload

from mechanisms.model import export
from mechanisms.model.precision import fastest
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
    coder = Coder.open(options.bundle, precision="auto")
    limit = {"truncation": True, "max_length": coder.model.max_length}

    def piped(pipe: Any, **batching: Any) -> Callable[[], None]:
        def run() -> None:
            for _ in pipe(texts, **limit, **batching):
                pass

        return run

    contestants = {"ours": lambda: _ours(coder, texts)}
    for precision in ("float32", "bfloat16") if fastest() == "bfloat16" else ("float32",):
        pipe = _pipeline(options.bundle, precision)
        contestants |= {f"default {precision}": piped(pipe), f"batch_32 {precision}": piped(pipe, batch_size=32)}
    times = workload.interleaved(contestants, repeats=options.repeats, device=torch.device("cpu"), warm_up=False)
    default, batched = (
        min(workload.ratio(took, times["ours"]) for name, took in times.items() if name.startswith(kind))
        for kind in ("default", "batch_32")
    )
    wanted = (8, 4) if coder.model.precision == "bfloat16" else (3, 1.5)
    workload.report(
        {
            "benchmark": "coding",
            "device": "cpu",
            "precision": coder.model.precision,
            "agreement": _agreement(options.bundle, texts),
            "records": len(texts),
            "seconds": {name: workload.median(took) for name, took in times.items()},
            "narratives_a_second": round(len(texts) / workload.median(times["ours"])),
            "against_default": default,
            "against_default_target": f">= {wanted[0]}",
            "against_batch_32": batched,
            "against_batch_32_target": f">= {wanted[1]}",
            "met": default >= wanted[0] and batched >= wanted[1],
            "reading_a_million_rows": _streaming(),
        },
        options.json,
    )


def _agreement(bundle: Path, texts: list[str]) -> dict[str, float]:
    """bfloat16 against float32: narratives with the same best code, and of the others the widest margin in float32."""
    exact, rounded = (Coder.open(bundle, precision=precision).scores(texts) for precision in ("float32", "bfloat16"))
    differs = exact.argmax(-1) != rounded.argmax(-1)
    best = exact[differs].topk(2, dim=-1).values
    return {
        "same_code": round(1 - float(differs.float().mean()), 5),
        "same_code_target": 0.998,
        "widest_margin_of_the_others": round(float((best[:, 0] - best[:, 1]).max()) if len(best) else 0.0, 5),
        "largest_difference_of_a_probability": round(float((exact - rounded).abs().max()), 5),
    }


def _pipeline(bundle: Path, precision: str) -> Any:
    from transformers import pipeline

    pooled = (bundle / "modules.json").is_file()
    below = bundle / export.ENCODER
    source = below if below.is_dir() else bundle
    task: Any = "feature-extraction" if pooled else "text-classification"
    made: Any = pipeline(task, model=str(source), device="cpu", dtype=precision)
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
