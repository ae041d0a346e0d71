"""Attacks on a sealed bundle: whatever is changed, the check refuses and names the file."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from refusals import of_kind
from sealed_bundle import Sealed, plan

from storage.bundle.check import check
from storage.bundle.folder import (
    CODELIST,
    PROOF,
    SIGNATURE,
    STATEMENT,
    UnsoundBundle,
    check_allowed,
)
from storage.bundle.proof import proof_of
from storage.bundle.signing import sign
from storage.bundle.trust import Root, Trust, with_next_root, write_roots
from storage.egress.allow_list import FILES, check_codes, check_layers, read_files
from storage.errors import InputError
from storage.ledger import keys


def flip(path: Path) -> None:
    """Change one bit in the middle of a file."""
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def names(folder: Path) -> list[str]:
    """Files of a bundle."""
    return sorted(
        path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()
    )


def test_a_sealed_bundle_is_sound(sealed: Sealed) -> None:
    """And the check says by whom, which row, how many files."""
    sound = check(sealed.folder, sealed.trust)
    assert sound.release_id == sealed.row.release_id
    assert sound.digest == sealed.row.bundle_digest
    assert sound.ledger_sequence == sealed.row.sequence
    assert sound.signed_by == keys.key_id(sealed.key.public_key())
    assert sound.files == len(names(sealed.folder)) == 20


def each_is_named(
    folder: Path, files: Iterable[str], damage: Callable[[Path], None], trust: Trust | None
) -> None:
    """Damages each file in turn: the check refuses, and it is the file named."""
    for name in files:
        before = (folder / name).read_bytes()
        damage(folder / name)
        with pytest.raises(UnsoundBundle) as refused:
            check(folder, trust, unsigned=trust is None)
        assert refused.value.file == name
        (folder / name).write_bytes(before)
    check(folder, trust, unsigned=trust is None)


@pytest.mark.parametrize("damage", [flip, Path.unlink])
def test_one_bit_in_any_file(
    sealed: Sealed, tmp_path: Path, damage: Callable[[Path], None]
) -> None:
    """Or the whole file gone."""
    folder = sealed.copy(tmp_path)
    each_is_named(folder, names(folder), damage, sealed.trust)


def test_one_bit_in_any_file_of_an_unsigned_bundle(sealed: Sealed, tmp_path: Path) -> None:
    """Without a signature the proof's digests tell; the proof itself no one vouches for."""
    folder = sealed.copy(tmp_path)
    (folder / SIGNATURE).unlink()
    with pytest.raises(UnsoundBundle, check=of_kind("no-key")):
        check(folder, None)
    with pytest.raises(UnsoundBundle, check=of_kind("unsigned")):
        check(folder, sealed.trust, unsigned=True)
    each_is_named(folder, set(names(folder)) - {PROOF}, flip, None)


@pytest.mark.parametrize(
    "name", ["pytorch_model.bin", ".gitignore", "1_Pooling/extra.json", "model.safetensors.bak"]
)
def test_an_added_file(sealed: Sealed, tmp_path: Path, name: str) -> None:
    """Also one that the signing library would have left out of its digests."""
    folder = sealed.copy(tmp_path)
    (folder / name).write_bytes(b"\x80\x04added")
    with pytest.raises(UnsoundBundle, check=of_kind("unlisted-file")) as refused:
        check(folder, sealed.trust)
    assert refused.value.file == name


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("config.json.orig", "unlisted-file"),
        (".DS_Store", "system-file"),
        ("1_Pooling/._config.json", "system-file"),
        ("2_Dense/config.json", "unlisted-folder"),
    ],
)
def test_only_files_of_the_list_may_be_in_a_folder(tmp_path: Path, name: str, kind: str) -> None:
    """What an operating system leaves in a folder is named as such, with the remedy."""
    allowed = frozenset({"config.json", "1_Pooling/config.json"})
    for one in (*allowed, name):
        (tmp_path / one).parent.mkdir(exist_ok=True)
        (tmp_path / one).write_text("{}")
    with pytest.raises(UnsoundBundle, check=of_kind(kind)) as refused:
        check_allowed(tmp_path, allowed)
    assert refused.value.file == (Path(name).parts[0] if kind == "unlisted-folder" else name)
    (tmp_path / name).unlink()
    if kind == "unlisted-folder":
        (tmp_path / name).parent.rmdir()
    check_allowed(tmp_path, allowed)


def test_a_pipe_under_an_allowed_name(tmp_path: Path) -> None:
    """Whoever opened it to read would wait without an end."""
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(UnsoundBundle, check=of_kind("unlisted-file")):
        check_allowed(tmp_path, frozenset({"config.json"}))


def test_an_allowed_file_added(sealed: Sealed, tmp_path: Path) -> None:
    """A name that a bundle may have does not make a file of this bundle."""
    folder = sealed.copy(tmp_path / "signed")
    shutil.move(folder / "thresholds.json", tmp_path / "kept")
    sign(folder, sealed.key, tmp_path / SIGNATURE)
    shutil.copy(tmp_path / SIGNATURE, folder / SIGNATURE)
    shutil.move(tmp_path / "kept", folder / "thresholds.json")
    with pytest.raises(UnsoundBundle, check=of_kind("added-file")) as refused:
        check(folder, sealed.trust)
    assert refused.value.file == "thresholds.json"


def test_a_link_in_place_of_a_file(sealed: Sealed, tmp_path: Path) -> None:
    """Even to the same bytes."""
    folder = sealed.copy(tmp_path)
    shutil.move(folder / "LICENSE", tmp_path / "LICENSE")
    (folder / "LICENSE").symlink_to(tmp_path / "LICENSE")
    with pytest.raises(UnsoundBundle, check=of_kind("link")):
        check(folder, sealed.trust)


def test_a_renamed_code(sealed: Sealed, tmp_path: Path) -> None:
    """Model and list have to agree, even in a bundle that its house signed; a standard head has to
    with itself.
    """
    folder = sealed.copy(tmp_path)
    labels = json.loads((folder / "labels.json").read_text())
    (folder / "labels.json").write_text(json.dumps({"codes": ["999", *labels["codes"][1:]]}))
    with pytest.raises(UnsoundBundle) as refused:
        check_codes(read_files(folder, allowed=frozenset(FILES)))
    assert refused.value.file == CODELIST
    config = {"id2label": {"0": "11", "1": "12"}, "label2id": {"11": 0, "12": 1}}
    contents: dict[str, Any] = {
        "config.json": config,
        CODELIST: [("11",), ("12",)],
        "golden.jsonl": [],
    }
    assert check_codes(contents) == ("11", "12")
    with pytest.raises(UnsoundBundle, check=of_kind("different-labels")):
        check_codes(contents | {"config.json": config | {"label2id": {"11": 0, "999": 1}}})


def test_layers_that_begin_elsewhere(sealed: Sealed, tmp_path: Path) -> None:
    """The layers have to begin where the encoder lies."""
    folder = sealed.copy(tmp_path)
    modules = folder / "modules.json"
    modules.write_text(modules.read_text().replace('"0_Transformer"', '""'))
    with pytest.raises(UnsoundBundle, check=of_kind("other-layers")):
        check_layers(read_files(folder, allowed=frozenset(FILES)))


def test_two_models_in_one_bundle(sealed: Sealed, tmp_path: Path) -> None:
    """A model at the top beside the one below: a library would read the one that no
    one looked at.
    """
    for name in ("config.json", "model.safetensors", "tokenizer.json"):
        folder = sealed.copy(tmp_path / name, seal=False)
        shutil.copy(folder / "0_Transformer" / name, folder / name)
        with pytest.raises(UnsoundBundle, check=of_kind("conflicting-layout")) as refused:
            read_files(folder, allowed=frozenset(FILES))
        assert refused.value.file == name


def test_another_key(sealed: Sealed, tmp_path: Path) -> None:
    """A thief signs a bundle anew with a key of his own; the partner has the agency's."""
    folder = sealed.copy(tmp_path)
    private, _ = keys.new_keys(tmp_path / "thief")
    sign(folder, keys.load_private_key(private), tmp_path / SIGNATURE)
    shutil.copy(tmp_path / SIGNATURE, folder / SIGNATURE)
    with pytest.raises(UnsoundBundle, check=of_kind("another-key")) as refused:
        check(folder, sealed.trust)
    assert refused.value.file == SIGNATURE
    with pytest.raises(UnsoundBundle, check=of_kind("proof-by-another-key")) as refused:
        check(folder, Trust(tmp_path / "thief" / keys.PUBLIC_NAME))
    assert refused.value.file == PROOF


@pytest.mark.parametrize("own_first", [True, False])
def test_the_key_that_a_bundle_names_is_tried_first(
    sealed: Sealed, tmp_path: Path, own_first: bool
) -> None:
    """An agency seals with two keys. In whichever order its root lists them, the refusal of a
    changed file names the file, and not the key that did not seal the bundle.
    """
    folder = sealed.copy(tmp_path)
    own = sealed.key.public_key()
    private, _ = keys.new_keys(tmp_path / "second")
    second = keys.load_private_key(private).public_key()
    chain = with_next_root(
        (Root.first(own),), release_keys=(own, second) if own_first else (second, own), days=9
    )
    write_roots(tmp_path / "roots.json", (chain[0], chain[1].signed_by(sealed.key)))
    trust = Trust(own, roots=tmp_path / "roots.json", state=tmp_path / "state")
    assert check(folder, trust).signed_by == keys.key_id(own)
    flip(folder / CODELIST)
    with pytest.raises(UnsoundBundle, check=of_kind("changed-file")) as refused:
        check(folder, trust)
    assert refused.value.file == CODELIST


def resealed(sealed: Sealed, folder: Path, proof: dict[str, Any], scratch: Path) -> Path:
    """Put another proof in and sign with the agency's own key, as anyone who has that key could."""
    (folder / PROOF).write_text(
        json.dumps(proof, indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    )
    sign(folder, sealed.key, scratch / SIGNATURE)
    shutil.copy(scratch / SIGNATURE, folder / SIGNATURE)
    return folder


def test_a_proof_rolled_back(sealed: Sealed, tmp_path: Path) -> None:
    """The proof of an earlier release, of another row, or of a statement that claims less: each is
    reported.
    """
    key = sealed.key
    other = sealed.ledger.reserve(plan("rolled back"))
    assert other.release_id
    sealed.ledger.mark_drawn(other.release_id, draw_digest="e" * 64)
    from storage.artifacts import digest

    files: dict[str, str] = {"README.md": "0" * 64}
    other = sealed.ledger.commit(other.release_id, bundle_digest=digest(files))
    earlier = proof_of(other, files, key=key)
    good = json.loads((sealed.folder / PROOF).read_text())

    folder = sealed.copy(tmp_path)
    (folder / PROOF).write_text(json.dumps(earlier))
    with pytest.raises(UnsoundBundle, check=of_kind("changed-file", saying="signed")) as refused:
        check(folder, sealed.trust)
    assert refused.value.file == PROOF
    for forged, refusal in (
        (earlier, of_kind("added-file", saying="proof")),
        (earlier | {"files": good["files"]}, of_kind("proof-of-another-bundle")),
        (good | {"head": earlier["head"]}, of_kind("head-of-another-row")),
        (
            good | {"head": good["head"] | {"stated_at": "2031-01-01"}},
            of_kind("proof-by-another-key"),
        ),
        (
            good | {"row": good["row"] | {"epsilon": "0.5"}},
            of_kind("differs-from-row", saying="epsilon"),
        ),
        (good | {"row": good["row"] | {"state": "drawn"}}, of_kind("schema-violation")),
    ):
        with pytest.raises(UnsoundBundle, check=refusal):
            check(resealed(sealed, folder, forged, tmp_path), sealed.trust)
    check(resealed(sealed, folder, good, tmp_path), sealed.trust)


def test_the_proof_tells_nothing_of_the_records(sealed: Sealed) -> None:
    """Neither digests that follow from the records, nor who asked, nor the time of day, nor the row
    before.
    """
    text = (sealed.folder / PROOF).read_text()
    whole = sealed.row.as_json()
    for name in (
        "data_fingerprint",
        "requester",
        "idempotency_key",
        "previous_hash",
        "recorded_at",
    ):
        assert f'"{name}": ' not in text
        if name != "recorded_at":
            assert str(whole[name]) not in text.replace('"first"', "")
    assert str(whole["recorded_at"])[:10] in text
    assert str(whole["recorded_at"])[:16] not in text


DEEP = b"[" * 100_000


@pytest.mark.parametrize(("name", "content"), [(SIGNATURE, DEEP), (STATEMENT, DEEP)])
def test_what_is_nested_too_deeply(
    sealed: Sealed, tmp_path: Path, name: str, content: bytes
) -> None:
    """JSON that no reader can follow to its end; whether or not the signature is looked at."""
    folder = sealed.copy(tmp_path)
    (folder / name).write_bytes(content)
    with pytest.raises(UnsoundBundle) as refused:
        if name == SIGNATURE:
            check(folder, sealed.trust)
        else:
            read_files(folder, allowed=frozenset(FILES))
    assert refused.value.file == name


def test_layers_that_do_not_fit_each_other(sealed: Sealed, tmp_path: Path) -> None:
    """In a bundle whose house, or anyone who needs no signature, made the proof to it."""
    for name, field in (
        ("2_Dense/config.json", "in_features"),
        ("2_Dense/config.json", "out_features"),
    ):
        folder = sealed.copy(tmp_path / field)
        config = json.loads((folder / name).read_text())
        (folder / name).write_text(json.dumps(config | {field: config[field] + 1}))
        with pytest.raises(UnsoundBundle, check=of_kind("wrong-width")):
            check(sealed.unsigned_proof(folder), None, unsigned=True)
    check(sealed.unsigned_proof(sealed.copy(tmp_path / "whole")), None, unsigned=True)


def test_field_and_key_that_nobody_expects(sealed: Sealed, tmp_path: Path) -> None:
    """An unknown field and a repeated key are refused, and the field is named."""
    folder = sealed.copy(tmp_path, seal=False)
    file = folder / STATEMENT
    statement = json.loads(file.read_text())
    file.write_text(json.dumps(statement | {"class_counts": {"111": 17}}))
    with pytest.raises(UnsoundBundle, check=of_kind("schema-violation", saying="class_counts")):
        read_files(folder, allowed=frozenset(FILES))
    file.write_text(json.dumps(statement)[:-1] + ', "epsilon": "0.1"}')
    with pytest.raises(UnsoundBundle, check=of_kind("repeated-key")):
        read_files(folder, allowed=frozenset(FILES))
    file.write_text(
        json.dumps(
            statement | {"audit": {"attack_auc": 0.53, "queries": [1, 2], "of": {"low": 0.1}}}
        )
    )
    read_files(folder, allowed=frozenset(FILES))


BLOCKED = """
import socket, sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"torch", "transformers", "prefect", "pandas", "datasets"}:
            raise ModuleNotFoundError(name)

sys.meta_path.insert(0, Blocked())

def refuse(*arguments, **options):
    raise OSError("no network")

socket.socket.connect = refuse
socket.getaddrinfo = refuse
from flows.cli import main
main()
"""


def test_the_command_needs_neither_model_nor_network(sealed: Sealed, tmp_path: Path) -> None:
    """With torch, transformers, Prefect and every connection out of reach it still says what holds,
    or what doesn't.
    """
    folder = sealed.copy(tmp_path)

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-c", BLOCKED, "verify", str(folder), *arguments]
        return subprocess.run(command, capture_output=True, text=True, timeout=240)

    key = str(sealed.trust.pinned)
    done = run("--key", key, "--no-golden", "--json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["sound"] is True
    flip(folder / "codelist.csv")
    done = run("--key", key, "--no-golden")
    assert done.returncode == 1
    assert "codelist.csv: was changed since it was signed" in done.stderr
    assert "Traceback" not in done.stderr


COUNTED = """
import atexit, sys
OURS = {"flows", "tasks", "storage", "mechanisms", "deployments", "autocoder", "service", "studies"}
atexit.register(lambda: print(sum(name.partition(".")[0] in OURS for name in sys.modules)))
from flows.cli import main
main()
"""


def test_a_wrong_key_is_refused_by_little_code(sealed: Sealed, tmp_path: Path) -> None:
    """Before a bundle is read; a partner who reads the source of what decides has few files to
    read.
    """
    keys.new_keys(tmp_path)
    wrong = str(tmp_path / keys.PUBLIC_NAME)
    command = [sys.executable, "-c", COUNTED, "verify", str(sealed.folder), "--key", wrong]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240)
    assert done.returncode == 1
    assert "was made by another key" in done.stderr
    assert int(done.stdout) <= 43


def test_no_key_no_check(sealed: Sealed) -> None:
    """A key file that is none is the user's mistake, not the bundle's."""
    with pytest.raises(InputError, check=of_kind("not-a-public-key"), match=r"LICENSE"):
        check(sealed.folder, Trust(sealed.folder / "LICENSE"))
