"""Keys and signed heads: what a partner keeps, and what it proves later."""

import json
import stat

import pytest
from refusals import of_kind

from storage.errors import InputError
from storage.ledger import checkpoints, keys
from storage.ledger.report import read_export


@pytest.fixture
def key_pair(tmp_path):
    private, public = keys.new_keys(tmp_path / "keys")
    return keys.load_private_key(private), keys.load_public_key(public)


def test_a_private_key_is_closed_to_others_and_never_overwritten(tmp_path):
    """Mode 0600 from the first moment; a second `new` in the same folder is refused and changes
    nothing.
    """
    private, public = keys.new_keys(tmp_path)
    before = private.read_bytes()
    assert stat.S_IMODE(private.stat().st_mode) == 0o600
    with pytest.raises(InputError, check=of_kind("key-exists")):
        keys.new_keys(tmp_path)
    assert private.read_bytes() == before
    private.unlink()
    with pytest.raises(InputError, check=of_kind("key-exists")):
        keys.new_keys(tmp_path)
    assert not private.exists()
    assert keys.key_id(keys.load_public_key(public))


def test_a_private_key_open_to_others_is_not_used(tmp_path):
    """A key that others could copy proves nothing."""
    private, _ = keys.new_keys(tmp_path)
    private.chmod(0o640)
    with pytest.raises(InputError, check=of_kind("key-open-to-others")):
        keys.load_private_key(private)


def test_a_signed_head_is_checked_from_its_file(tmp_path, key_pair):
    """Written, read and verified only with the public key."""
    private, public = key_pair
    head = checkpoints.state_checkpoint(3, "a" * 64, key=private)
    path = tmp_path / "head.json"
    path.write_text(json.dumps(head.model_dump()))
    assert checkpoints.read_checkpoint(path, key=public) == head


@pytest.mark.parametrize(
    "change",
    [
        {"sequence": 4},
        {"hash": "b" * 64},
        {"stated_at": "2020"},
        {"signature": "AAAA"},
    ],
)
def test_a_changed_head_is_refused(key_pair, change):
    """Every field is signed."""
    private, public = key_pair
    head = checkpoints.state_checkpoint(3, "a" * 64, key=private).model_copy(update=change)
    with pytest.raises(InputError, check=of_kind("invalid-head", row=head.sequence)):
        checkpoints.check_signature(head, public)


def test_a_head_without_a_signature_is_refused(key_pair):
    private, public = key_pair
    head = checkpoints.state_checkpoint(3, "a" * 64, key=private).model_copy(
        update={"signature": None}
    )
    with pytest.raises(InputError, check=of_kind("head-by-another-key", saying="row 3")):
        checkpoints.check_signature(head, public)


def test_a_head_of_another_key_is_refused(tmp_path, key_pair):
    """Also when it claims the expected key's id."""
    _, public = key_pair
    private, _ = keys.new_keys(tmp_path / "other")
    head = checkpoints.state_checkpoint(3, "a" * 64, key=keys.load_private_key(private))
    with pytest.raises(InputError, check=of_kind("head-by-another-key")):
        checkpoints.check_signature(head, public)
    forged = head.model_copy(update={"key_id": keys.key_id(public)})
    with pytest.raises(InputError, check=of_kind("invalid-head")):
        checkpoints.check_signature(forged, public)


def test_what_is_no_key_or_head_is_named(tmp_path):
    """Missing files, text that is no key, another curve, a head with a field too many."""
    wrong = tmp_path / "wrong.pem"
    wrong.write_text("no key")
    wrong.chmod(0o600)
    for load, kind in (
        (keys.load_private_key, "not-a-private-key"),
        (keys.load_public_key, "not-a-public-key"),
    ):
        with pytest.raises(InputError, check=of_kind(kind, saying="wrong.pem")):
            load(wrong)
        with pytest.raises(InputError, check=of_kind("unreadable-file", saying="absent")):
            load(tmp_path / "absent")
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    other = ec.generate_private_key(ec.SECP384R1())
    wrong.write_bytes(
        other.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    with pytest.raises(InputError, check=of_kind("not-p-256")):
        keys.load_private_key(wrong)
    head = checkpoints.state_checkpoint(0, "0" * 64).model_dump() | {"extra": 1}
    (tmp_path / "head.json").write_text(json.dumps(head))
    with pytest.raises(InputError, check=of_kind("not-a-head")):
        checkpoints.read_checkpoint(tmp_path / "head.json")
    (tmp_path / "head.json").write_text("[" * 50_000)
    with pytest.raises(InputError, check=of_kind("not-a-head")):
        checkpoints.read_checkpoint(tmp_path / "head.json")
    with pytest.raises(InputError, check=of_kind("not-an-export")):
        read_export(tmp_path / "head.json")
