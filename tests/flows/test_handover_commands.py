"""verify, handover and revoke as a person types them."""

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from in_process import invoke as run
from refusals import of_kind
from sealed_bundle import Sealed

from flows import deployed
from flows.code_batch import code_batch
from storage.errors import StorageError
from storage.ledger.keys import key_id, load_public_key
from tasks.coding.coder import open_bundle, require_not_revoked


def test_verify_tries_the_golden_answers(sealed: Sealed, tmp_path: Path) -> None:
    """One line for what holds; other weights of the right shape, signed by the agency, give other
    answers.
    """
    import torch
    from safetensors.torch import load_file, save_file

    from storage.bundle.folder import PROOF, SIGNATURE, content_files

    key = sealed.trust.pinned
    assert key
    code, out, _ = run("verify", sealed.folder, "--key", key)
    assert code == 0
    assert out.startswith(f"sound: release {sealed.row.release_id}, signed by ")
    assert "48 test vectors" in out
    folder = sealed.copy(tmp_path)
    weights = folder / "2_Dense" / "model.safetensors"
    save_file(
        {
            name: tensor + 0.1 * torch.randn(tensor.shape)
            for name, tensor in load_file(weights).items()
        },
        weights,
    )
    code, _, err = run("verify", folder, "--key", key, "--no-golden")
    assert (code, "2_Dense/model.safetensors: was changed since it was signed" in err) == (1, True)
    from storage.artifacts import digest
    from storage.bundle.proof import proof_of
    from storage.bundle.signing import sign

    files = content_files(folder)
    row = replace(sealed.row, bundle_digest=digest(files))
    (folder / PROOF).write_text(json.dumps(proof_of(row, files, key=sealed.key)))
    sign(folder, sealed.key, tmp_path / SIGNATURE)
    shutil.copy(tmp_path / SIGNATURE, folder / SIGNATURE)
    assert run("verify", folder, "--key", key, "--no-golden")[0] == 0
    code, _, err = run("verify", folder, "--key", key)
    assert code == 1
    assert "golden.jsonl: narrative 1: the model gives a different answer" in err


def far_ids(tokenizer: dict[str, Any]) -> dict[str, Any]:
    vocabulary = {word: number + 10**6 for word, number in tokenizer["model"]["vocab"].items()}
    return tokenizer | {"model": tokenizer["model"] | {"vocab": vocabulary}}


@pytest.mark.parametrize(
    ("file", "change"),
    [
        ("0_Transformer/config.json", lambda content: content | {"num_attention_heads": 0}),
        ("0_Transformer/tokenizer.json", far_ids),
        ("0_Transformer/config.json", lambda content: content | {"max_position_embeddings": 1}),
    ],
)
def test_a_model_that_its_libraries_choke_on(
    sealed: Sealed, tmp_path: Path, file: str, change: Callable[[dict[str, Any]], dict[str, Any]]
) -> None:
    """Unsound, in one line with the type of what they raised, though its proof fits."""
    folder = sealed.copy(tmp_path)
    (folder / file).write_text(json.dumps(change(json.loads((folder / file).read_text()))))
    code, _, err = run("verify", sealed.unsigned_proof(folder), "--allow-unsigned")
    assert code == 1
    assert re.search(r"NOT SOUND  (labels.json|golden.jsonl): the model cannot .* \(\w+\)", err), (
        err
    )


def test_mistakes_end_in_one_line(sealed: Sealed, tmp_path: Path) -> None:
    """What is missing or no name is said with the option's name, and nothing is
    left in the outbox.
    """
    release = str(sealed.row.release_id)
    handed = ("handover", release, "--out", tmp_path / "outbox", "--home", sealed.home)
    for arguments, refusal in (
        (("verify", sealed.folder), of_kind("no-key-to-verify")),
        (
            ("verify", tmp_path / "none", "--key", sealed.trust.pinned),
            of_kind("no-bundle"),
        ),
        (
            ("handover", "x", "--to", "y", "--out", tmp_path, "--home", tmp_path),
            of_kind("no-ledger"),
        ),
        ((*handed, "--to", "x" * 201), of_kind("name-length", saying="--to")),
        ((*handed, "--to", "Statistics\tOffice"), of_kind("name-length", saying="--to")),
        ((*handed, "--to", " "), of_kind("name-length", saying="--to")),
        (
            ("handover", "0" * 16, "--to", "x", "--out", tmp_path, "--home", sealed.home),
            of_kind("unknown-release"),
        ),
    ):
        with pytest.raises(StorageError, check=refusal):
            run(*(str(part) for part in arguments))
    assert not (tmp_path / "outbox").exists()


def test_the_house_does_not_code_with_what_it_revoked(sealed: Sealed, tmp_path: Path) -> None:
    """Neither from the workspace nor from an archive of it; elsewhere, and when it is wanted all
    the same, it does. The ledger's list and the release's own page say so first, with the reason
    and who holds the bundle.
    """
    release = str(sealed.row.release_id)
    house = shutil.copytree(
        sealed.home, tmp_path / "house", ignore=shutil.ignore_patterns("source", "again")
    )
    home, text = ("--home", house), "Employee fell from a ladder."
    _, out, _ = run(
        "handover", release, "--to", "Statistics Office", "--out", tmp_path, "--json", *home
    )
    bundle = ("--bundle", json.loads(out)["archive"])
    public = load_public_key(Path(json.loads(out)["public_key"]))
    assert isinstance(sealed.trust.pinned, Path)
    assert key_id(public) == key_id(load_public_key(sealed.trust.pinned))
    status, _, answered_by = run("code", text, *bundle, *home)
    assert (status, answered_by.startswith(f"model {release} (demo, ")) == (0, True)
    run("revoke", release, "--reason", "an error in the list", "--out", tmp_path / "r.json", *home)
    listed = run("ledger", "show", *home)[1]
    assert listed.index(f"Release {release}: REVOKED on") < listed.index("population")
    assert (
        "REVOKED on"
        in run("ledger", "export", "page", "--release", release, *home)[1].split("mechanism")[0]
    )
    shown = run("ledger", "show", release, *home)[1]
    assert shown.startswith(f"Release {release}: REVOKED")
    assert (
        "an error in the list. Do not use or share it. Shared with: Statistics Office."
        in " ".join(shown.split())
    )
    assert json.loads(run("ledger", "show", release, "--json", *home)[1])["revoked_on"]
    for given in (home, (*bundle, *home)):
        with pytest.raises(StorageError, check=of_kind("revoked", saying="an error in the list")):
            run("code", text, *given)
    assert run("code", text, *bundle, "--home", tmp_path / "elsewhere")[0] == 0


def test_a_worker_without_ledger_knows_revoked(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It has the ledger's address and no password, as in a container: the roots beside the bundles
    say it.
    """
    release = str(sealed.row.release_id)
    house = shutil.copytree(
        sealed.home, tmp_path / "house", ignore=shutil.ignore_patterns("source", "again")
    )
    coder = open_bundle(house / "bundles" / release)
    monkeypatch.setenv("AUTOCODER_LEDGER_URL", "postgresql+psycopg://autocoder@127.0.0.1:1/ledger")
    with pytest.raises(StorageError, check=of_kind("no-connection", saying="--bundle")):
        require_not_revoked(coder, house)
    monkeypatch.setenv("AUTOCODER_NO_LEDGER", "yes")
    require_not_revoked(coder, house)
    with monkeypatch.context() as patch:
        patch.delenv("AUTOCODER_LEDGER_URL")
        run(
            "revoke", release, "--reason", "an error", "--out", tmp_path / "r.json", "--home", house
        )
    source = tmp_path / "in.csv"
    source.write_text("Final Narrative\nEmployee fell.\n")
    job: dict[str, Any] = {
        "data": str(source),
        "out": str(tmp_path / "out.csv"),
        "home": str(house),
    }
    with pytest.raises(StorageError, check=of_kind("revoked-bundle", saying="an error")):
        code_batch.fn(**job)
    assert not list(tmp_path.glob("*out.csv*"))
    (house / "bundles" / ".roots.json").write_text("{}")
    with pytest.raises(StorageError, check=of_kind("not-roots")):
        require_not_revoked(coder, house)


def test_hand_over_and_revoke(
    sealed: Sealed, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """From the workspace to a partner and back: the archive verifies until the
    roots say otherwise.
    """
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    release, key = str(sealed.row.release_id), sealed.trust.pinned
    assert key
    house = shutil.copytree(
        sealed.home, tmp_path / "house", ignore=shutil.ignore_patterns("source", "again")
    )
    home = ("--home", house)
    _, out, _ = run(
        "handover", release, "--to", "Statistics Office", "--out", tmp_path, "--json", *home
    )
    told = json.loads(out)
    archive = Path(told["archive"])
    assert told["release_row"] == sealed.row.sequence
    assert run("verify", archive, "--key", key, "--no-golden")[0] == 0
    assert "Shared with: Statistics Office." in run("ledger", "show", release, *home)[1]
    roots = tmp_path / "roots.json"
    _, out, _ = run("revoke", release, "--reason", "a test", "--out", roots, *home)
    assert "handed to: Statistics Office" in out
    code, out, _ = run("verify", archive, "--key", key, "--no-golden", "--roots", roots, "--json")
    assert code == 1
    assert json.loads(out)["file"] == "privacy_statement.json"
    with pytest.raises(StorageError, check=of_kind("revoked-release")):
        run("handover", release, "--to", "Labour Office", "--out", tmp_path, *home)


def test_a_form_hands_over_and_revokes_as_the_commands_do(sealed: Sealed, tmp_path: Path) -> None:
    """With the ledger's row, the archive and the roots."""
    release = str(sealed.row.release_id)
    house = shutil.copytree(
        sealed.home, tmp_path / "house", ignore=shutil.ignore_patterns("source", "again")
    )
    place = {"folder": str(tmp_path), "home": str(house)}
    handed = deployed.handover.fn(release, "Statistics Office", **place)
    assert handed.release_row == sealed.row.sequence
    assert run("verify", handed.archive, "--key", str(sealed.trust.pinned), "--no-golden")[0] == 0
    revoked = deployed.revoke.fn(release, "a test", **place)
    assert (revoked.partners, revoked.missing_signatures) == (("Statistics Office",), 0)
    assert release in (tmp_path / "roots.json").read_text()
    with pytest.raises(StorageError, check=of_kind("revoked-release")):
        deployed.handover.fn(release, "Labour Office", **place)
