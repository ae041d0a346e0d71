"""Speed of an audit's reruns: many chains at once against chains one by one.

Claim: on cached features, reruns of the whole chain (three fits, SWAG collections, risks, weights, one draw of each
round) side by side as `autocoder audit` does them are at least 3 times as many a second as the retrain's own code does
one after the other, for the same records, epochs and draws; hundreds of them take minutes on two cores. Features are
random, of the size of the public OSHA reports' (2,357 training records of a pool twice as large, 102 codes, 384 wide).
Both sides start at the same seeds and must come to the same draw. Prints one JSON object.
"""

from __future__ import annotations

import argparse
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import workload
from torch import Tensor, nn

from mechanisms.audit import trials as audit_trials
from mechanisms.audit.trials import Drawn, Records, Round
from mechanisms.model import training
from mechanisms.model.classifier import Classifier, ModelConfig
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.threads import using
from mechanisms.model.training import OptimiserPhase
from mechanisms.posterior import risks as pseudo_posterior
from mechanisms.posterior import swag
from mechanisms.posterior.risks import PseudoPosteriorConfig
from mechanisms.posterior.swag import SwagConfig

CODES, WIDTH, RANK, AT_ONCE = 102, 384, 20, 8
ROUNDS = tuple(Round(name, weighted=name != "base", bounded=None) for name in ("base", "weighted", "reweighted"))


def main() -> None:
    """Time both sides, in turns."""
    parser = workload.arguments(__doc__, records=4713, repeats=2)
    parser.add_argument("--trials", type=int, default=16, help="reruns side by side (default: 16)")
    parser.add_argument("--draws", type=int, default=50, help="for risks and for Delta, on both sides (default: 50)")
    parser.add_argument("--epochs", type=int, nargs=2, default=(10, 20), help="AdamW, SGD (default: 10 20)")
    options = parser.parse_args()
    pool = _pool(options)
    start = audit_trials.from_flat(torch.zeros(CODES * (WIDTH + 1)), classes=CODES)

    with tempfile.TemporaryDirectory() as folder:
        theta = _one_chain(options, pool, Path(folder) / "check")
        drawn = audit_trials.chain(_some(pool, range(1)), start, rounds=ROUNDS, **_settings(options))
        off = (drawn["reweighted"].theta[0] - audit_trials.from_flat(theta, classes=CODES)).abs().max()
        if off > 0.01:
            raise SystemExit(f"the two sides do not compute the same: draws differ by {off:.3g}")
        times = workload.interleaved(
            {
                "one": lambda: _one_chain(options, pool, Path(folder) / "one"),
                "many": lambda: _side_by_side(options, pool, start),
            },
            repeats=options.repeats,
            device=torch.device("cpu"),
            warm_up=False,
        )
    one, many = times["one"], [taken / options.trials for taken in times["many"]]
    ratio = workload.ratio(one, many)
    workload.report(
        {
            "benchmark": "audit",
            "device": "cpu",
            "trials": options.trials,
            "records_each": int(pool.included.sum(1).float().mean()),
            "largest_difference_of_a_draw": round(float(off), 6),
            "one_chain_s": workload.median(one),
            "a_rerun_side_by_side_s": workload.median(many),
            "reruns_a_minute": round(60 / workload.median(many), 1),
            "speedup": ratio,
            "speedup_target": ">= 3",
            "speedup_met": ratio >= 3,
        },
        options.json,
    )


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    epochs, collected = options.epochs
    return {
        "fine_tune": OptimiserPhase(optimiser="adamw", learning_rate=0.003, epochs=epochs, batch_size=8),
        "collect": OptimiserPhase(optimiser="sgd", learning_rate=0.01, epochs=collected, batch_size=8),
        "moments": SwagConfig(rank=min(RANK, collected)),
        "config": PseudoPosteriorConfig(risk_draws=options.draws, sensitivity_draws=options.draws),
    }


def _pool(options: argparse.Namespace) -> Records:
    """Records around a centre a code, so that there is something to learn; half of them in each rerun."""
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(CODES, (options.records,), generator=g)
    centres = torch.randn(CODES, WIDTH, generator=g)
    features = nn.functional.normalize(centres[labels] + 3 * torch.randn(options.records, WIDTH, generator=g), dim=1)
    included = torch.rand(options.trials, options.records, generator=g) < 0.5
    return Records(features, labels, included, seeds=tuple(range(1, options.trials + 1)))


def _some(pool: Records, chunk: range) -> Records:
    rows = slice(chunk.start, chunk.stop)
    return Records(pool.features, pool.labels, pool.included[rows], seeds=pool.seeds[rows])


def _side_by_side(options: argparse.Namespace, pool: Records, start: Tensor) -> None:
    """Chunks of reruns, one a core, each on one thread: what the audit's stage does."""
    chunks = [range(first, min(first + AT_ONCE, options.trials)) for first in range(0, options.trials, AT_ONCE)]

    def run(chunk: range) -> dict[str, Drawn]:
        return audit_trials.chain(_some(pool, chunk), start, rounds=ROUNDS, **_settings(options))

    workers = torch.get_num_threads()
    with using(1), ThreadPoolExecutor(workers) as several:
        list(several.map(run, chunks))


def _one_chain(options: argparse.Namespace, pool: Records, folder: Path) -> Tensor:
    """The first rerun by the code of the retrain; its last draw, float32 [P]."""
    settings, seed, own = _settings(options), pool.seeds[0], pool.included[0]
    config: PseudoPosteriorConfig = settings["config"]
    part = nn.Linear(WIDTH, CODES)
    head = Classifier(
        config=ModelConfig(encoder="none", trainable="head", pooling="mean"),
        whole=part,
        part=part,
        pool=None,
        device=torch.device("cpu"),
    )
    inputs, labels = FeatureInputs(features=pool.features[own]), pool.labels[own]
    alpha: Tensor | None = None
    measured = None
    for this in ROUNDS:
        if this.name == "reweighted" and alpha is not None and measured is not None:
            alpha = pseudo_posterior.reweight(alpha, measured.risk, k=config.k)
        weights = alpha if this.weighted else None
        head.flat.zero_()
        state = swag.init(head.num_parameters, rank=settings["moments"].rank, folder=folder / this.name)
        common: Any = {"seed": seed, "weights": weights}
        training.train(head, inputs, labels, phase=settings["fine_tune"], purpose="fine-tune", **common)
        training.train(head, inputs, labels, phase=settings["collect"], purpose="swag", state=state, **common)
        swag.save(state)
        post = swag.load(folder / this.name)
        purpose = "risk" if this.name == "base" else "sensitivity"
        measured = pseudo_posterior.risk_pass(
            head, inputs, labels, post, draws=range(options.draws), seed=seed, purpose=purpose, weights=weights
        )
        if this.name == "base":
            alpha = pseudo_posterior.risk_weights(measured.risk, c=config.c, g=config.g)
        pseudo_posterior.load_draw(head, post, seed=seed, purpose="audit", draw=0)
    return head.flat.clone()


if __name__ == "__main__":
    main()
