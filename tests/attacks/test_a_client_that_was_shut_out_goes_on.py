"""Would win: codes from a service by a key that was taken out, or from a revoked release."""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sealed_bundle import Sealed
from starlette.testclient import TestClient

from flows.commands.serve import Watch
from service.app import Settings, create_app
from service.clients import Clients, State
from storage.bundle.check import check
from storage.bundle.trust import RevokedRelease, Root, with_next_root, write_roots
from storage.ledger.keys import load_private_key, new_keys
from tasks.coding.coder import open_bundle

DECLARES = """
who is shut out is out; what is revoked codes no more
| a key taken out, new, broken for a moment; a revocation, an older, foreign, broken or missing list
while it runs; a list that is not renewed
| up to ten seconds; what was coded before
"""

A, B = "a" * 20, "b" * 20
CODE = {"narratives": "Employee fell."}


@contextmanager
def serving(folder: Path, watch: Callable[[], State], state: State) -> Iterator[TestClient]:
    settings = Settings(state=state, renew=watch, renew_seconds=0.01)
    with TestClient(create_app(open_bundle(folder), settings)) as client:
        yield client


def until(client: TestClient, wanted: int, key: str = A) -> Any:
    for _ in range(1000):
        answer = client.post("/code", json=CODE, headers={"X-API-Key": key})
        if answer.status_code == wanted:
            return answer
        time.sleep(0.01)
    raise AssertionError(f"{wanted} never came")


def watching(sealed: Sealed, keys: Path, **trust: Any) -> Watch:
    trusted = replace(sealed.trust, **trust)
    return Watch(
        State(Clients.read(keys.read_text())), keys, trusted, check(sealed.folder, trusted)
    )


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    file = tmp_path / "keys"
    file.write_text(f"# name and key\n\nanna {A}\nben {B}\n")
    return file


def test_a_key_that_was_taken_out(sealed: Sealed, keys: Path) -> None:
    """Is refused without a restart, a new one let in, and the others notice nothing."""
    watch = watching(sealed, keys)
    with serving(sealed.folder, watch, watch.state) as client:
        until(client, 200)
        keys.write_text(f"ben {B}\ncarla {'c' * 20}\n")
        until(client, 401)
        assert until(client, 200, B)
        assert until(client, 200, "c" * 20)


@pytest.mark.parametrize(
    "broken", ["", "anna", f"anna {A}\nben", f"x {A}\ny {A}\n", f"x {A}\nx {B}\n", "\xff", None]
)
def test_a_file_of_keys_that_is_broken_for_a_moment(
    sealed: Sealed, keys: Path, capsys: pytest.CaptureFixture[str], broken: str | None
) -> None:
    """Lets no one in, shuts no one out, and is reported once, without a key."""
    watch = watching(sealed, keys)
    if broken is None:
        keys.unlink()
    else:
        keys.write_text(broken, encoding="latin-1")
    for _ in range(3):
        state = watch()
        assert state.clients
        assert (
            state.clients.name_of(A),
            state.clients.name_of("anna"),
            state.clients.name_of(""),
        ) == (
            "anna",
            None,
            None,
        )
    told = capsys.readouterr().err
    assert told.count("note:") == 1
    assert A not in told


def write(
    file: Path, sealed: Sealed, version: int, *, revoked: bool, key: Any = None, days: int = 9
) -> None:
    """Writes roots up to a version, signed by the workspace's key or another; the last one expires
    after some days.
    """
    row, signing = sealed.row, sealed.key
    entry = RevokedRelease(
        release_id=str(row.release_id),
        bundle_digest=str(row.bundle_digest),
        revoked_on="2026-11-21",
        reason="an error",
    )
    roots = (Root.first(signing.public_key()),)
    for number in range(2, version + 1):
        last = number == version
        roots = with_next_root(
            roots, revoked=(entry,) if revoked and last else (), days=days if last else 9
        )
        roots = (*roots[:-1], roots[-1].signed_by((last and key) or signing))
    write_roots(file, roots)


def test_a_release_that_is_revoked_while_it_is_served(
    sealed: Sealed, keys: Path, tmp_path: Path
) -> None:
    """Codes no more and says why, to load balancers too; no older, broken or foreign file brings it
    back.
    """
    file = tmp_path / "roots.json"
    write(file, sealed, 2, revoked=False)
    watch = watching(sealed, keys, roots=file, state=tmp_path / "state")
    with serving(sealed.folder, watch, watch.state) as client:
        until(client, 200)
        write(file, sealed, 3, revoked=True)
        assert "revoked on 2026-11-21: an error" in until(client, 503).json()["detail"]
        assert client.get("/health").status_code == 503
        assert "an error" in client.get("/version", headers={"X-API-Key": A}).json()["withdrawn"]
    thief = load_private_key(new_keys(tmp_path / "thief")[0])
    for attack in (
        lambda: write(file, sealed, 2, revoked=False),
        lambda: write(file, sealed, 9, revoked=False, key=thief),
        lambda: file.write_text("{}"),
        file.unlink,
    ):
        attack()
        assert watch().withdrawn


def test_roots_that_are_not_renewed_while_it_is_served(
    sealed: Sealed, keys: Path, tmp_path: Path
) -> None:
    """A file that is taken away lets it code until the roots' last day, and no longer; expired ones
    do not.
    """
    file = tmp_path / "roots.json"
    write(file, sealed, 2, revoked=False)
    watch = watching(sealed, keys, roots=file, state=tmp_path / "state")
    assert watch().withdrawn is None
    file.rename(tmp_path / "away")
    assert watch().withdrawn is None
    watch._last_day = "2026-01-01"
    assert "have expired" in str(watch().withdrawn)
    (tmp_path / "away").rename(file)
    assert watch().withdrawn is None
    write(file, sealed, 3, revoked=False, days=-1)
    assert "is expired since" in str(watch().withdrawn)
