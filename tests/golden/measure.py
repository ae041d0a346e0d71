"""Measures the golden set: eight plans on synthetic narratives, through the command line.

    python tests/golden/measure.py            # print what is measured now, as JSON
    python tests/golden/measure.py --write    # put it into golden.json

The commit says which number changed and why. All plans run in one process. The key of every secret
noise is fixed only in this process, so that a fit is the same again.
"""

import csv
import hashlib
import json
import os
import platform
import sys
import tempfile
from pathlib import Path
from typing import Any

from storage.demo_data import write_demo_data

HERE = Path(__file__).parent
GOLDEN = HERE / "golden.json"

PROFILE = {
    "data": {
        "population": "golden",
        "classification": "OIICS",
        "classification_version": "2.01",
        "ingest": {
            "text_columns": ["Final Narrative"],
            "label_column": "Nature",
            "date_column": "EventDate",
            "sampling": "per-record",
            "train_before": "2023-01-01",
        },
    },
    "model": {"encoder": "packaged-minilm", "trainable": "head", "pooling": "mean"},
    "method": {
        "name": "swag-ppm-reweighted",
        "fine_tune": {"optimiser": "adamw", "learning_rate": 0.003, "epochs": 10, "batch_size": 8},
        "collect": {"optimiser": "sgd", "learning_rate": 0.01, "epochs": 4, "batch_size": 8},
        "moments": {"rank": 3},
        "pseudo_posterior": {"risk_draws": 40, "sensitivity_draws": 40},
    },
}
TITLES = {"prior": "titles"}
LORA = {"trainable": "lora", "lora_layers": 1, "lora_rank": 2}
PRIOR_DESCENT = {"name": "prior-descent", "target_epsilon": 5}
POLICY = {
    "name": "golden",
    "default": {"formal": {"epsilon": 50, "delta": 1e-3}, "asymptotic-local": {"epsilon": 200}},
    "populations": {
        "golden-replaced": {
            "formal": {"epsilon": 50, "delta": 1e-3, "neighbouring_relation": "replace-one"}
        }
    },
}

COMPARED = {
    "prior-descent": "prior-descent",
    "dp-sgd-titles": "dp-sgd-head",
    "swag-ppm": "swag-ppm-weighted",
    "swag-ppm-reweighted": "swag-ppm-reweighted",
    "non-private": "non-private",
}
"""Branches of one comparison, and the plans that they are in the golden set."""

CLAIM = (
    *("guarantee_kind", "epsilon", "delta", "sensitivity", "neighbouring_relation", "privacy_unit"),
    *("max_records_per_unit", "draws", "mc_failure_prob", "mechanism"),
)


def measure(folder: Path) -> dict[str, Any]:
    """Runs the eight plans in workspaces below a folder."""
    data, codelist = _write_data(folder)
    policy = _write(folder / "policy.json", POLICY)
    records = ("--data", data, "--codelist", codelist)
    plans: dict[str, Any] = {}

    # all fits of a head on the same features: each branch at two seeds, then a release of each that
    # has a plan
    home = folder / "head"
    profile = _write(
        folder / "head.yaml", PROFILE | {"model": PROFILE["model"] | TITLES | {"lexical": "titles"}}
    )
    chosen = (
        "--branches",
        ",".join(COMPARED),
        "--seeds",
        "2",
        "--set",
        "baselines.epochs=10",
        "--epsilon",
        "5",
    )
    compared = _command("compare", "--profile", profile, *records, *chosen, "--home", home)
    for branch, name in COMPARED.items():
        released = None
        plan = compared["plans"].get(branch) or compared["plans"].get(f"{branch} at epsilon 5")
        if plan is not None:
            settings = ("--policy", policy) if branch == "prior-descent" else ()
            released = _command("release", plan, *settings, "--home", home)
        plans[name] = _plan(home, branch, released)

    formal: dict[str, Any] = {
        "method": PRIOR_DESCENT,
        "release": {"enabled": True, "policy": str(policy)},
    }
    head = {"model": PROFILE["model"] | TITLES}
    lora: Any = {
        "model": PROFILE["model"] | LORA | TITLES,
        "method": {"name": "dp-sgd", "target_epsilon": 5},
    }
    lora["method"] |= {
        "calibrate_by": "pld",
        "optimiser": "adamw",
        "learning_rate": 0.01,
        "epochs": 2,
    }
    lora["method"]["sampling_prob"] = 0.25
    lora["data"] = PROFILE["data"] | {
        "classification": "",
        "classification_version": "",
    }  # no thresholds: they take half a minute with own adapters
    ingest = PROFILE["data"]["ingest"]
    unit = PROFILE["data"] | {
        "ingest": ingest | {"unit_column": "Establishment", "max_per_unit": 3}
    }
    replaced = PROFILE["data"] | {"population": "golden-replaced"}
    retrained: dict[str, dict[str, Any]] = {
        "dp-sgd-lora": formal | lora,
        "unit-of-three": formal | head | {"data": unit},
        "replace-one": formal | head | {"data": replaced},
    }
    for name, changes in retrained.items():
        profile = _write(folder / f"{name}.yaml", PROFILE | changes)
        done = _command("retrain", "--profile", profile, *records, "--home", folder / name)
        plans[name] = _plan(folder / name, changes["method"]["name"], done["release"])
    return {"processor": processor(), "plans": plans}


def processor() -> str:
    """Names what the last bits of a fit depend on."""
    import torch

    lines = (
        Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").is_file() else []
    )
    models = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    model = models[0] if models else platform.processor()
    return f"{model}; {torch.backends.cpu.get_cpu_capability()}; torch {torch.__version__}"


def _plan(home: Path, branch: str, released: dict[str, Any] | None) -> dict[str, Any]:
    """Returns what is fixed of one branch in a workspace."""
    rows = _command("ledger", "show", "--all", "--home", home)["rows"]
    scored = [
        row
        for row in rows
        if row["kind"] == "evaluation"
        and (row["subject"] or {}).get("branch") == branch
        and "weighted_f1" in row["details"]
    ]
    newest = scored[0]
    found = {
        "event": newest["event"],
        "claim": {name: newest[name] for name in CLAIM},
        "splits": _splits(home),
        "weighted_f1": {
            str(row["subject"]["seed"]): row["details"]["weighted_f1"] for row in scored
        },
        "charges": [],
        "bundle": [],
        "weights": {},
    }
    if released is not None:
        of_it = [row for row in rows if row.get("release_id") == released["release_id"]]
        last = max(of_it, key=lambda row: row["sequence"])
        found["event"] = last["event"]
        found["claim"] = {name: last[name] for name in (*CLAIM, "state")}
        shown = _command("ledger", "show", released["release_id"], "--home", home)
        found["charges"] = [_charge(charge) for charge in shown["charges"]]
        bundle = Path(released["bundle"])
        files = sorted(path.relative_to(bundle) for path in bundle.rglob("*") if path.is_file())
        found["bundle"] = [str(file) for file in files]
        # a draw of SWAG-PPM is of the operating system's entropy: only what is fitted under a key
        # is the same again
        if not branch.startswith("swag"):
            found["weights"] = {
                str(file): _digest(bundle / file) for file in files if file.suffix == ".safetensors"
            }
    return found


def _charge(charge: dict[str, Any]) -> dict[str, Any]:
    """Returns what a release costs one account, and by which rule it is added."""
    names = ("population", "cohort", "neighbouring_relation", "composition")
    return {name: charge[name] for name in names} | dict(charge["loss"])


def _splits(home: Path) -> dict[str, Any]:
    """Returns the number of records in each half, and the digest of each half's texts and codes in
    their order.
    """
    from storage.datasets import load_table

    found = {}
    for name in ("train", "test"):
        (file,) = (home / "private" / "stages" / "ingest").glob(f"*/{name}.arrow")
        table = load_table(file.parent, name)
        content = json.dumps(table.select(["text", "label"]).to_pylist(), sort_keys=True)
        found[name] = {
            "records": table.num_rows,
            "digest": hashlib.sha256(content.encode()).hexdigest(),
        }
    return found


def _write_data(folder: Path) -> tuple[Path, Path]:
    """Writes synthetic narratives whose establishments have three records on average, and the code
    list.
    """
    write_demo_data(folder / "demo", records=240, seed=3)
    data = folder / "demo" / "injuries.csv"
    with data.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    with data.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(rows[0]))
        writer.writeheader()
        writer.writerows(
            row | {"Establishment": f"plant {number * 7 % 79}"} for number, row in enumerate(rows)
        )
    return data, folder / "demo" / "codelist.csv"


def _command(*arguments: object, as_json: bool = True) -> Any:
    """Runs a command of `autocoder`, and returns what it answers."""
    from typer.testing import CliRunner

    from flows import cli

    words = [str(part) for part in arguments]
    if as_json:
        words.append("--json")
    result = CliRunner().invoke(cli.app, words)
    if result.exit_code != 0:
        raise SystemExit(f"autocoder {' '.join(words)}: {result.stderr}\n{result.exception!r}")
    return json.loads(result.stdout) if as_json else result.stdout


def _write(file: Path, content: Any) -> Path:
    file.write_text(json.dumps(content))
    return file


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes()).hexdigest()


def _fix_the_noise(folder: Path) -> None:
    """Makes every key of 32 bytes the same, and the key that record marks are made with."""
    urandom = os.urandom
    os.urandom = lambda count: b"golden" * 5 + b"se" if count == 32 else urandom(count)
    (folder / "registry.key").write_bytes(b"k" * 32)
    os.environ["AUTOCODER_REGISTRY_KEY"] = str(folder / "registry.key")


def main() -> None:
    """Prints or writes the golden set."""
    import torch

    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as name:
        _fix_the_noise(Path(name))
        measured = json.dumps(measure(Path(name)), indent=1, sort_keys=True)
    if "--write" in sys.argv:
        GOLDEN.write_text(measured + "\n")
    else:
        print(measured)  # noqa: T201


if __name__ == "__main__":
    main()
