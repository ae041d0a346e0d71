"""Compares a frozen encoder's passes with transformers' own, in the same precision and in batches
by tokens.

    python benchmarks/encoding.py [--records 300]

Claim: within 10% of transformers in float32 and in bfloat16. It measures processor time of one
thread, so other load on the machine hardly matters.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import workload
from torch import Tensor

from mechanisms.model import classifier, encoder_files
from mechanisms.model.classifier import Classifier, mean
from mechanisms.model.config import ModelConfig, Precision
from mechanisms.model.inputs import TokenInputs, length_sorted_batches
from mechanisms.model.precision import computing, resolved
from mechanisms.model.threads import using
from storage.demo_data import narratives

_CPU = torch.device("cpu")


def main() -> None:
    parser = workload.arguments(__doc__, repeats=3)
    parser.add_argument(
        "--records", type=int, default=300, help="synthetic narratives (default: 300)"
    )
    options = parser.parse_args()
    precisions: tuple[Precision, ...] = (
        ("float32", "bfloat16") if resolved("auto", "cpu") == "bfloat16" else ("float32",)
    )
    config = ModelConfig(encoder=encoder_files.PACKAGED, trainable="head", pooling="mean")
    tokens = classifier.tokenize(config, narratives(options.records, seed=1))
    contestants: dict[str, Callable[[], Tensor]] = {}
    for name in precisions:
        model = classifier.build(
            config.model_copy(update={"precision": name}), num_labels=2, seed=0
        )
        contestants |= {
            name: partial(_ours, model, tokens),
            f"transformers {name}": _transformers(name, tokens),
        }
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    features: dict[str, Tensor] = {}
    with using(1):
        for _ in range(options.repeats):
            for name, run in contestants.items():
                start = time.process_time()
                features[name] = run()
                seconds[name].append(time.process_time() - start)
    exact = features["transformers float32"]
    workload.report(
        {
            "benchmark": "encoding",
            "device": "cpu",
            "processor": torch.cpu.get_capabilities().get("cpu_name", "unknown"),
            "instructions": torch.backends.cpu.get_cpu_capability(),
            "records": len(tokens),
            "records_a_second_of_a_thread": {
                n: round(len(tokens) / min(took), 1) for n, took in seconds.items()
            },
            "against_transformers": {
                n: workload.ratio(seconds[f"transformers {n}"], seconds[n]) for n in precisions
            },
            "smallest_cosine": {
                n: float(torch.cosine_similarity(features[n], exact).min()) for n in precisions
            },
        },
        options.json,
    )


def peak(precision: Precision) -> float:
    """Returns GFLOP/s of MiniLM's widest product in this thread: the best of twenty runs by the
    thread's processor time.
    """
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


def _ours(model: Classifier, tokens: TokenInputs) -> Tensor:
    return model.encode(tokens).features


def _transformers(precision: Precision, tokens: TokenInputs) -> Callable[[], Tensor]:
    from transformers import AutoModel

    dtype = torch.bfloat16 if precision == "bfloat16" else torch.float32
    encoder: Any = AutoModel.from_pretrained(
        encoder_files.resolve(encoder_files.PACKAGED), dtype=dtype
    ).eval()

    def run() -> Tensor:
        features = torch.empty(len(tokens), encoder.config.hidden_size)
        with torch.inference_mode():
            for index in length_sorted_batches(tokens, batch_size=16):
                batch = tokens.batch(index, _CPU)
                features[index] = mean(encoder(**batch).last_hidden_state, batch["attention_mask"])
        return features

    return run


if __name__ == "__main__":
    main()
