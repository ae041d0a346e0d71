"""An encoder of BERT's layout in plain torch: the states and files of transformers, which takes
what does not fit.
"""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from refusals import of_kind
from safetensors.torch import load_file, save_file
from transformers import AutoConfig

from mechanisms.errors import MechanismError
from mechanisms.model import bert, encoder_files, encoders
from storage.artifacts import files_digest

FAMILIES = ["tiny_bert", "tiny_roberta"]


@pytest.fixture(params=FAMILIES)
def folder(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return Path(shutil.copytree(request.getfixturevalue(request.param), tmp_path / "encoder"))


def own(folder: Path) -> bert.Bert | None:
    """Reads an encoder as `load_frozen` does, without what it does where this fails."""
    return bert.read(folder, encoder_files.load(AutoConfig, str(folder)))


def test_states_are_those_of_transformers(folder: Path) -> None:
    """Rows that are full and padded, by weights that all differ; within float32's rounding."""
    theirs = encoders.load_encoder(str(folder)).eval()
    with torch.no_grad():
        g = torch.Generator().manual_seed(1)
        for weight in theirs.parameters():
            weight.add_(0.1 * torch.randn(weight.shape, generator=g))
    theirs.save_pretrained(folder)  # pyrefly: ignore[not-callable]
    ours = own(folder)
    assert ours is not None
    batch = {
        "input_ids": torch.randint(5, 100, (3, 12), generator=g),
        "attention_mask": torch.ones(3, 12).long(),
    }
    for row, end in enumerate((12, 7, 1)):
        batch["attention_mask"][row, end:] = 0
        batch["input_ids"][row, end:] = int(ours.config.pad_token_id)
    there = batch["attention_mask"].bool()
    with torch.no_grad():
        expected, found = (model(**batch).last_hidden_state[there] for model in (theirs, ours))
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(found[0], found[1])


def test_files_are_those_that_transformers_writes(folder: Path, tmp_path: Path) -> None:
    """Byte for byte, whatever head the weights were saved with."""
    theirs = encoders.load_encoder(str(folder))
    theirs.save_pretrained(tmp_path / "theirs")  # pyrefly: ignore[not-callable]
    ours = own(tmp_path / "theirs")
    assert ours is not None
    ours.save_pretrained(tmp_path / "ours")
    for name in ("config.json", "model.safetensors"):
        assert (tmp_path / "ours" / name).read_bytes() == (
            tmp_path / "theirs" / name
        ).read_bytes(), name


def test_a_head_stays_behind(tiny_roberta: Path) -> None:
    """A language model's encoder is read without its head; the pooler that it never had is zero."""
    assert any(
        name.startswith("lm_head.") for name in load_file(tiny_roberta / "model.safetensors")
    )
    ours, theirs = own(tiny_roberta), encoders.load_encoder(str(tiny_roberta)).state_dict()
    assert ours is not None
    weights = ours.state_dict()
    assert set(theirs) == set(weights)
    for name, weight in weights.items():
        assert torch.equal(
            weight, torch.zeros_like(weight) if name.startswith("pooler.") else theirs[name]
        ), name


def test_weights_are_no_view_of_the_file(folder: Path) -> None:
    """The file may be written anew while the encoder is in use."""
    ours = own(folder)
    assert ours is not None
    before = {name: weight.clone() for name, weight in ours.state_dict().items()}
    file = folder / "model.safetensors"
    with file.open("r+b") as opened:
        opened.write(bytes(file.stat().st_size))
    assert all(torch.equal(weight, before[name]) for name, weight in ours.state_dict().items())


def test_weights_that_are_shared_are_read_again_when_the_file_changes(folder: Path) -> None:
    """One copy for all that this process builds on an encoder. A file that changed is another
    encoder, in weights and digest, though its size and its time of modification are as they were.
    """
    one, two = (encoders.load_frozen(str(folder), once=True).state_dict() for _ in range(2))
    assert all(
        weight.data_ptr() == two[name].data_ptr()
        for name, weight in one.items()
        if "pooler" not in name
    )
    apart = encoders.load_frozen(str(folder)).state_dict()
    assert not any(weight.data_ptr() == one[name].data_ptr() for name, weight in apart.items())
    file = folder / "model.safetensors"
    before, digest = file.stat(), files_digest([file])
    save_file(
        {name: 2 * weight for name, weight in load_file(file).items()},
        file,
        metadata={"format": "pt"},
    )
    os.utime(file, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert (file.stat().st_mtime_ns, file.stat().st_size) == (before.st_mtime_ns, before.st_size)
    assert files_digest([file]) != digest
    changed = encoders.load_frozen(str(folder), once=True).state_dict()
    assert all(torch.equal(weight, 2 * one[name]) for name, weight in changed.items())


def test_halved_weights_are_read_in_float32(folder: Path) -> None:
    """As a bundle's are, which may be stored in bfloat16."""
    file = folder / "model.safetensors"
    save_file({name: weight.bfloat16() for name, weight in load_file(file).items()}, file)
    ours = own(folder)
    assert ours is not None
    assert {weight.dtype for weight in ours.parameters()} == {torch.float32}


def configure(**values: Any) -> Callable[[Path], None]:

    def spoil(folder: Path) -> None:
        file = folder / "config.json"
        file.write_text(json.dumps(json.loads(file.read_text()) | values))

    return spoil


def drop_a_weight(folder: Path) -> None:
    file = folder / "model.safetensors"
    weights = load_file(file)
    weights.pop(
        next(name for name in weights if name.endswith("layer.0.attention.self.query.bias"))
    )
    save_file(weights, file)


def to_whole_numbers(folder: Path) -> None:
    file = folder / "model.safetensors"
    save_file(
        {name: (100 * weight).to(torch.int8) for name, weight in load_file(file).items()}, file
    )


def tear(folder: Path) -> None:
    file = folder / "model.safetensors"
    file.write_bytes(file.read_bytes()[:-100])


@pytest.mark.parametrize(
    "spoil",
    [
        *(
            configure(hidden_act="relu"),
            configure(is_decoder=True),
            configure(model_type="electra"),
        ),
        *(
            configure(intermediate_size=64),
            configure(num_hidden_layers=3),
            configure(num_attention_heads=0),
        ),
        *(configure(num_attention_heads=3), configure(type_vocab_size=-1), to_whole_numbers),
        *(configure(quantization_config={"quant_method": "fp8"}), drop_a_weight, tear),
        lambda folder: (folder / "model.safetensors").rename(
            folder / "model-00001-of-00001.safetensors"
        ),
    ],
    ids=[
        *(
            "activation",
            "decoder",
            "family",
            "width",
            "layers",
            "no heads",
            "heads",
            "no types",
            "whole",
        ),
        *("quantised", "missing", "torn", "shards"),
    ],
)
def test_what_does_not_fit_is_left_to_transformers(
    folder: Path, spoil: Callable[[Path], None]
) -> None:
    """None is returned, never an encoder whose weights were guessed."""
    spoil(folder)
    assert own(folder) is None


def test_a_torn_file_is_refused(folder: Path) -> None:
    """In the words for any encoder that cannot be loaded."""
    tear(folder)
    with pytest.raises(MechanismError, check=of_kind("no-model")):
        encoders.load_frozen(str(folder))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_empty_one_counts_the_weights_of_transformers(
    family: str, request: pytest.FixtureRequest
) -> None:
    """`shape` says how much memory an encoder takes, only from its configuration."""
    name = str(request.getfixturevalue(family))
    theirs = sum(weight.numel() for weight in encoders.load_encoder(name).parameters())
    assert encoder_files.shape(name) == (theirs, 16)


def test_neither_transformers_models_nor_a_compiler_is_imported(tiny_bert: Path) -> None:
    """They take longer than torch: loading, saving and what a release asks of an encoder do
    without.
    """
    program = """
import sys
from pathlib import Path
from mechanisms.model import encoder_files, encoders
name = sys.argv[1]
encoders.load_frozen(name).save_pretrained(Path(sys.argv[2]))
encoder_files.load_tokenizer(name), encoder_files.shape(name), encoder_files.longest(name)
assert not {x for x in encoder_files.settings(name) if x.startswith("Bert")
            and not encoder_files.is_usual(x)}
print({"transformers.modeling_utils", "torch._dynamo"} & set(sys.modules))
"""
    words = [sys.executable, "-c", program, str(tiny_bert), str(tiny_bert.parent / "saved")]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"
