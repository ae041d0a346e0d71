"""Shared parts of the mechanisms' benchmarks: synthetic narratives, a posterior, and timing."""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from mechanisms.model.classifier import Classifier
from mechanisms.model.config import ModelConfig
from mechanisms.model.encoder_files import PACKAGED
from mechanisms.model.inputs import TokenInputs
from mechanisms.posterior import swag
from storage.demo_data import narratives as invented

LABELS = 100


def arguments(
    description: str | None, *, repeats: int, records: int | None = None
) -> argparse.ArgumentParser:
    """Returns a parser with the common options; if `records` is set, also those of
    an encoder and its narratives.
    """
    parser = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cpu", help="cpu or cuda (default: cpu)")
    if records is not None:
        parser.add_argument(
            "--encoder", default=PACKAGED, help="hub name, folder, or packaged-minilm (default)"
        )
        parser.add_argument(
            "--records", type=int, default=records, help=f"narratives (default: {records})"
        )
    parser.add_argument(
        "--repeats", type=int, default=repeats, help=f"interleaved repeats (default: {repeats})"
    )
    parser.add_argument("--json", type=Path, help="also write the result to this file")
    return parser


def narratives(n: int, *, vocabulary: int) -> TokenInputs:
    """Returns random token ids with the lengths of OSHA's narratives: log-normal, mean 41, 95th
    percentile 81, at most 128.
    """
    g = torch.Generator().manual_seed(0)
    lengths = (
        torch.exp(3.595 + 0.486 * torch.randn(n, generator=g)).round().clamp(8, 128).to(torch.int64)
    )
    ids = [torch.randint(5, vocabulary, (int(k),), generator=g).tolist() for k in lengths]
    return TokenInputs.from_lists(ids, pad_id=0)


def tiny_encoder(folder: Path) -> Path:
    """Writes an encoder of BERT's layout with about ten thousand random parameters and a tokenizer
    of 64 tokens, to measure everything but the encoder. Does nothing if it is there.
    """
    if (folder / "model.safetensors").is_file():
        return folder
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertConfig, BertModel, BertTokenizer

    pieces = BertWordPieceTokenizer()
    pieces.train_from_iterator(
        invented(_OF_VOCABULARY, seed=0), vocab_size=200, show_progress=False
    )
    folder.mkdir(parents=True, exist_ok=True)
    pieces.save_model(str(folder))
    tokenizer = BertTokenizer.from_pretrained(str(folder), model_max_length=64)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        pad_token_id=tokenizer.pad_token_id,
    )
    torch.manual_seed(0)
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


_OF_VOCABULARY = 200
"""Number of narratives from which the tokenizer of the tiny encoder takes its words."""


def linear_head(width: int, classes: int) -> Classifier:
    part, config = (
        nn.Linear(width, classes),
        ModelConfig(encoder="none", trainable="head", pooling="mean"),
    )
    return Classifier(config=config, whole=part, part=part, pool=None, device=torch.device("cpu"))


def labels(n: int) -> Tensor:
    return torch.randint(LABELS, (n,), generator=torch.Generator().manual_seed(0))


def posterior(theta: Tensor, folder: Path, *, rank: int, spread: float = 1e-4) -> swag.Posterior:
    """Returns a posterior of `rank` synthetic snapshots around theta, on disk and
    memory-mapped as in a real run.
    """
    g = torch.Generator().manual_seed(0)
    theta = theta.cpu()
    state = swag.init(theta.numel(), rank=rank, folder=folder)
    for _ in range(rank):
        swag.update(state, theta + spread * torch.randn(theta.numel(), generator=g))
    swag.save(state)
    return swag.load(folder)


def seconds(work: Callable[[], Any], device: torch.device) -> float:
    """Wall time of one call, including the work queued on the device."""
    drain(device)
    start = time.perf_counter()
    work()
    drain(device)
    return time.perf_counter() - start


def interleaved(
    contestants: Mapping[str, Callable[[], Any]],
    *,
    repeats: int,
    device: torch.device,
    warm_up: bool = True,
) -> dict[str, list[float]]:
    """Seconds of each contestant, one after the other, `repeats` times, so that other load on the
    machine affects all equally.
    """
    times: dict[str, list[float]] = {name: [] for name in contestants}
    for round_ in range(repeats + warm_up):
        for name, work in contestants.items():
            took = seconds(work, device)
            if round_ >= warm_up:
                times[name].append(took)
    return times


def ratio(above: list[float], below: list[float]) -> float:
    """Median over the rounds of the ratio of two times that were measured in the same round."""
    return round(statistics.median(a / b for a, b in zip(above, below, strict=True)), 3)


def median(times: list[float]) -> float:
    """Median, rounded to a tenth of a millisecond."""
    return round(statistics.median(times), 4)


def report(result: Mapping[str, Any], to: Path | None) -> None:
    """Prints the result with a description of the machine as one JSON object, and
    writes it to a file if requested.
    """
    write(result, to)
    print(_text(result))


def write(result: Mapping[str, Any], to: Path | None) -> None:
    """Writes the result as JSON, if there is a file to write to."""
    if to is not None:
        to.write_text(_text(result) + "\n", encoding="utf-8")


def _text(result: Mapping[str, Any]) -> str:
    on_cuda = str(result.get("device", "")).startswith("cuda")
    machine = torch.cuda.get_device_name() if on_cuda else f"{torch.get_num_threads()} threads"
    return json.dumps(
        dict(result) | {"measured_on": machine, "torch": str(torch.__version__)}, indent=2
    )


def drain(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
