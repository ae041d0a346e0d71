"""A real bundle, sealed, made without training: tests copy it and attack the copy."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    import numpy as np
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey

    from storage.bundle.trust import Trust
    from storage.ledger import Ledger, ReleasePlan, ReleaseRow
    from tasks.fitting.candidate import Candidate


@dataclass(frozen=True)
class Sealed:
    """A committed and signed bundle with all that made it. Tests must not change its folder."""

    folder: Path
    home: Path
    ledger: Ledger
    row: ReleaseRow
    key: EllipticCurvePrivateKey
    """That sealed it."""
    trust: Trust
    refill: Callable[..., Any]
    """Write the same content into an empty folder, under other settings if given; return what the
    gate expects.
    """
    context: Any
    candidate: Any
    narratives: tuple[str, ...] = field(repr=False)
    """The private training narratives."""

    def copy(self, place: Path, *, seal: bool = True) -> Path:
        """A copy to attack, without its seal if so wished."""
        from storage.bundle.folder import PROOF, SIGNATURE

        made = place / self.folder.name
        shutil.copytree(self.folder, made)
        if not seal:
            (made / PROOF).unlink()
            (made / SIGNATURE).unlink()
        return made

    def unsigned_proof(self, folder: Path) -> Path:
        """Make a copy that was changed pass for whole, as anyone who needs no signature can."""
        from storage.artifacts import digest
        from storage.bundle.folder import PROOF, SIGNATURE, content_files
        from storage.bundle.proof import proof_of

        (folder / SIGNATURE).unlink(missing_ok=True)
        files = content_files(folder)
        row = replace(self.row, bundle_digest=digest(files))
        (folder / PROOF).write_text(json.dumps(proof_of(row, files, key=None)))
        return folder


def plan(key: str, candidate: Candidate | None = None) -> ReleasePlan:
    """A release of synthetic records, and of a candidate's artifacts."""
    from releases import make_event, make_plan

    claim = {"epsilon": 3.0, "sensitivity": 1.5, "draws": 99, "neighbouring_relation": "add-remove"}
    own: Any = {"population": "demo", "cohorts": ("2021", "2022"), "requester": "Jane Requester"}
    own |= {"release_label": key, "event": make_event(sensitivity=1.5)}
    own |= {"artifact_digests": candidate.artifact_digests if candidate else {}}
    return make_plan(key, claim=claim | {"assumptions": ("the test is sound",)}, **own)


@pytest.fixture(scope="session")
def sealed(tmp_path_factory: pytest.TempPathFactory, tiny_roberta: Path) -> Sealed:
    """The parameters are those that training would begin with; everything else is
    as in a release.
    """
    return _made(tmp_path_factory.mktemp("house"), tiny_roberta)


@pytest.fixture(scope="session", params=["titled", "hashed"])
def worded(request: pytest.FixtureRequest) -> Sealed:
    """The same of one field, whose head reads words next to its encoder."""
    return request.getfixturevalue(request.param)


@pytest.fixture(scope="session")
def hashed(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Sealed:
    """One whose head reads hashed words, which have no graph."""
    return _made(tmp_path_factory.mktemp("hashed"), tiny_bert, lexical="hashed")


@pytest.fixture(scope="session")
def titled(tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path) -> Sealed:
    """One whose head reads the titles' words next to its encoder, and whose model
    onnxruntime runs.
    """
    return _made(tmp_path_factory.mktemp("titled"), tiny_bert, lexical="titles")


def answers_by_the_card(folder: Path, texts: list[str]) -> tuple[np.ndarray, np.ndarray]:
    """Runs the card's program for onnxruntime, which knows nothing of this project: the best codes
    and their scores.
    """
    programs = re.findall(
        r"```python\n(.*?)```", (folder / "README.md").read_text(), flags=re.DOTALL
    )
    (program,) = (block for block in programs if "onnxruntime" in block)
    assert sum(bool(line.strip()) for line in program.splitlines()) <= 6
    assert not re.search(r"mechanisms|storage|tasks|autocoder", program)
    program = program.replace("path/to/this/folder", str(folder))
    program, changed = re.subn(r"\[\"[^\"]*\"\]\}", lambda _: f"{texts!r}}}", program)
    assert changed == 1
    names: dict[str, Any] = {}
    exec(program, names)
    return names["codes"], names["scores"]


def _made(home: Path, encoder: Path, *, lexical: str = "none") -> Sealed:
    import torch

    from mechanisms.model import checkpoint
    from storage.bundle import folder as bundle
    from storage.bundle.seal import release_key, seal
    from storage.bundle.trust import Trust
    from storage.datasets import load_split
    from storage.demo_data import write_demo_data
    from storage.egress.allow_list import CONTENT
    from storage.ledger import Ledger
    from tasks.bundle import fill
    from tasks.fitting.candidate import Candidate
    from tasks.fitting.ingest import ingest_records
    from tasks.parameters import BundleParameters, DataParameters
    from tasks.running.stage import Context, run_step

    context = Context(home=str(home), device="cpu")
    context.workspace.create()
    written = write_demo_data(home / "source", records=240, seed=3)
    chosen: Any = {
        "source": str(written.csv),
        "codelist": str(written.codelist),
        "population": "demo",
        "ingest": {},
    }
    named = {"classification": "OIICS", "classification_version": "2.01"}
    dataset = run_step(context, ingest_records(DataParameters.model_validate(chosen | named)))
    model: Any = {"encoder": str(encoder), "trainable": "head", "pooling": "mean", "max_length": 32}
    model |= {"lexical": lexical}
    candidate = Candidate.model_validate(
        {
            **dict.fromkeys(("dataset", "prepared", "fitted"), dataset),
            **{
                "mechanism": {"kind": "non-private"},
                "is_sampled": False,
                "model": model,
                "seed": 5,
            },
        }
    )
    theta = candidate.build_untrained(context).flat.clone()
    theta += torch.randn(theta.shape, generator=torch.Generator().manual_seed(1))
    settings = BundleParameters()

    ledger = Ledger.open(context.workspace.ledger_url, key=release_key(context.workspace))
    row = ledger.reserve(plan("first", candidate))
    assert row.release_id
    draw = home / "draw.safetensors"
    checkpoint.save(draw, {"theta": theta}, {})
    release_id = row.release_id
    row = ledger.mark_drawn(release_id, draw_digest="d" * 64)

    def refill(folder: Path, *, deployment: Any = None, **changed: Any) -> Any:
        changed_settings = settings.model_copy(update=changed)
        return fill.fill(
            folder, context, row, candidate, theta, changed_settings, deployment=deployment
        )

    def build(made: Path) -> None:
        fill.fill(made, context, row, candidate, theta, settings)

    folder, digest = bundle.publish(
        context.workspace.bundles, release_id, allowed=CONTENT, build=build
    )
    committed = ledger.commit(release_id, bundle_digest=digest)
    key = release_key(context.workspace)
    seal(folder, committed, key)
    return Sealed(
        folder=folder,
        home=home,
        ledger=ledger,
        row=committed,
        key=key,
        trust=Trust(home / "signing-key.pub.pem"),
        refill=refill,
        context=context,
        candidate=candidate,
        narratives=tuple(load_split(context.store.open(dataset), "train")["text"]),
    )
