"""Compares DP-SGD steps with Opacus on the same Poisson batches, and its memory with non-private
training.

Claims: `lora`, MiniLM: at least 1.5 times faster than Opacus's best mode as its documentation shows
it (physical batches in the order sampled). `head`: at least 1.5 times faster than its hooks.
`full`, with Opacus's own gradients: not slower. Sums are of integers in float64 here and in float32
there. Times are processor times.

Repeats are interleaved in one process, and the best of each counts, because other load on the
machine can only add time. Memory is measured in separate processes. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import random
import resource
import subprocess
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
import workload
from torch import Tensor, nn

from mechanisms import dp_sgd
from mechanisms.dp_sgd import DpSgd
from mechanisms.mechanism import Records, Run
from mechanisms.model import classifier as classifiers
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig, OptimiserPhase, TrainablePart
from mechanisms.model.inputs import FeatureInputs, Inputs, TokenInputs
from mechanisms.model.training import train
from mechanisms.privacy.events import DpSgdEvent, NoiseSegment
from mechanisms.privacy.noise import SecretStream, new_key

LABELS = 102
WORDS = (
    "employee",
    "worker",
    "fell",
    "slipped",
    "struck",
    "ladder",
    "floor",
    "conveyor",
    "fractured",
    "wrist",
    "back",
)


def narratives(n: int) -> list[str]:
    """Returns sentences as long as injury narratives: 41 tokens on average, 81 at
    the 95th percentile.
    """
    pick = random.Random(0)
    return [
        " ".join(pick.choices(WORDS, k=max(5, round(pick.lognormvariate(3.45, 0.45)))))
        for _ in range(n)
    ]


def plan(records: int, batch: int, steps: int) -> dict[str, Any]:
    """Returns a plan with this number of steps at noise multiplier 1, which does
    not affect the speed.
    """
    config = DpSgd(batch_size=batch, epochs=1, learning_rate=1e-3)
    segment = NoiseSegment(steps=steps, noise_multiplier=1.0, l2_clip_norm=1.0)
    return {
        "config": config,
        "event": DpSgdEvent(sampling_prob=batch / records, segments=(segment,)),
    }


def poisson(records: int, batch: int, steps: int, key: bytes) -> list[Tensor]:
    """Returns the samples that `dp_sgd.descend` draws with this key."""
    stream, prob = SecretStream(key), batch / records
    return [
        stream.poisson_sample(records, prob=prob, purpose="sample", step=step)
        for step in range(steps)
    ]


def ours(
    trained: Classifier,
    inputs: Inputs,
    labels: Tensor,
    *,
    batch: int,
    steps: int,
    micro: int,
    key: bytes,
) -> float:
    """Seconds per step."""
    made, run = plan(len(inputs), batch, steps), Run(LABELS, 0, lambda: trained, key=key)
    start = time.process_time()
    dp_sgd.descend(**made, records=Records(inputs, labels), run=run, physical_batch_size=micro)
    workload.drain(trained.device)
    return (time.process_time() - start) / steps


def opacus_loop(
    part: nn.Module,
    features: Callable[[Tensor], dict[str, Tensor] | Tensor],
    labels: Tensor,
    batches: list[Tensor],
    *,
    micro: int,
    mode: str,
    batch: int,
    device: torch.device,
    sort_by: Tensor | None = None,
) -> float:
    """Seconds per step of Opacus in `hooks` or `ghost` mode, with physical batches
    as made by its BatchMemoryManager.
    """
    from opacus.grad_sample import GradSampleModule, GradSampleModuleFastGradientClipping
    from opacus.optimizers import DPOptimizer, DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    part.train()
    parameters = [p for p in part.parameters() if p.requires_grad]
    inner = torch.optim.AdamW(parameters, lr=1e-3)
    noise: dict[str, Any] = {
        "noise_multiplier": 1.0,
        "max_grad_norm": 1.0,
        "expected_batch_size": batch,
    }
    criterion: Any = nn.CrossEntropyLoss()
    if mode == "ghost":
        model: Any = GradSampleModuleFastGradientClipping(
            part, max_grad_norm=1, use_ghost_clipping=True
        )
        optimiser: Any = DPOptimizerFastGradientClipping(inner, **noise)
        criterion = DPLossFastGradientClipping(model, optimiser, criterion, "mean")
    else:
        model, optimiser = GradSampleModule(part), DPOptimizer(inner, **noise)
    start = time.process_time()
    for index in batches:
        if sort_by is not None:
            index = index[sort_by[index].argsort(descending=True, stable=True)]
        pieces = index.split(micro)
        for number, piece in enumerate(pieces):
            optimiser.signal_skip_step(number < len(pieces) - 1)
            batch_in = features(piece)
            logits = model(**batch_in).logits if isinstance(batch_in, dict) else model(batch_in)
            criterion(logits, labels[piece].to(device)).backward()
            optimiser.step()
            optimiser.zero_grad()
    workload.drain(device)
    seconds = (time.process_time() - start) / len(batches)
    for parameter in parameters:
        for name in ("grad_sample", "summed_grad", "_norm_sample", "grad"):
            with contextlib.suppress(AttributeError):
                delattr(parameter, name) if name != "grad" else setattr(parameter, "grad", None)
    if mode == "ghost":
        model.disable_hooks()
    model.remove_hooks()
    return seconds


def minilm(device: torch.device, trainable: TrainablePart = "full") -> Classifier:
    """Builds the packaged encoder with the standard head."""
    config = ModelConfig(encoder=classifiers.encoder_files.PACKAGED, trainable=trainable)
    return classifiers.build(config, num_labels=LABELS, seed=0, device=device)


def tokens(records: int) -> TokenInputs:
    """Returns the narratives as MiniLM's tokens."""
    return classifiers.tokenize(
        ModelConfig(encoder=classifiers.encoder_files.PACKAGED), narratives(records)
    )


def plain(
    trained: Classifier, inputs: Inputs, labels: Tensor, batches: list[Tensor], *, micro: int
) -> float:
    """Seconds per step of AdamW without clipping and noise, with micro-batches sorted by length."""
    optimiser = torch.optim.AdamW(trained.parameters, lr=1e-3)
    trained.part.eval()
    start = time.process_time()
    for index in batches:
        for piece in _by_length(inputs, index).split(micro):
            loss = -trained.log_likelihood(
                inputs.batch(piece, trained.device), labels[piece].to(trained.device)
            )
            loss.sum().backward()
        optimiser.step()
        optimiser.zero_grad()
    workload.drain(trained.device)
    return (time.process_time() - start) / len(batches)


def _by_length(inputs: Inputs, index: Tensor) -> Tensor:
    assert inputs.lengths is not None
    return index[inputs.lengths[index].argsort(descending=True, stable=True)]


def encoder(
    args: argparse.Namespace, device: torch.device, trainable: TrainablePart
) -> dict[str, Any]:
    """Seconds per step of this program, of a plain step and of Opacus's modes, if the encoder is
    trained (`full` or `lora`).
    """
    inputs = tokens(args.records)
    labels = torch.arange(args.records) % LABELS
    key = new_key()
    batches = poisson(args.records, args.batch, args.steps, key)
    same: dict[str, Any] = {"micro": args.micro}

    def opacus_inputs(index: Tensor) -> dict[str, Tensor]:
        read = dict(inputs.batch(index, device))
        positions = torch.arange(read["input_ids"].shape[1], device=device)
        read["position_ids"] = positions.expand_as(read["input_ids"]).contiguous()
        read["token_type_ids"] = torch.zeros_like(read["input_ids"])
        return read

    def opacus(mode: str, sort_by: Tensor | None) -> float:
        part = minilm(device, trainable).part
        options: dict[str, Any] = same | {
            "mode": mode,
            "batch": args.batch,
            "device": device,
            "sort_by": sort_by,
        }
        return opacus_loop(part, opacus_inputs, labels, batches, **options)

    def fresh() -> Classifier:
        return minilm(device, trainable)

    contestants: dict[str, Callable[[], float]] = {
        "ours": lambda: ours(
            fresh(), inputs, labels, batch=args.batch, steps=args.steps, key=key, **same
        ),
        "plain": lambda: plain(fresh(), inputs, labels, batches, **same),
        "opacus_ghost": lambda: opacus("ghost", None),
        "opacus_hooks": lambda: opacus("hooks", None),
        "opacus_ghost_sorted": lambda: opacus("ghost", inputs.lengths),
    }
    best: dict[str, float] = {}
    for _ in range(args.repeats):
        for name, run in contestants.items():
            if name not in args.skip:
                best[name] = min(run(), best.get(name, float("inf")))
    ratios = {"over_plain": best["ours"] / best["plain"]}
    documented = [value for name, value in best.items() if name in ("opacus_ghost", "opacus_hooks")]
    if documented:
        ratios["speedup_over_opacus_best_documented"] = min(documented) / best["ours"]
    return {"seconds_a_step": best} | ratios


def heads(args: argparse.Namespace) -> dict[str, Any]:
    """Seconds per step of this program and of Opacus's hooks for a linear and a two-layer head on
    cached features, with one thread.
    """
    torch.set_num_threads(1)
    records, width = 5346, 384
    features = torch.randn(records, width)
    labels = torch.randint(LABELS, (records,))
    key, out = new_key(), {}
    batches = poisson(records, args.batch, args.head_steps, key)
    for name, made in (
        ("linear", workload.linear_head(width, LABELS)),
        ("two_layer", two_layer_head()),
    ):
        best: dict[str, float] = {}
        for _ in range(args.repeats):
            seconds = {
                "ours": ours(
                    made,
                    FeatureInputs(features),
                    labels,
                    batch=args.batch,
                    steps=args.head_steps,
                    micro=4096,
                    key=key,
                ),
                "opacus_hooks": opacus_loop(
                    made.part,
                    lambda index: features[index],
                    labels,
                    batches[: max(1, args.head_steps // 10)],
                    micro=4096,
                    mode="hooks",
                    batch=args.batch,
                    device=made.device,
                ),
            }
            best = {k: min(v, best.get(k, v)) for k, v in seconds.items()}
        out[name] = {
            "seconds_a_step": best,
            "speedup_over_opacus_hooks": best["opacus_hooks"] / best["ours"],
        }
    return out


def two_layer_head() -> Classifier:
    """BERT's pooler and classifier, on MiniLM."""
    config = ModelConfig(encoder=classifiers.encoder_files.PACKAGED, trainable="head")
    return classifiers.build(config, num_labels=LABELS, seed=0)


def peak(kind: str, args: argparse.Namespace, device: torch.device) -> dict[str, float]:
    """Peak memory in MiB of one run in this process: the total, and the increase
    over the loaded model and data.
    """
    made, inputs = minilm(device), tokens(args.records)
    labels = torch.arange(args.records) % LABELS
    longest = inputs.lengths.argsort(descending=True, stable=True)[: args.micro * 4]
    few = TokenInputs.from_lists(
        [inputs.ids[inputs.offsets[i] : inputs.offsets[i + 1]].tolist() for i in longest],
        pad_id=inputs.pad_id,
    )
    before = memory(device)
    if kind == "ours":
        run, settled = Run(LABELS, 0, lambda: made), plan(len(few), len(few), 2)
        dp_sgd.descend(
            **settled,
            records=Records(few, labels[: len(few)]),
            run=run,
            physical_batch_size=args.micro,
        )
    else:
        phase = OptimiserPhase(learning_rate=1e-3, epochs=1, batch_size=args.micro)
        train(made, few, labels[: len(few)], phase=phase, seed=0, purpose="memory")
    return {"peak_mib": memory(device), "above_loaded_mib": memory(device) - before}


def memory(device: torch.device) -> float:
    """Peak memory so far in MiB: of the accelerator's allocator, else of the process."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated() / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**10


def memory_ratio(args: argparse.Namespace) -> dict[str, Any]:
    """Runs both kinds in separate processes, with the same longest micro-batches."""
    peaks: dict[str, Any] = {}
    for kind in ("ours", "non_private"):
        command = [
            sys.executable,
            __file__,
            "--peak-of",
            kind,
            "--micro",
            str(args.micro),
            "--device",
            args.device,
        ]
        command += ["--records", str(args.records)]
        peaks[kind] = json.loads(
            subprocess.run(command, check=True, capture_output=True, text=True).stdout
        )
    return peaks | {
        f"ratio_{name.removesuffix('_mib')}": peaks["ours"][name] / peaks["non_private"][name]
        for name in ("peak_mib", "above_loaded_mib")
    }


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", choices=["full", "lora", "head", "memory"], help="run one of the four"
    )
    parser.add_argument("--records", type=int, default=2400, help="narratives to sample from")
    parser.add_argument("--batch", type=int, default=512, help="expected logical batch")
    parser.add_argument("--micro", type=int, default=32, help="physical batch")
    parser.add_argument("--steps", type=int, default=1, help="steps per repeat, `full` and `lora`")
    parser.add_argument("--head-steps", type=int, default=200, help="steps per repeat, `head`")
    parser.add_argument("--repeats", type=int, default=2)
    parser.add_argument(
        "--skip", nargs="*", default=[], help="opacus_hooks, opacus_ghost, opacus_ghost_sorted"
    )
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--peak-of", choices=["ours", "non_private"], help=argparse.SUPPRESS)
    args = parser.parse_args()
    warnings.simplefilter("ignore")
    device = torch.device(args.device)
    if args.peak_of:
        print(json.dumps(peak(args.peak_of, args, device)))
        return
    report: dict[str, Any] = {
        "torch": torch.__version__,
        "threads": torch.get_num_threads(),
        "device": args.device,
    }
    with contextlib.redirect_stderr(io.StringIO()):
        for part in ("full", "lora"):
            if args.only in (None, part):
                report[part] = encoder(args, device, part)
        if args.only in (None, "memory"):
            report["memory"] = memory_ratio(args)
        if args.only in (None, "head"):
            report["head"] = heads(args)
    print(json.dumps(report, indent=1))


if __name__ == "__main__":
    main()
