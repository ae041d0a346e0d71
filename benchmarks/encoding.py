"""Measures a frozen encoder's passes against transformers' and against what the processor can multiply.

    python benchmarks/encoding.py [--records 2000] [--data FILE.csv --column "Final Narrative"]

Claim: in float32 and, where the processor has it, in bfloat16 the packed passes reach 0.85 of `gflops_of_a_thread` on
every thread, counting only matrix products of the narratives' tokens: no padding, no attention. On one thread
processor time counts, so that other work on the machine hardly matters; on all threads the clock.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
import workload
from torch import Tensor

from mechanisms.model import classifier
from mechanisms.model.classifier import Classifier, mean_pool
from mechanisms.model.config import ModelConfig, Precision
from mechanisms.model.inputs import TokenInputs, length_sorted_batches
from mechanisms.model.precision import computing, fastest
from mechanisms.model.threads import using
from storage.demo_data import narratives
from storage.tables.reader import survey

_CPU = torch.device("cpu")


def main() -> None:
    """Measures, and prints one JSON object."""
    parser = workload.arguments(__doc__, repeats=3)
    parser.add_argument("--records", type=int, default=2000, help="narratives (default: 2000, invented)")
    parser.add_argument("--data", type=Path, help="CSV of narratives instead")
    parser.add_argument("--column", default="Final Narrative", help="their column")
    options = parser.parse_args()
    texts = narratives(options.records, seed=1) if options.data is None else _read(options.data, options.column)
    texts = texts[: options.records]
    precisions: tuple[Precision, ...] = ("float32", "bfloat16") if fastest() == "bfloat16" else ("float32",)
    config = ModelConfig(encoder=classifier.encoder_files.PACKAGED, trainable="head", pooling="mean")
    models = {
        name: classifier.build(config.model_copy(update={"precision": name}), num_labels=2, seed=0)
        for name in precisions
    }
    tokens = classifier.tokenize(config, texts)
    work = float(tokens.lengths.sum()) * _products(models["float32"])
    contestants: dict[str, Callable[[], Tensor]] = {"transformers": partial(_transformers, models["float32"], tokens)}
    contestants |= {name: partial(_packed, model, tokens) for name, model in models.items()}
    peaks: dict[Precision, list[float]] = {name: [] for name in precisions}
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    features: dict[str, Tensor] = {}
    with using(1):
        for _ in range(options.repeats):
            for name in precisions:
                peaks[name].append(peak(name))
            for name, run in contestants.items():
                start = time.process_time()
                features[name] = run()
                seconds[name].append(time.process_time() - start)
    peak_of = {name: max(values) for name, values in peaks.items()}
    clock = {name: min(workload.seconds(contestants[name], _CPU) for _ in range(2)) for name in precisions}
    threads, exact = torch.get_num_threads(), features["transformers"]
    one = {name: work / min(seconds[name]) / 1e9 for name in precisions}
    every = {name: work / clock[name] / 1e9 for name in precisions}
    workload.report(
        {
            "benchmark": "encoding",
            "device": "cpu",
            "processor": torch.cpu.get_capabilities().get("cpu_name", "unknown"),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "records": len(texts),
            "distinct": len(set(texts)),
            "tokens_per_record": round(float(tokens.lengths.float().mean()), 1),
            "gflops_of_a_thread": {name: round(value) for name, value in peak_of.items()},
            "records_a_second_of_a_thread": {name: round(len(texts) / min(took), 1) for name, took in seconds.items()},
            "against_transformers": {
                name: workload.ratio(seconds["transformers"], seconds[name]) for name in precisions
            },
            "share_of_a_thread": {name: round(one[name] / peak_of[name], 3) for name in precisions},
            "share_of_all_threads": {name: round(every[name] / peak_of[name] / threads, 3) for name in precisions},
            "share_target": ">= 0.85",
            "largest_difference": {name: float((features[name] - exact).abs().max()) for name in precisions},
            "smallest_cosine": {
                name: float(torch.cosine_similarity(features[name], exact).min()) for name in precisions
            },
        },
        options.json,
    )


def peak(precision: Precision) -> float:
    """Returns GFLOP/s of MiniLM's widest product in this thread, the best of twenty by the thread's processor time."""
    rows, width, wide = 2048, 384, 1536
    layer = torch.nn.Linear(width, wide).requires_grad_(False)
    x, best = torch.randn(rows, width), 0.0
    with computing(precision, _CPU), torch.inference_mode():
        for _ in range(20):
            start = time.thread_time()
            for _ in range(8):
                layer(x)
            best = max(best, 8 * 2 * rows * width * wide / (time.thread_time() - start) / 1e9)
    return best


def _products(model: Classifier) -> float:
    """Returns the multiplications and additions of a token in the encoder's linear layers."""
    whole: Any = model.whole
    layers = (part for part in whole.encoder.encoder.modules() if isinstance(part, torch.nn.Linear))
    return sum(2.0 * layer.weight.numel() for layer in layers)


def _packed(model: Classifier, tokens: TokenInputs) -> Tensor:
    return model.encode(tokens).features


def _transformers(model: Classifier, tokens: TokenInputs) -> Tensor:
    """Returns the features by transformers' own passes over batches of sixteen, sorted by length."""
    whole: Any = model.whole
    features = torch.empty(len(tokens), 384)
    with torch.no_grad(), computing("float32", _CPU):
        for index in length_sorted_batches(tokens, batch_size=16):
            features[index] = mean_pool(whole.encoder, **tokens.batch(index, _CPU))
    return features


def _read(data: Path, column: str) -> list[str]:
    return [text for (text,) in survey(data, text_columns=(column,)).text_rows([column])]


if __name__ == "__main__":
    main()
