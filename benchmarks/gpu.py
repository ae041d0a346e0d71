#!/usr/bin/env python
"""Measures a GPU in one run: the tests marked `cuda`, the achieved speed relative to the card's
peak, and the whole chain.

The first command runs on the machine with the card (docs/how-to/scale-out.md lists the
requirements). The second is a rehearsal: the same parts, reduced, on a simulated card.

    make gpu
    python benchmarks/gpu.py --device card --small

A simulated card (tests/devices/pretended.py) computes on the processor and refuses what a real card
refuses: a tensor that was left on the other device. `--device cpu` runs the parts on the processor
itself.

The encoder has distilRoBERTa's size (6 layers of 768, 82 million) and random weights, and the
narratives are random ids with OSHA's lengths, because only the speed is measured and not F1. Peaks
are measured in the same run with one large matrix product per precision. Each part is independent:
a failure is reported, the others continue, and the exit code is 1. Prints one JSON object.

Goals on CUDA: the risk pass reaches 40% of the float32 peak, and the paper's protocol (three fits
of 10 + 20 epochs and three passes over 500 draws, 5,346 records) takes less than 30 minutes.
benchmarks/README.md has the results.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

import torch
import workload
from torch.utils.flop_counter import FlopCounterMode

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Records, Run, Task
from mechanisms.model import classifier, export
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase
from mechanisms.model.inputs import TokenInputs
from mechanisms.model.training import train
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.swag_ppm import SwagPpm

ROOT = Path(__file__).parents[1]
PAPER_RECORDS, PAPER_EPOCHS, PAPER_DRAWS, PAPER_FITS = 5346, 30, 500, 3
SHARE_OF_PEAK, MINUTES = 0.40, 30
PARTS = ("tests", "peak", "risk_pass", "coding", "training", "dp_sgd", "chain")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--device", default="cuda", help="cuda (default), cpu, or card: a simulated one"
    )
    parser.add_argument(
        "--small", action="store_true", help="two narrow layers and few records: a rehearsal"
    )
    parser.add_argument(
        "--parts", nargs="+", choices=PARTS, metavar="PART", help=f"some of: {' '.join(PARTS)}"
    )
    parser.add_argument(
        "--json", type=Path, help="also write the report to this file, after every part"
    )
    options = parser.parse_args()
    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("torch sees no CUDA device; rehearse with --device card --small")
    if options.device == "card":
        sys.path.insert(0, str(ROOT / "tests" / "devices"))
        import_module("pretended")
    device, began = torch.device(options.device), time.perf_counter()
    result: dict[str, Any] = {
        "benchmark": "gpu",
        "device": options.device,
        "small": options.small,
        "failed": {},
    }
    with tempfile.TemporaryDirectory() as folder:
        encoder = encoder_shape(Path(folder) / "encoder", small=options.small)
        scale = REHEARSAL if options.small else WHOLE
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "tests": partial(tests, options.device),
            "peak": partial(peaks, device, scale),
            "risk_pass": partial(risk_pass, encoder, device, scale, Path(folder)),
            "coding": partial(coding, encoder, device, scale),
            "training": partial(training, encoder, device, scale),
            "dp_sgd": partial(descent, encoder, device, scale),
            "chain": partial(chain, encoder, device, scale, Path(folder)),
        }
        for name in options.parts or parts:
            print(f"{name} …", file=sys.stderr, flush=True)
            start = time.perf_counter()
            try:
                result[name] = parts[name]() | {"seconds": round(time.perf_counter() - start, 1)}
            except (
                Exception
            ) as error:  # a part that fails on a new card must not hide the others' figures
                result["failed"][name] = f"{type(error).__name__}: {error}"
            print(result.get(name) or result["failed"][name], file=sys.stderr, flush=True)
            if {"peak", "risk_pass", "training"} <= set(result):
                result["paper_protocol"] = protocol(result)
            result["seconds"] = round(time.perf_counter() - began, 1)
            workload.write(
                result, options.json
            )  # after every part, so that an interrupted machine leaves its results
    workload.report(result, options.json)
    sys.exit(1 if result["failed"] else 0)


class Scale(NamedTuple):
    """The size of each part."""

    records: int
    draws: int
    steps: int
    batch: int
    matrix: int
    chain_records: int
    chain_draws: int


WHOLE, REHEARSAL = Scale(8192, 32, 4, 512, 8192, 2000, 10), Scale(64, 2, 1, 16, 256, 32, 2)


def encoder_shape(folder: Path, *, small: bool) -> str:
    """Returns the folder of an untrained RoBERTa with distilRoBERTa's size."""
    from transformers import RobertaConfig, RobertaModel

    narrow = {
        "hidden_size": 32,
        "num_attention_heads": 2,
        "intermediate_size": 64,
        "num_hidden_layers": 2,
    }
    shape: dict[str, Any] = narrow if small else {"num_hidden_layers": 6}
    config = RobertaConfig(
        vocab_size=VOCABULARY,
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=1,
        **shape,
    )
    RobertaModel(config).save_pretrained(folder)
    return str(folder)


VOCABULARY = 50265


def made(
    encoder: str, device: torch.device, trainable: Any = "full", precision: Any = "auto"
) -> Classifier:
    config = ModelConfig(encoder=encoder, trainable=trainable, precision=precision)
    return classifier.build(config, num_labels=workload.LABELS, seed=0, device=device)


def tokens(n: int) -> TokenInputs:
    """Returns narratives as token ids. RoBERTa pads with 1."""
    inputs = workload.narratives(n, vocabulary=VOCABULARY)
    return TokenInputs.from_lists(
        [ids.tolist() for ids in inputs.ids.split(inputs.lengths.tolist())], pad_id=1
    )


def tests(device: str) -> dict[str, Any]:
    """Runs the tests marked `cuda` in a process that only needs the mechanisms."""
    folder = str(ROOT / "tests" / "devices")
    command = [sys.executable, "-m", "pytest", "-q", "-m", "cuda", folder, "--confcutdir", folder]
    command += ["-p", "no:cacheprovider", "-o", "filterwarnings=", "-o", "addopts="]
    environment = os.environ | {
        "AUTOCODER_TEST_DEVICE": device,
        "PYTHONPATH": os.pathsep.join([str(ROOT), *sys.path]),
    }
    done = subprocess.run(
        command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    if done.returncode:
        raise RuntimeError(done.stdout[-2000:])
    return {"pytest": done.stdout.strip().splitlines()[-1]}


def peaks(device: torch.device, scale: Scale) -> dict[str, Any]:
    """Returns TFLOP/s of a square matrix product by precision, the best of ten."""
    speeds = {}
    for name, kind in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        a = torch.randn(scale.matrix, scale.matrix, device=device, dtype=kind)
        times = [workload.seconds(lambda a=a: a @ a, device) for _ in range(13)][3:]
        speeds[f"{name}_tflops"] = round(2 * scale.matrix**3 / min(times) / 1e12, 3)
    return speeds


def forward_flops(trained: Classifier, inputs: TokenInputs) -> float:
    """Counts the operations of a forward pass per record, without padding, over a sample of 32
    records.
    """
    sample = range(0, len(inputs), max(1, len(inputs) // 32))
    with FlopCounterMode(display=False) as counter, torch.inference_mode():
        for i in sample:
            trained.part(**inputs.batch(torch.tensor([i]), trained.device))
    return counter.get_total_flops() / len(sample)


def risk_pass(encoder: str, device: torch.device, scale: Scale, folder: Path) -> dict[str, Any]:
    """Returns records per second and TFLOP/s of the pass over draws."""
    trained, inputs, labels = (
        made(encoder, device),
        tokens(scale.records),
        workload.labels(scale.records),
    )
    post = workload.posterior(trained.flat, folder / "posterior", rank=20)
    flops = forward_flops(trained, inputs)
    result: dict[str, Any] = {"records": scale.records, "gflop_a_record": round(flops / 1e9, 3)}
    ends: list[float] = []
    draws = range(max(2, scale.draws // 4))
    progress = lambda *_: ends.append(time.perf_counter())  # noqa: E731
    risks.risk_pass(
        trained, inputs, labels, post, draws=draws, seed=0, purpose="benchmark", progress=progress
    )
    a_draw = (ends[-1] - ends[0]) / (len(ends) - 1)
    result["records_a_second"] = round(scale.records / a_draw, 1)
    result["tflops"] = round(flops * scale.records / a_draw / 1e12, 3)
    result["memory_mib"] = memory(device)
    return result


def coding(encoder: str, device: torch.device, scale: Scale) -> dict[str, Any]:
    """Returns records per second through a released model, with scores on the
    processor, without a tokenizer.
    """
    model = made(encoder, device).releasable().eval()
    codes = tuple(map(str, range(workload.LABELS)))
    released, inputs = (
        export.Released(model, None, codes, 128, device=device),
        tokens(scale.records),
    )
    released.scores(inputs)
    start = time.perf_counter()
    released.scores(inputs)
    return {
        "records_per_second": round(scale.records / (time.perf_counter() - start), 1),
        "precision": "float32",
    }


def training(encoder: str, device: torch.device, scale: Scale) -> dict[str, Any]:
    """Returns records per second of `full` fine-tuning in batches of 8 and 64, in
    both precisions.
    """
    inputs, labels = tokens(scale.chain_records), workload.labels(scale.chain_records)
    result: dict[str, Any] = {}
    for size, precision in ((8, "float32"), (8, "bfloat16"), (64, "float32"), (64, "bfloat16")):
        trained = made(encoder, device, precision=precision)
        phase = OptimiserPhase(epochs=1, batch_size=size, length_bucketing=True)
        epoch = partial(train, trained, inputs, labels, phase=phase, seed=0, purpose="benchmark")
        workload.seconds(epoch, device)
        speed = scale.chain_records / workload.seconds(epoch, device)
        result.setdefault(precision, {})[f"batch_{size}_records_a_second"] = round(speed, 1)
    return result | {"memory_mib": memory(device)}


def descent(encoder: str, device: torch.device, scale: Scale) -> dict[str, Any]:
    """Returns records per second of DP-SGD's steps in the device's precision:
    `full`, and `lora` if peft is installed.
    """
    inputs, labels = tokens(scale.chain_records), workload.labels(scale.chain_records)
    result: dict[str, Any] = {}
    for part in ("full", "lora") if find_spec("peft") else ("full",):
        trained = made(encoder, device, part)

        def steps(n: int, trained: Classifier = trained) -> None:
            config = DpSgd(batch_size=scale.batch, epochs=1, optimiser="sgd", learning_rate=1e-3)
            segment = NoiseSegment(steps=n, noise_multiplier=1.0, l2_clip_norm=1.0)
            event = DpSgdEvent(sampling_prob=scale.batch / scale.chain_records, segments=(segment,))
            dp_sgd.descend(
                config, event, Records(inputs, labels), Run(workload.LABELS, 0, lambda: trained)
            )

        steps(1)
        took = workload.seconds(partial(steps, scale.steps), device)
        result[f"{part}_records_a_second"] = round(scale.batch * scale.steps / took, 1)
    return result | {"memory_mib": memory(device)}


def chain(encoder: str, device: torch.device, scale: Scale, folder: Path) -> dict[str, Any]:
    """Runs the whole of SWAG-PPM in `full`, three fits and three passes, with few
    epochs and draws.
    """
    inputs, labels = tokens(scale.chain_records), workload.labels(scale.chain_records)
    phase = OptimiserPhase(epochs=2, batch_size=32)
    mechanism = SwagPpm(
        round="reweighted",
        fine_tune=phase.model_copy(update={"optimiser": "adamw", "learning_rate": 5e-5}),
        collect=phase.model_copy(update={"optimiser": "sgd", "learning_rate": 0.01}),
        moments=SwagConfig(rank=2),
        pseudo_posterior=PseudoPosteriorConfig(
            risk_draws=scale.chain_draws, sensitivity_draws=scale.chain_draws
        ),
    )
    plan = mechanism.plan(Task(records=scale.chain_records, classes=workload.LABELS))
    run = Run(
        classes=workload.LABELS,
        seed=0,
        classifier=partial(made, encoder, device),
        folder=folder / "chain",
    )
    fitted = plan.fit(Records(inputs, labels), run)
    return {
        "sensitivity": fitted.figures["sensitivity"],
        "records": scale.chain_records,
        "memory_mib": memory(device),
    }


def protocol(result: dict[str, Any]) -> dict[str, Any]:
    """Estimates the minutes of the paper's protocol from the measured speeds, and
    checks the claims.
    """
    speed = result["risk_pass"]
    passes = PAPER_FITS * PAPER_DRAWS * PAPER_RECORDS / speed["records_a_second"]
    faster = max(
        result["training"][precision]["batch_8_records_a_second"]
        for precision in ("float32", "bfloat16")
    )
    fits = PAPER_FITS * PAPER_EPOCHS * PAPER_RECORDS / faster
    share = speed["tflops"] / result["peak"]["float32_tflops"]
    minutes = (passes + fits) / 60
    return {
        "share_of_float32_peak": round(share, 3),
        "share_target": f">= {SHARE_OF_PEAK}",
        "share_met": share >= SHARE_OF_PEAK,
        "fits_minutes": round(fits / 60, 2),
        "passes_minutes": round(passes / 60, 2),
        "minutes": round(minutes, 2),
        "minutes_target": f"< {MINUTES}",
        "minutes_met": minutes < MINUTES,
    }


def memory(device: torch.device) -> float | None:
    """Returns the most memory that torch has held on the card since the last call
    in MiB, or None.
    """
    if device.type != "cuda":
        return None
    most = torch.cuda.max_memory_allocated(device) / 2**20
    torch.cuda.reset_peak_memory_stats(device)
    return round(most, 1)


if __name__ == "__main__":
    main()
