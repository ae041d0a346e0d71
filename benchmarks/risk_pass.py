"""Speed and memory of the risk pass.

Claim 1: in `full`, a pass takes at most 1.10 times the bare forward passes over the same length-sorted batches, run the
same way (side by side on a CPU); peak memory does not grow with the number of draws.
Claim 2: against what a user would write, Hugging Face's `Trainer.predict` for each draw after `load_state_dict` (its
defaults: batches of 8, padded to the longest, in the data's order), it is 1.25 times faster in `full` and 100 times in
`head`, where the Trainer runs the whole model with the same head. Both sides make the same draws. For `head` the figure
is for 500 draws, the single encoding of the records included. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import workload
from torch import Tensor

from mechanisms.model import classifier, encoder_files
from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.inputs import Inputs, TokenInputs, length_sorted_batches
from mechanisms.model.linear import fast_linear
from mechanisms.model.seeding import generator
from mechanisms.model.threads import forward_batch_size, forward_passes
from mechanisms.posterior import risks, swag

HEAD_DRAWS = 500


def main() -> None:
    """Runs the requested parts."""
    parser = workload.arguments(__doc__, records=400, repeats=3)
    parser.add_argument("--rank", type=int, default=20, help="K (default: 20)")
    parser.add_argument("--draws", type=int, nargs=2, default=(2, 6), help="draws for the memory claim (default: 2 6)")
    parser.add_argument("--skip", nargs="*", default=(), choices=("forward", "memory", "full", "head"))
    parser.add_argument("--precision", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--memory-of", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--posterior", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.memory_of:
        print(json.dumps(_peak(options)))
        return

    result: dict[str, Any] = {
        "benchmark": "risk_pass",
        "device": options.device,
        "records": options.records,
        "precision": options.precision,
    }
    with tempfile.TemporaryDirectory() as folder:
        full, tokens, labels = _made(options, "full")
        _spread(full)
        post = workload.posterior(full.flat, Path(folder) / "full", rank=options.rank)
        if "forward" not in options.skip:
            result |= _against_forward(options, full, tokens, labels, post)
        if "memory" not in options.skip:
            result |= _memory(options, Path(folder) / "full")
        if "full" not in options.skip:
            result |= _full_against_trainer(options, full, tokens, labels, post, Path(folder))
        if "head" not in options.skip:
            result |= _head_against_trainer(options, tokens, labels, Path(folder))
    workload.report(result, options.json)


def _made(options: argparse.Namespace, trainable: Any) -> tuple[Classifier, TokenInputs, Tensor]:
    config = ModelConfig(encoder=options.encoder, trainable=trainable)
    made = classifier.build(config, num_labels=workload.LABELS, seed=0, device=options.device)
    vocabulary = len(encoder_files.load_tokenizer(options.encoder))
    return made, workload.narratives(options.records, vocabulary=vocabulary), workload.labels(options.records)


def _spread(made: Classifier) -> None:
    """Widens the last layer of the new head, so that likelihoods differ between records as a trained model's do."""
    with torch.no_grad():
        made.parameters[-2].mul_(30)


def _pass(
    options: argparse.Namespace, made: Classifier, inputs: Inputs, labels: Tensor, post: swag.Posterior, draws: int
) -> None:
    risks.risk_pass(
        made, inputs, labels, post, draws=range(draws), seed=0, purpose="benchmark", precision=options.precision
    )


def _against_forward(
    options: argparse.Namespace, made: Classifier, tokens: TokenInputs, labels: Tensor, post: swag.Posterior
) -> dict[str, Any]:
    size, draws = forward_batch_size(tokens, made.device), 2
    batches = [tokens.batch(index, made.device) for index in length_sorted_batches(tokens, batch_size=size)]

    def forward(batch: Any) -> None:
        half = options.precision == "bfloat16"
        cast = torch.autocast(made.device.type, torch.bfloat16, enabled=half)
        with torch.inference_mode(), fast_linear(made.device), cast:
            made.part(**batch)

    def bare() -> None:
        with forward_passes(tokens, made.device) as over:
            for _ in range(draws):
                list(over(forward, batches))

    times = workload.interleaved(
        {"bare": bare, "pass": lambda: _pass(options, made, tokens, labels, post, draws)},
        repeats=options.repeats + 2,
        device=made.device,
    )
    ratio = workload.ratio(times["pass"], times["bare"])
    return {
        "forward_s": workload.median(times["bare"]) / draws,
        "pass_s": workload.median(times["pass"]) / draws,
        "pass_over_forward": ratio,
        "pass_over_forward_target": "<= 1.10",
        "pass_over_forward_met": ratio <= 1.10,
    }


def _memory(options: argparse.Namespace, posterior: Path) -> dict[str, Any]:
    """Peak memory of a process of its own for each number of draws."""
    few, many = options.draws
    peaks = {}
    for draws in (few, many):
        command = [sys.executable, __file__, "--memory-of", str(draws), "--posterior", str(posterior)]
        command += ["--device", options.device, "--encoder", options.encoder, "--records", str(options.records)]
        command += ["--precision", options.precision]
        answer = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        peaks[draws] = json.loads(answer)
    return {
        "peak_mb": {str(draws): round(peak / 2**20, 1) for draws, peak in peaks.items()},
        "peak_growth": round(peaks[many] / peaks[few], 3),
        "peak_growth_met": peaks[many] / peaks[few] <= 1.02,
    }


def _peak(options: argparse.Namespace) -> int:
    """Bytes: on a CPU of the whole process, memory-mapped deviations included; on CUDA what torch allocated."""
    made, tokens, labels = _made(options, "full")
    _pass(options, made, tokens, labels, swag.load(options.posterior), options.memory_of)
    if made.device.type == "cuda":
        return torch.cuda.max_memory_allocated(made.device)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def _trainer(options: argparse.Namespace, model: Any, tokens: TokenInputs, labels: Tensor, folder: Path) -> Any:
    """A Trainer as its documentation shows it, and the records as it wants them."""
    from transformers import DataCollatorWithPadding, Trainer, TrainingArguments

    arguments = TrainingArguments(
        output_dir=str(folder / "trainer"), report_to="none", disable_tqdm=True, use_cpu=options.device == "cpu"
    )
    collate = DataCollatorWithPadding(encoder_files.load_tokenizer(options.encoder))
    trainer = Trainer(model=model, args=arguments, data_collator=collate)
    ids = tokens.ids.split(tokens.lengths.tolist())
    records = [{"input_ids": x.tolist(), "labels": int(y)} for x, y in zip(ids, labels, strict=True)]
    return lambda: trainer.predict(records).predictions  # pyrefly: ignore[bad-argument-type]


def _user_pass(
    made: Classifier, model: Any, names: list[str], predict: Callable[[], Any], labels: Tensor, post: swag.Posterior
) -> Callable[[], Tensor]:
    """One draw as a user would write it: sample, load, predict, log-likelihood."""
    shapes = [p.shape for p in made.parameters]
    sizes = [p.numel() for p in made.parameters]

    def one() -> Tensor:
        theta = swag.sample(post, normal=swag.seeded_normal(generator(0, "benchmark", "draw", 0)))
        pieces = zip(names, theta.split(sizes), shapes, strict=True)
        model.load_state_dict({name: piece.view(shape) for name, piece, shape in pieces}, strict=False)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            logits = torch.from_numpy(predict())
        return -logits.log_softmax(-1).gather(1, labels[:, None])[:, 0]

    return one


def _full_against_trainer(
    options: argparse.Namespace,
    made: Classifier,
    tokens: TokenInputs,
    labels: Tensor,
    post: swag.Posterior,
    folder: Path,
) -> dict[str, Any]:
    other, _, _ = _made(options, "full")
    names = [name for name, p in other.whole.named_parameters() if p.requires_grad]
    user = _user_pass(made, other.whole, names, _trainer(options, other.whole, tokens, labels, folder), labels, post)
    _same(user(), made, tokens, labels, post)
    times = workload.interleaved(
        {"trainer": user, "pass": lambda: _pass(options, made, tokens, labels, post, 1)},
        repeats=options.repeats,
        device=made.device,
        warm_up=False,
    )
    ratio = workload.ratio(times["trainer"], times["pass"])
    return {
        "full_trainer_s_a_draw": workload.median(times["trainer"]),
        "full_pass_s_a_draw": workload.median(times["pass"]),
        "full_speedup": ratio,
        "full_speedup_target": ">= 1.25",
        "full_speedup_met": ratio >= 1.25,
    }


def _head_against_trainer(
    options: argparse.Namespace, tokens: TokenInputs, labels: Tensor, folder: Path
) -> dict[str, Any]:
    made, _, _ = _made(options, "head")
    other, _, _ = _made(options, "head")
    features = made.encode(tokens)
    post = workload.posterior(made.flat, folder / "head", rank=options.rank, spread=1e-2)
    names = [name for name, p in other.whole.named_parameters() if p.requires_grad]
    user = _user_pass(made, other.whole, names, _trainer(options, other.whole, tokens, labels, folder), labels, post)
    _same(user(), made, features, labels, post)
    times = workload.interleaved(
        {
            "trainer": user,
            "encode": lambda: made.encode(tokens),
            "pass": lambda: _pass(options, made, features, labels, post, HEAD_DRAWS),
        },
        repeats=options.repeats,
        device=made.device,
        warm_up=False,
    )
    whole = [(e + p) / HEAD_DRAWS for e, p in zip(times["encode"], times["pass"], strict=True)]
    ratio = workload.ratio(times["trainer"], whole)
    return {
        "head_trainer_s_a_draw": workload.median(times["trainer"]),
        "head_encode_s_once": workload.median(times["encode"]),
        "head_pass_ms_a_draw": round(1000 * workload.median(times["pass"]) / HEAD_DRAWS, 3),
        "head_speedup": ratio,
        "head_speedup_target": ">= 100",
        "head_speedup_met": ratio >= 100,
    }


def _same(risk: Tensor, made: Classifier, inputs: Inputs, labels: Tensor, post: swag.Posterior) -> None:
    """Both sides must compute the same thing before they are compared for speed."""
    ours = risks.risk_pass(made, inputs, labels, post, draws=range(1), seed=0, purpose="benchmark")
    torch.testing.assert_close(ours.risk, risk.cpu(), rtol=1e-3, atol=1e-4)


if __name__ == "__main__":
    main()
