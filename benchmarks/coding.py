"""Compares `autocoder code` with onnxruntime, sentence-transformers, transformers' pipeline and
CTranslate2 (if installed) on the same narratives and released encoder, in float32 and in eight
bits, on one core and on two.

    python benchmarks/coding.py --bundle bundles/3f2a9c41d07b65e8 --narratives osha.csv

The time of `autocoder code` is that of the whole job: read the file twice, code in batches sorted
by length, repeat near ties of eight bits in float32, save answers for a resume, and write the
output. onnxruntime runs the graph like the card's program, 32 narratives at a time in their order.
The other three compute only the encoder's features (head and word features, which are small
products, are left out in their favour), with their defaults and in batches of 32. All code the same
narratives in turn. A ratio is the median over the rounds. Each number of cores has a process of its
own.
"""

from __future__ import annotations

import argparse
import csv
import importlib
import itertools
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import torch
import workload

from mechanisms.model import export
from mechanisms.model.scorer import INT8, Graph, margin_errors, softmax
from storage.tables.narratives import Narratives
from storage.tables.reader import survey
from tasks.coding.bundles import Bundles
from tasks.coding.coder import Coder, open_bundle
from tasks.coding.columns import AnswerColumns
from tasks.coding.job import CodingJob, run

_CPU = torch.device("cpu")
_BATCH = 32


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--bundle", type=Path, required=True, help="a released bundle with graphs")
    parser.add_argument("--narratives", type=Path, required=True, help="CSV")
    parser.add_argument("--column", default="Final Narrative")
    parser.add_argument(
        "--records", type=int, default=5000, help="narratives for the agreement (default: 5000)"
    )
    parser.add_argument(
        "--rounds",
        type=int,
        default=5,
        help="timing rounds, each with other narratives (default: 5)",
    )
    parser.add_argument(
        "--chunk", type=int, default=1000, help="narratives a round (default: 1000)"
    )
    parser.add_argument(
        "--cores", type=int, nargs="*", default=(1, 2), help="each in a process of its own"
    )
    parser.add_argument("--skip", nargs="*", default=(), choices=("agreement", "streaming"))
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    parser.add_argument("--measure", type=int, help=argparse.SUPPRESS)
    options = parser.parse_args()
    with options.narratives.open(newline="", encoding="utf-8", errors="replace") as file:
        rows = itertools.islice(csv.DictReader(file), options.records)
        texts = [row[options.column] for row in rows if row[options.column].strip()]
    if options.measure:
        print(json.dumps(_speeds(options.bundle, texts, options.rounds, options.chunk)))
        return
    cores = {}
    for number in options.cores:
        command = [sys.executable, __file__, *sys.argv[1:], "--measure", str(number)]
        affinity = set(sorted(os.sched_getaffinity(0))[:number])
        environment = os.environ | dict.fromkeys(
            ("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(number)
        )
        done = subprocess.run(
            command,
            env=environment,
            check=True,
            capture_output=True,
            text=True,
            preexec_fn=partial(os.sched_setaffinity, 0, affinity),
        )
        cores[number] = json.loads(done.stdout.splitlines()[-1])
    agreement = (
        {} if "agreement" in options.skip else {"agreement": _agreement(options.bundle, texts)}
    )
    streaming = {} if "streaming" in options.skip else {"reading_a_million_rows": _streaming()}
    result = (
        {"benchmark": "coding", "device": "cpu", "records_a_round": options.chunk, "cores": cores}
        | agreement
        | streaming
    )
    workload.report(result, options.json)


def _speeds(bundle: Path, texts: list[str], rounds: int, chunk: int) -> dict[str, Any]:
    contestants = _contestants(bundle)
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for work in contestants.values():
        work(texts[:_BATCH])
    for turn in range(rounds):
        chunk_texts = [texts[(turn * chunk + place) % len(texts)] for place in range(chunk)]
        for name, work in contestants.items():
            times[name].append(
                workload.seconds(partial(work, chunk_texts), _CPU) / len(chunk_texts)
            )
    return {
        "narratives_a_second": {
            name: [round(1 / took) for took in seconds] for name, seconds in times.items()
        },
        "against": {
            ours: {
                rival: workload.ratio(times[rival], times[ours])
                for rival in times
                if not rival.startswith("ours")
            }
            for ours in times
            if ours.startswith("ours")
        },
    }


def _contestants(bundle: Path) -> dict[str, Callable[[list[str]], None]]:
    from sentence_transformers import SentenceTransformer
    from transformers import pipeline

    encoder = str(bundle / export.ENCODER)
    pipe: Any = pipeline("feature-extraction", model=encoder, device="cpu", dtype="float32")
    sentences = SentenceTransformer(encoder, device="cpu", model_kwargs={"dtype": "float32"})
    longest = sentences.max_seq_length

    def piped(some: list[str], **batching: Any) -> None:
        for _ in pipe(
            some,
            tokenize_kwargs={"truncation": True, "max_length": longest},
            return_tensors=True,
            **batching,
        ):
            pass

    def graph(loaded: Graph, some: list[str]) -> None:
        for start in range(0, len(some), _BATCH):
            loaded.session.run(["codes"], {"texts": some[start : start + _BATCH]})

    contestants: dict[str, Callable[[list[str]], None]] = {}
    for precision in ("float32", "int8") if (bundle / INT8).is_file() else ("float32",):
        contestants[f"ours {precision}"] = partial(_ours, open_bundle(bundle, precision=precision))
        contestants[f"onnxruntime {precision}"] = partial(
            graph, Graph.load(bundle, int8=precision == "int8")
        )
    contestants["sentence-transformers"] = lambda some: void(
        sentences.encode(some, batch_size=_BATCH)
    )
    contestants["pipeline, defaults"] = piped
    contestants["pipeline, batches"] = partial(piped, batch_size=_BATCH)
    if find_spec("ctranslate2") is not None:
        contestants["CTranslate2 int8"] = _translate(encoder, sentences.tokenizer, longest)
    return contestants


def _translate(encoder: str, tokenizer: Any, longest: int | None) -> Callable[[list[str]], None]:
    """Returns a function that runs the encoder with its matrices in eight bits.
    Texts are sorted, as in the others.
    """
    library: Any = importlib.import_module("ctranslate2")
    with tempfile.TemporaryDirectory() as folder:
        library.converters.TransformersConverter(encoder).convert(
            folder, quantization="int8", force=True
        )
        model = library.Encoder(
            folder, device="cpu", intra_threads=int(os.environ["OMP_NUM_THREADS"])
        )

    def work(some: list[str]) -> None:
        tokens = tokenizer(some, truncation=True, max_length=longest)["input_ids"]
        tokens.sort(key=len)
        for start in range(0, len(tokens), _BATCH):
            model.forward_batch(tokens[start : start + _BATCH])

    return work


def void(_: Any) -> None:
    """Discards a result."""


def _agreement(bundle: Path, texts: list[str]) -> dict[str, Any]:
    """Compares eight bits with float32: the share of equal best codes, without and with repeats,
    and the differences of scores.
    """
    if not (bundle / INT8).is_file():
        return {}
    quick: Any = open_bundle(bundle, precision="int8").model
    exact, rounded, coded = quick.exact.logits(texts), quick.rounded(texts), quick.logits(texts)
    far = np.abs(softmax(exact) - softmax(rounded)).max(axis=1)
    return {
        "records": len(texts),
        "same_code_as_they_are": round(float((exact.argmax(1) == rounded.argmax(1)).mean()), 5),
        "same_code_as_coded": round(float((exact.argmax(1) == coded.argmax(1)).mean()), 5),
        "looked_at_again": round(float((coded != rounded).any(axis=1).mean()), 5),
        "near_tie_in_logits": quick.near_tie,
        "largest_error_of_a_margin_in_logits": round(float(margin_errors(rounded, exact).max()), 5),
        "difference_of_a_probability": {
            "median": float(np.median(far)),
            "largest": round(float(far.max()), 5),
        },
    }


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
    """Measures memory and time of everything except the model on a million rows:
    survey, pieces, parts, merge.
    """
    import resource

    class Nothing(Graph):
        def logits(self, texts: Any) -> Any:
            return np.zeros((len(texts), 2), np.float32)

    coder = Coder("none", "none", "none", "none", Path(), Nothing(None, ("1", "2")), {}, None, None)
    with tempfile.TemporaryDirectory() as folder:
        source = Path(folder) / "in.csv"
        with source.open("w", newline="", encoding="utf-8") as file:
            csv.writer(file).writerows(
                [["Text"], *([f"Employee {n} fell from a ladder. " * 8] for n in range(10**6))]
            )
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        start = time.perf_counter()
        run(Bundles.of(coder), _job(source, Path(folder) / "out.csv"))
        took = time.perf_counter() - start
        size = source.stat().st_size
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before
    return {
        "seconds": round(took, 1),
        "file_mb": round(size / 1e6),
        "memory_grown_mb": round(grown / 1e3),
    }


if __name__ == "__main__":
    main()
