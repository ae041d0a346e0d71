"""Speed of an audit's reruns: many chains at once against chains one by one.

Claim: on cached features, reruns of the whole chain (three fits, SWAG collections, risks, weights,
one draw of each round), computed side by side as `autocoder audit` does, are at least 3 times as
fast as the training run's own code computing them one by one, for the same records, epochs and
draws. Hundreds of them take minutes on two cores. Features are random and have the size of the
public OSHA reports' (2,357 training records of a pool twice as large, 102 codes, 384 wide). Both
sides start with the same seeds and must give the same draw. Prints one JSON object.

`--power FILE` instead measures how often an audit finds each planted fault
(`tests/support/planted_faults.py`), in `--runs` fits each. Claim: every fault is found in all runs
by its check, with no more false alarms than the stated rate.

`--least FILE` measures how often it finds noise that is 2 to 20% too small. Claim: as often as the
chi-square distribution of a step's squared noise predicts, so that a change of 4 sqrt(2 /
coordinates) in the variance of every step is nearly always found, and a much smaller one is not.
"""

from __future__ import annotations

import argparse
import importlib
import json
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import torch
import workload
from torch import Tensor, nn

from mechanisms.audit import trials as audit_trials
from mechanisms.audit.trials import Drawn, Records
from mechanisms.mechanism import Records as OwnRecords
from mechanisms.mechanism import Run, Task
from mechanisms.model.config import OptimiserPhase
from mechanisms.model.inputs import FeatureInputs
from mechanisms.model.threads import using
from mechanisms.posterior import risks
from mechanisms.posterior.config import PseudoPosteriorConfig, SwagConfig
from mechanisms.posterior.rounds import ROUNDS, RoundName
from mechanisms.swag_ppm import PosteriorDraw, SwagPpm

CODES, WIDTH, RANK, AT_ONCE = 102, 384, 20, 8


def main() -> None:
    parser = workload.arguments(__doc__, records=4713, repeats=2)
    parser.add_argument("--trials", type=int, default=16, help="reruns side by side (default: 16)")
    parser.add_argument(
        "--draws", type=int, default=50, help="draws for risks and Delta, both sides (default: 50)"
    )
    parser.add_argument(
        "--epochs", type=int, nargs=2, default=(10, 20), help="AdamW, SGD (default: 10 20)"
    )
    parser.add_argument(
        "--power",
        type=Path,
        help="instead, measure the power against planted faults and write it to this file",
    )
    parser.add_argument(
        "--least",
        type=Path,
        help="measure the smallest change of noise found; write it to this file",
    )
    parser.add_argument("--runs", type=int, default=20, help="fits of each fault (default: 20)")
    options = parser.parse_args()
    if options.power:
        _power(options.power, options.runs)
        return
    if options.least:
        _least(options.least, options.runs)
        return
    pool = _pool(options)
    start = audit_trials.from_flat(torch.zeros(CODES * (WIDTH + 1)), classes=CODES)

    theta = _one_chain(options, pool)
    drawn = audit_trials.chain(_some(pool, range(1)), start, **_settings(options))
    off = (drawn["reweighted"].theta[0] - audit_trials.from_flat(theta, classes=CODES)).abs().max()
    if off > 0.01:
        raise SystemExit(f"results differ: draws differ by {off:.3g}")
    sides = {
        "one": lambda: _one_chain(options, pool),
        "many": lambda: _side_by_side(options, pool, start),
    }
    times = workload.interleaved(
        sides, repeats=options.repeats, device=torch.device("cpu"), warm_up=False
    )
    single, many = times["one"], [taken / options.trials for taken in times["many"]]
    ratio = workload.ratio(single, many)
    workload.report(
        {
            "benchmark": "audit",
            "device": "cpu",
            "trials": options.trials,
            "records_each": int(pool.included.sum(1).float().mean()),
            "largest_difference_of_a_draw": round(float(off), 6),
            "one_chain_s": workload.median(single),
            "a_rerun_side_by_side_s": workload.median(many),
            "reruns_a_minute": round(60 / workload.median(many), 1),
            "speedup": ratio,
            "speedup_target": ">= 3",
            "speedup_met": ratio >= 3,
        },
        options.json,
    )


def _least(file: Path, runs: int) -> None:
    """Writes a row for each mechanism and amount of noise."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    faults: Any = importlib.import_module("planted_faults")
    rows = []
    for name in faults.MECHANISMS:
        for factor in (0.98, 0.95, 0.9, 0.85, 0.8):
            rows.append(faults.power_at(name, factor, repeats=runs))
            print(rows[-1], flush=True)
            file.write_text(json.dumps(rows, indent=1) + "\n")


def _power(file: Path, runs: int) -> None:
    """Writes a row for each mechanism and fault."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "support"))
    faults: Any = importlib.import_module("planted_faults")
    rows = []
    for name in faults.MECHANISMS:
        for fault in (None, *faults.faults_of(name)):
            rows.append(faults.power(name, fault, repeats=runs))
            print(rows[-1], flush=True)
            file.write_text(json.dumps(rows, indent=1) + "\n")


def _settings(options: argparse.Namespace) -> dict[str, Any]:
    epochs, collected = options.epochs
    return {
        "names": ROUNDS["reweighted"],
        "bounded": None,
        "fine_tune": OptimiserPhase(
            optimiser="adamw", learning_rate=0.003, epochs=epochs, batch_size=8
        ),
        "collect": OptimiserPhase(
            optimiser="sgd", learning_rate=0.01, epochs=collected, batch_size=8
        ),
        "moments": SwagConfig(rank=min(RANK, collected)),
        "config": PseudoPosteriorConfig(risk_draws=options.draws, sensitivity_draws=options.draws),
    }


def _pool(options: argparse.Namespace) -> Records:
    """Returns records around one centre per code, so that there is something to
    learn. Half of them are in each rerun.
    """
    g = torch.Generator().manual_seed(0)
    labels = torch.randint(CODES, (options.records,), generator=g)
    centres = torch.randn(CODES, WIDTH, generator=g)
    features = nn.functional.normalize(
        centres[labels] + 3 * torch.randn(options.records, WIDTH, generator=g), dim=1
    )
    included = torch.rand(options.trials, options.records, generator=g) < 0.5
    return Records(features, labels, included, seeds=tuple(range(1, options.trials + 1)))


def _some(pool: Records, chunk: range) -> Records:
    rows = slice(chunk.start, chunk.stop)
    return Records(pool.features, pool.labels, pool.included[rows], seeds=pool.seeds[rows])


def _side_by_side(options: argparse.Namespace, pool: Records, start: Tensor) -> None:
    """Runs chunks of reruns, one per core and each on one thread, like the audit's stage."""
    chunks = [
        range(first, min(first + AT_ONCE, options.trials))
        for first in range(0, options.trials, AT_ONCE)
    ]

    def run(chunk: range) -> dict[RoundName, Drawn]:
        return audit_trials.chain(_some(pool, chunk), start, **_settings(options))

    workers = torch.get_num_threads()
    with using(1), ThreadPoolExecutor(workers) as several:
        list(several.map(run, chunks))


def _one_chain(options: argparse.Namespace, pool: Records) -> Tensor:
    """Runs the first rerun with the training run's code, and returns its last draw, float32 [P]."""
    settings, seed, members = _settings(options), pool.seeds[0], pool.included[0]
    head = workload.linear_head(WIDTH, CODES)
    head.flat.zero_()
    mechanism = SwagPpm(
        round="reweighted",
        fine_tune=settings["fine_tune"],
        collect=settings["collect"],
        moments=settings["moments"],
        pseudo_posterior=settings["config"],
    )
    records = OwnRecords(FeatureInputs(features=pool.features[members]), pool.labels[members])
    plan = mechanism.plan(Task(records=len(records.labels), classes=CODES))
    fitted = plan.fit(records, Run(CODES, seed, lambda: head)).model
    assert isinstance(fitted, PosteriorDraw)
    risks.load_draw(head, fitted.posterior, seed=seed, purpose="audit", draw=0)
    return head.flat.clone()


if __name__ == "__main__":
    main()
