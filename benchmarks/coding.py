"""`autocoder code` against transformers' pipeline, on the same narratives and the same released encoder.

    python benchmarks/coding.py --bundle bundles/3f2a9c41d07b65e8 --narratives osha.csv

The pipeline is the feature-extraction one for a mean-pooled bundle (whose head is a matrix product, left out in its
favour) and the text-classification one for a standard head: with its defaults, which take one narrative at a time, and
with batch 32, in float32 and, where the processor has instructions for it, in bfloat16; the faster one counts. Ours is
the whole job of `autocoder code`: the file read twice, coded in length-sorted batches of a token budget side by side,
near ties once more in float32, answers saved for a resume, the output written. No narrative is spared because it
occurred before. All take the same narratives in turn, a few hundred at a time; a ratio is the median over the rounds.
"""

from __future__ import annotations

import argparse
import csv
import itertools
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import encoding
import torch
import workload

from mechanisms.model import encoders, export
from mechanisms.model.classifier import MeanPooled, mean_pool
from mechanisms.model.config import Precision
from mechanisms.model.inputs import token_budget_batches
from mechanisms.model.precision import fastest
from mechanisms.model.rounded import RoundedModel
from mechanisms.model.threads import using
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Coder, open_bundle
from tasks.coding.columns import AnswerColumns
from tasks.coding.job import CodingJob, run

_CPU = torch.device("cpu")


def main() -> None:
    """Measures and prints one JSON object."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bundle", type=Path, required=True, help="a released bundle")
    parser.add_argument("--narratives", type=Path, required=True, help="CSV")
    parser.add_argument("--column", default="Final Narrative")
    parser.add_argument("--records", type=int, default=5000, help="narratives for the agreement (default: 5000)")
    parser.add_argument("--rounds", type=int, default=5, help="of the timing, each with other narratives (default: 5)")
    parser.add_argument("--chunk", type=int, default=1000, help="narratives a round (default: 1000)")
    parser.add_argument("--every", type=int, default=1, help="pipelines take one narrative in so many (default: 1)")
    parser.add_argument("--skip", nargs="*", default=(), choices=("agreement", "streaming"))
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    options = parser.parse_args()
    with options.narratives.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = itertools.islice(csv.DictReader(file), options.records)
        texts = [row[options.column] for row in rows if row[options.column].strip()]
    coder = open_bundle(options.bundle, precision="auto")
    limit = {"truncation": True, "max_length": coder.model.max_length}

    def piped(pipe: Any, **batching: Any) -> Callable[[list[str]], None]:
        def run(some: list[str]) -> None:
            for _ in pipe(some, **limit, **batching):
                pass

        return run

    contestants: dict[str, Callable[[list[str]], None]] = {"ours": lambda some: _ours(coder, some)}
    has_bfloat16 = fastest() == "bfloat16"  # elsewhere it is emulated, ten times as slow, and nobody is offered it
    precisions: tuple[Precision, ...] = ("float32", "bfloat16") if has_bfloat16 else ("float32",)
    for precision in precisions:
        pipe = _pipeline(options.bundle, precision)
        contestants |= {f"default {precision}": piped(pipe), f"batch_32 {precision}": piped(pipe, batch_size=32)}
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for work in contestants.values():
        work(texts[:32])
    for round_ in range(options.rounds):
        some = [texts[(round_ * options.chunk + at) % len(texts)] for at in range(options.chunk)]
        for name, work in contestants.items():
            own = some if name == "ours" else some[:: options.every]
            times[name].append(workload.seconds(partial(work, own), _CPU) / len(own))
    default, batched = (
        min(workload.ratio(took, times["ours"]) for name, took in times.items() if name.startswith(kind))
        for kind in ("default", "batch_32")
    )
    with using(1):
        peaks = {kind: encoding.peak(kind) for kind in precisions}
    wanted = (8, 4) if coder.model.precision == "bfloat16" else (3, 1.5)
    agrees = has_bfloat16 and "agreement" not in options.skip
    agreement = {"agreement": _agreement(options.bundle, texts)} if agrees else {}
    workload.report(
        {
            "benchmark": "coding",
            "device": "cpu",
            "precision": coder.model.precision,
            "records_a_round": options.chunk,
            "narratives_a_second": {name: [round(1 / took) for took in rounds] for name, rounds in times.items()},
            "against_default": default,
            "against_default_target": f">= {wanted[0]}",
            "against_batch_32": batched,
            "against_batch_32_target": f">= {wanted[1]}",
            "met": default >= wanted[0] and batched >= wanted[1],
            "gflops_of_a_thread": {kind: round(peak) for kind, peak in peaks.items()},
        }
        | agreement
        | ({} if "streaming" in options.skip else {"reading_a_million_rows": _streaming()}),
        options.json,
    )


def _agreement(bundle: Path, texts: list[str]) -> dict[str, Any]:
    """bfloat16 against float32: the same best code, how near a tie the others were, probabilities, features."""
    model = open_bundle(bundle, precision="bfloat16").model
    exact, rounded, coded = model.logits_in("float32", texts), model.logits_in("bfloat16", texts), model.logits(texts)
    first, second = exact.topk(2, dim=-1).values.unbind(-1)

    def against(scores: torch.Tensor) -> dict[str, Any]:
        differs = exact.argmax(-1) != scores.argmax(-1)
        margin = (first - second)[differs]
        return {
            "same_code": round(1 - float(differs.float().mean()), 5),
            "widest_margin_of_the_others_in_logits": round(float(margin.max()) if len(margin) else 0.0, 5),
        }

    far = (exact.softmax(-1) - coded.softmax(-1)).abs().amax(-1)
    return {
        "records": len(texts),
        "without_the_second_look": against(rounded),
        "as_coded": against(coded),
        "same_code_target": ">= 0.998, the others near ties",
        "looked_at_again": round(float((coded != rounded).any(-1).float().mean()), 5),
        "largest_error_of_a_margin_in_logits": round(float(export.margin_errors(model, texts).max()), 5),
        "difference_of_a_probability": {"median": float(far.median()), "largest": round(float(far.max()), 5)},
        "smallest_cosine_of_features": _cosine(model, texts),
    }


def _cosine(model: export.Released, texts: list[str]) -> float | None:
    """Returns the smallest cosine of the rounded encoder's features and float32's; None unless the head is linear."""
    if not isinstance(model.model, MeanPooled) or (rounded := RoundedModel.of(model.model)) is None:
        return None
    tokens = encoders.token_inputs(model.tokenizer, texts, max_length=model.max_length)
    smallest = 1.0
    with torch.inference_mode():
        for index in token_budget_batches(tokens, budget=1024):
            batch = tokens.batch(index, _CPU)
            exact, ours = mean_pool(model.model.encoder, **batch), rounded.features(batch)
            smallest = min(smallest, float(torch.cosine_similarity(exact, ours).min()))
    return round(smallest, 6)


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
    with tempfile.TemporaryDirectory() as folder:
        source, out = Path(folder) / "in.csv", Path(folder) / "out.csv"
        with source.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows([["Text"], *([text] for text in texts)])
        run(Bundles.of(coder), _job(source, out))


def _job(source: Path, out: Path) -> CodingJob:
    table = survey(source, text_columns=["Text"])
    return CodingJob(table, out, Narratives(("Text",)), (AnswerColumns(1, None, grouped=False),))


def _streaming() -> dict[str, float]:
    """Memory and time of everything but the model over a million rows: survey, pieces, parts, merge."""
    import resource

    from mechanisms.model.export import Released

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
        run(Bundles.of(coder), _job(source, Path(folder) / "out.csv"))
        took = time.perf_counter() - start
        size = source.stat().st_size
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {"seconds": round(took, 1), "file_mb": round(size / 1e6), "memory_grown_mb": round(grown / 1e3)}


if __name__ == "__main__":
    main()
