"""Would win: a signed plan whose files someone changes while it is released. Whoever writes the
private workspace needs no signing key for that: a release that digests a file and opens it again
releases what the second opening finds.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import rfc8785
import tiny_jobs
import torch
from cases import release_plan
from cryptography.hazmat.primitives.asymmetric import ec
from in_process import invoke
from kills import killed_at
from planned_chain import nothing_charged
from releases import release_key
from safetensors.torch import load_file, save_file
from sealed_bundle import Sealed

from mechanisms.model import checkpoint, export
from mechanisms.model.config import ModelConfig
from storage.artifacts import ArtifactRef, CopiedStore, Store, digest
from storage.bundle import registry
from storage.bundle.check import check
from storage.bundle.folder import UnsoundBundle
from storage.bundle.trust import Trust
from storage.codelist import read_codelist
from storage.coding_index import CodingIndex, read_index
from storage.datasets import load_codes
from storage.demo_data import write_demo_data
from storage.errors import StorageError
from storage.ledger import Ledger
from storage.ledger.recovery import draw_path
from storage.paths import Workspace
from tasks.bundle import golden, public_features
from tasks.fitting.ingest import ingest_records
from tasks.fitting.model_inputs import build
from tasks.fitting.prior import lexicon_of
from tasks.parameters import BundleParameters, DataParameters, RetrainParameters
from tasks.releasing import drawing, publish
from tasks.releasing.plan import PlannedRelease
from tasks.releasing.samples import Sample
from tasks.running.stage import Context, run_step

DECLARES = """
what was signed is what is released
| a fit's parameters swapped for good, or after every digest of them and put back before the next; a
stage's figures; an encoder's weights; embedded public words and the features of public texts; a
coding index between two readings; another sample before, while and after the release takes its own;
a bundle's weights and settings while `handover` packs it
| anyone who has the bundle-signing key; what was swapped before the plan was signed; an encoder in
the hub's cache  nothing is sampled twice
| killed while the sample is taken, and between that and its file
| a sample of its own by anyone who reads the posterior
"""

Planner = Callable[[str], tuple[Context, PlannedRelease]]
NARRATIVE = b"The employee was greasing the conveyor chain when his left glove was pulled in. "


@pytest.fixture(scope="module")
def plan_at(tiny_bert: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Plans the formal release of one fit under a label, in one workspace."""
    home = tmp_path_factory.mktemp("swapped")
    written = write_demo_data(home / "source", records=200, seed=3)
    context = Context(home=str(home / "home"), device="cpu")
    context.workspace.create()

    shutil.copytree(tiny_bert, home / "encoder")

    def planned(label: str) -> tuple[Context, PlannedRelease]:
        parameters = RetrainParameters.model_validate(
            {
                "data": {
                    "source": str(written.csv),
                    "codelist": str(written.codelist),
                    "population": "demo",
                    "ingest": {"sampling": "per-record"},
                },
                "model": {
                    "encoder": str(home / "encoder"),
                    "trainable": "head",
                    "pooling": "mean",
                    "max_length": 32,
                    "lexical": "titles",
                },
                "method": {"name": "prior-descent", "target_epsilon": 1},
                "release": {"label": label},
            }
        )
        made = tiny_jobs.planned(context, parameters, tiny_jobs.fitted(context, parameters))
        return context, publish.save_plan(context, made, parameters.release).planned

    return planned


@contextmanager
def swapped_behind_every_digest(
    monkeypatch: pytest.MonkeyPatch, file: Path, hostile: bytes
) -> Iterator[None]:
    """The file is as it was signed whenever a store digests it, and hostile at any other time."""
    honest = file.read_bytes()

    def swapping(opening: Callable[[Any, ArtifactRef], Path]) -> Callable[..., Path]:
        def opened(store: Any, ref: ArtifactRef) -> Path:
            file.write_bytes(honest)
            try:
                return opening(store, ref)
            finally:
                file.write_bytes(hostile)

        return opened

    with monkeypatch.context() as patch:
        for kind in (Store, CopiedStore):
            patch.setattr(kind, "open", swapping(kind.open))
        file.write_bytes(hostile)
        try:
            yield
        finally:
            file.write_bytes(honest)


def with_narrative(file: Path, like: Path) -> bytes:
    """The same tensors, with a narrative's letters in the place of the first."""
    tensors, meta = checkpoint.load(like)
    name, first = max(tensors.items(), key=lambda item: item[1].numel())
    letters = torch.tensor([letter / 256 for letter in NARRATIVE * 8], dtype=first.dtype)
    changed = first.flatten().clone()
    letters = letters[: changed.numel()]
    changed[: len(letters)] = letters
    checkpoint.save(file, tensors | {name: changed.view_as(first)}, meta)
    return file.read_bytes()


def released_head(bundle: Path) -> torch.Tensor:
    head = load_file(bundle / "2_Dense" / "model.safetensors")
    return torch.cat([head["linear.weight"].flatten(), head["linear.bias"]])


def test_weights_that_carry_a_narrative(
    plan_at: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Swapped for good, the fit's parameters are refused and nothing is charged. Swapped behind
    each digest, those that were signed are in the bundle, which verifies: each divided by one
    temperature, to the last bit.
    """
    context, planned = plan_at("weights")
    file = planned.candidate.fitted.path / "theta.safetensors"
    honest, signed = file.read_bytes(), checkpoint.load(file)[0]["theta"]
    hostile = with_narrative(tmp_path / "hostile.safetensors", file)
    file.write_bytes(hostile)
    with pytest.raises(StorageError):
        release_plan(context, planned, BundleParameters())
    assert nothing_charged(context)
    file.write_bytes(honest)
    with swapped_behind_every_digest(monkeypatch, file, hostile):
        done = release_plan(context, planned, BundleParameters())
    check(Path(done.bundle), Trust(context.workspace.home / "signing-key.pub.pem"))
    released = released_head(Path(done.bundle)).double()
    temperature = round(float(signed.double() @ released / (released @ released)), 4)
    assert temperature > 1
    torch.testing.assert_close(
        released, (signed.double() / temperature).float().double(), rtol=2e-7, atol=0
    )


def test_a_manifest_with_other_figures(plan_at: Planner) -> None:
    """Figures and settings of a stage are read from bytes that have the signed digest."""
    context, planned = plan_at("manifest")
    dataset = planned.candidate.dataset
    file = dataset.path / "manifest.json"
    honest = file.read_bytes()
    manifest = json.loads(honest)
    manifest["figures"]["classification"] = NARRATIVE.decode()
    file.write_text(json.dumps(manifest))
    try:
        for read in (context.store.figures, context.store.recipe, context.store.open):
            with pytest.raises(StorageError):
                read(dataset)
    finally:
        file.write_bytes(honest)


def test_a_cached_stage_that_nobody_signed(plan_at: Planner, tmp_path: Path) -> None:
    """The embedded public words, from which the bundle's lexicon follows, are found by a key that
    anyone can compute: another stage under it, whole in itself, is not taken.
    """
    context, planned = plan_at("cached")
    assert planned.output.public
    before = lexicon_of(
        context, planned.candidate.model, load_codes(planned.candidate.dataset.path)
    )
    forged = 0
    for stage in (context.workspace.private / "stages" / "titles").iterdir():
        file = stage / "titles.safetensors"
        file.write_bytes(with_narrative(tmp_path / "forged.safetensors", file))
        manifest = json.loads((stage / "manifest.json").read_bytes())
        manifest["files"][file.name] = {
            "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
            "bytes": file.stat().st_size,
        }
        (stage / "manifest.json").write_bytes(rfc8785.dumps(manifest))
        forged += 1
    assert forged
    done = release_plan(context, planned, BundleParameters())
    assert before is not None
    before.save(tmp_path)
    assert (Path(done.bundle) / "lexicon.json").read_bytes() == (
        tmp_path / "lexicon.json"
    ).read_bytes()


def test_features_of_public_texts_in_the_workspace(sealed: Sealed, tmp_path: Path) -> None:
    """A file where features were kept, under the name that they had: the order of the codes in the
    test vectors is still the model's, and no file is kept there.
    """
    made = sealed.copy(tmp_path)
    released = export.load(made)
    answers = golden.texts(load_codes(sealed.candidate.dataset.path))
    named = {
        "encoder": public_features.encoder_digest(released),
        "max_length": released.max_length,
        "texts": list(answers),
        "torch": torch.__version__,
        "processor": torch.backends.cpu.get_cpu_capability(),
    }
    kept = sealed.context.workspace.private / "public-features"
    kept.mkdir(exist_ok=True)
    _, width = load_file(made / "2_Dense" / "model.safetensors")["linear.weight"].shape
    forged = torch.eye(len(answers), width) * 1000
    file = kept / f"{digest(named)[:32]}.safetensors"
    checkpoint.save(file, {"features": forged}, {"texts": len(answers)})
    (tmp_path / "again").mkdir()
    try:
        sealed.refill(tmp_path / "again")
        written = (tmp_path / "again" / "golden.jsonl").read_bytes()
        assert written == (sealed.folder / "golden.jsonl").read_bytes()
        assert list(kept.iterdir()) == [file]
    finally:
        shutil.rmtree(kept)


def test_an_encoder_that_carries_a_narrative(
    plan_at: Planner, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A folder's weights, swapped after the plan was compared with them."""
    context, planned = plan_at("encoder")
    file = Path(planned.candidate.model.encoder) / "model.safetensors"
    honest, checking = file.read_bytes(), PlannedRelease.check

    def checked(plan: PlannedRelease, own: Context) -> None:
        checking(plan, own)
        tensors = load_file(file)
        tensors["embeddings.LayerNorm.bias"][: len(NARRATIVE)] = 0.5
        save_file(tensors, file, metadata={"format": "pt"})

    with monkeypatch.context() as patch:
        patch.setattr(PlannedRelease, "check", checked)
        try:
            with pytest.raises(StorageError):
                release_plan(context, planned, BundleParameters())
        finally:
            file.write_bytes(honest)
    assert nothing_charged(context, planned)


class Posterior:
    """A candidate that is sampled, and counts how often."""

    is_sampled = True

    def __init__(self) -> None:
        self.taken: list[torch.Tensor] = []

    def draw(self, context: Context) -> torch.Tensor:
        self.taken.append(torch.randn(4))
        return self.taken[-1]

    def require_draw(self, context: Context, theta: torch.Tensor) -> None:
        """Any sample is within reach of this posterior."""


def sampling(home: Path) -> tuple[Context, Any, Any, Path]:
    """A workspace, a reserved row, a plan that is sampled, and the sample's file."""
    context = Context(home=str(Workspace(home).create().home))
    row: Any = SimpleNamespace(release_id="0" * 16, state="reserved", draw_digest=None)
    planned: Any = SimpleNamespace(
        plan=SimpleNamespace(idempotency_key="k", event=None),
        candidate=Posterior(),
        digest="0" * 64,
    )
    return context, row, planned, draw_path(context.workspace, "0" * 16)


@pytest.mark.parametrize(
    ("owner", "name"), [("candidate", "draw"), ("drawing", "write_atomically")]
)
def test_a_sample_that_was_lost_is_not_taken_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: str, name: str
) -> None:
    """Killed while it is taken, or between that and its file: the next run takes none, and the
    release is burned.
    """
    context, row, planned, file = sampling(tmp_path / "home")
    with killed_at(monkeypatch, drawing if owner == "drawing" else planned.candidate, name):
        drawing.draw_once(context, row, planned, release_key())
    taken = len(planned.candidate.taken)
    assert taken == (owner == "drawing")
    with pytest.raises(StorageError):
        drawing.draw_once(context, row, planned, release_key())
    assert len(planned.candidate.taken) == taken
    assert not file.exists()


def test_a_sample_that_is_changed_after_it_was_recorded(tmp_path: Path) -> None:
    """Another sample of the same posterior, well formed and signed for this release."""
    context, row, planned, file = sampling(tmp_path / "home")
    draw = drawing.draw_once(context, row, planned, release_key())
    row.state, row.draw_digest = "drawn", draw.digest
    again = drawing.draw_once(context, row, planned, release_key())
    assert torch.equal(again.sample.theta, draw.sample.theta)
    file.write_bytes(drawing._signed_draw(Sample(torch.randn(4)), row, planned, release_key()))
    with pytest.raises(StorageError):
        drawing.draw_once(context, row, planned, release_key())


@pytest.mark.parametrize("when", ["before", "while", "after"])
def test_a_sample_that_another_program_put_there(tmp_path: Path, when: str) -> None:
    """Whoever writes the workspace and has no signing key, before the run samples, while it does,
    or after it was killed: no other vector within the posterior's reach is released.
    """
    context, row, planned, file = sampling(tmp_path / "home")
    stranger = ec.generate_private_key(ec.SECP256R1())
    hostile = drawing._signed_draw(Sample(torch.full((4,), 0.25)), row, planned, stranger)

    def put() -> None:
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(hostile)

    if when == "while":
        draw = planned.candidate.draw

        def drawn(own: Context) -> torch.Tensor:
            put()
            return draw(own)

        planned.candidate.draw = drawn
    elif when == "before":
        put()
    else:
        drawing.draw_once(context, row, planned, release_key())
        put()
    with pytest.raises(StorageError):
        drawing.draw_once(context, row, planned, release_key())
    with pytest.raises(StorageError):
        drawing.draw_once(context, row, planned, release_key())


@pytest.mark.parametrize("name", ["2_Dense/model.safetensors", "0_Transformer/config.json"])
def test_a_bundle_that_changes_while_it_is_packed(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """By the front door: whole when `handover` looks, other weights when it packs, whole again
    after. What was packed is what is checked; nothing is handed over and no row is written.
    """
    home, before = tmp_path / "home", len(sealed.ledger.rows())
    shutil.copytree(sealed.home, home)
    packing, file = registry.pack, home / "bundles" / sealed.folder.name / name

    def swapped(folder: Path, out: Path) -> Path:
        whole = file.read_bytes()
        file.write_bytes(whole.replace(whole[-8:], b"narrated"))
        packed = packing(folder, out)
        file.write_bytes(whole)
        return packed

    monkeypatch.setattr(registry, "pack", swapped)
    handed = ("handover", sealed.folder.name, "--to", "Office", "--out", tmp_path / "outbox")
    with pytest.raises(UnsoundBundle) as refused:
        invoke(*handed, "--home", home)
    assert refused.value.file == name
    assert not list((tmp_path / "outbox").iterdir())
    monkeypatch.setattr(registry, "pack", packing)
    ledger = Ledger.open(Workspace(home).ledger_url)
    assert len(ledger.rows()) == before
    assert invoke(*handed, "--home", home)[0] == 0
    assert list((tmp_path / "outbox").iterdir())


def test_an_index_that_changed_between_two_readings(tmp_path: Path, tiny_bert: Path) -> None:
    """The plan names the coding index by its digest, and ingest read it before: a head starts at no
    other entries, such as private ones that were there for that moment alone.
    """
    context = tiny_jobs.workspace(tmp_path / "home")
    data = tiny_jobs.demo(tmp_path / "data", 120, population="demo")
    code = load_codelist(data)[0]
    index = tmp_path / "index.csv"

    def write(first: str) -> CodingIndex:
        entries = [first, *(f"entry {n}" for n in range(30))]
        index.write_text("text,code\n" + "".join(f"{text},{code}\n" for text in entries))
        return read_index(index)

    private = write(NARRATIVE.decode().strip())
    dataset = run_step(
        context,
        ingest_records(DataParameters.model_validate(data | {"examples": str(index)})),
    ).path
    public = write("published")
    model = ModelConfig.model_validate(
        {"encoder": str(tiny_bert), "trainable": "head", "pooling": "mean", "max_length": 32}
        | {"prior": "titles", "prior_examples": public.digest}
    )
    with pytest.raises(StorageError):
        build(context, model, dataset, seed=1)
    assert private.digest != public.digest


def load_codelist(data: dict[str, Any]) -> list[str]:
    return [code.code for code in read_codelist(Path(data["codelist"]))]
