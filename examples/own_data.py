"""Compares three methods on your CSV, whose code is in column `label`, and prints their claims.

    python examples/own_data.py mine.csv      # every other column numeric; without a file, an invented table

Other columns: docs/data.md. `autocoder compare --profile table --data mine.csv` does the same with Prefect.
"""

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

from tasks.branches.branch import Terms, choose
from tasks.comparing.run import run
from tasks.parameters import RetrainParameters
from tasks.running.stage import Context, run_step

FEATURES = {"length": [0, 1], "mass": [0, 1]}  # public bounds, to which values are clipped
BRANCHES = {"gentle": {"title": "Formal head, ten steps", "mechanism": {"kind": "formal-head", "steps": 10}}}
PHASE = {"learning_rate": 0.05, "batch_size": 16}


def write_invented(file: Path) -> Path:
    """Writes 400 invented records of two sorts that differ in length and mass."""
    rng = np.random.default_rng(0)
    heavy = rng.integers(0, 2, 400)
    cells = np.clip(rng.normal(0.35 + 0.3 * heavy[:, None], 0.1, (400, 2)), 0, 1)
    rows = [f"{a:.3f},{b:.3f},{'heavy' if h else 'light'}" for (a, b), h in zip(cells, heavy, strict=True)]
    file.write_text("\n".join(["length,mass,label", *rows]), encoding="utf-8")
    return file


def main() -> None:
    """Compares in a temporary workspace; in your run, keep it."""
    with tempfile.TemporaryDirectory() as folder:
        given = [Path(name) for name in sys.argv[1:2]]
        source = given[0] if given else write_invented(Path(folder) / "invented.csv")
        ingest = {"kind": "table", "label_column": "label", "table": {} if given else {"numeric": FEATURES}}
        parameters = RetrainParameters.model_validate(
            {
                "data": {"source": str(source), "ingest": ingest},
                "model": {"pooling": "none"},
                "fit": {"adamw": PHASE, "sgd": PHASE | {"optimiser": "sgd"}, "swag": {"rank": 5}},
                "pseudo_posterior": {"risk_draws": 50, "sensitivity_draws": 50},
                "release": {"enabled": False},
            }
        )
        settings = Terms(target_epsilon=4.0, branches=BRANCHES)
        chosen = choose("non-private,swag-ppm,gentle", model=parameters.model, branches=settings.all_branches)
        context = Context(home=folder, device="cpu")
        for outcome in run(context, parameters, settings, chosen, do=partial(run_step, context)).outcomes:
            claim, accuracy = outcome.claim, outcome.figures["accuracy"]
            print(f"{outcome.branch.title}: accuracy {accuracy:.2f}, epsilon {claim.epsilon} ({claim.guarantee_kind})")


if __name__ == "__main__":
    main()
