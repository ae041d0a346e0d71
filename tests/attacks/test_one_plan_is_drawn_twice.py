"""Would win: a second draw of one plan, under another ledger, or under the same one put back to an earlier state."""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from ledger_sites import Site, make_plan
from sqlalchemy.exc import DBAPIError

from storage.artifacts import digest
from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Ledger, Policy, ReleasePlan, lost
from storage.ledger.content import recovery_terms
from storage.ledger.decisions import Decision, sign
from storage.ledger.heads import public_pem
from storage.ledger.journal import VARIABLE, ForeignLedger, Journal, journals_of, own_journal
from storage.ledger.models import Mark
from storage.ledger.witness import Witness, make_witness
from storage.paths import Workspace


@pytest.fixture
def house(tmp_path: Path) -> Workspace:
    """A workspace whose ledger has its policy, of one approval, and an empty journal behind it."""
    return Workspace(tmp_path / "house").create()


def officer() -> Any:
    from cryptography.hazmat.primitives.asymmetric import ec

    return ec.generate_private_key(ec.SECP256R1())


KEY = officer()
STRICT = Policy.parse(
    {
        "name": "strict",
        "approvals": {"minimum": 1, "approvers": {"Officer": public_pem(KEY.public_key()).decode()}},
        "default": {"asymptotic-local": {"epsilon": 8}},
    }
)


def opened(house: Workspace, url: str | None = None) -> Ledger:
    """As a run opens it."""
    return Ledger.open(url or house.ledger_url, journals=journals_of(house))


def begun(house: Workspace) -> Ledger:
    """With the strict policy in force."""
    ledger = opened(house)
    ledger.change_policy(STRICT, requester="lead", reason="start")
    return ledger


def planned(ledger: Ledger, key: str = "k") -> ReleasePlan:
    """A plan made under a ledger."""
    return make_plan(key, ledger=ledger.begun(requester="operator"))


def approved(plan: ReleasePlan, key: Any = KEY) -> Decision:
    from storage.ledger.content import release_terms

    return sign(key, subject="release", decision="approve", digest="d" * 64, terms=release_terms(plan))


def released(ledger: Ledger, plan: ReleasePlan, decision: Decision | None = None) -> str:
    """Through all states."""
    row = ledger.reserve(plan, plan_digest="d" * 64, decisions=[decision or approved(plan)])
    ledger.mark_drawn(str(row.release_id), draw_digest="d" * 64)
    ledger.commit(str(row.release_id), bundle_digest="b" * 64)
    return str(row.release_id)


def backup(house: Workspace, to: Path) -> Callable[[], None]:
    """Copy the database (SQLite checkpoints its log when the last connection closes); the way back."""
    file = house.home / "ledger.db"
    shutil.copy(file, to)

    def restore() -> None:
        for left in house.home.glob("ledger.db*"):
            left.unlink()
        shutil.copy(to, file)

    return restore


def test_a_plan_under_another_ledger(house: Workspace, tmp_path: Path) -> None:
    """A new workspace's, one that is elsewhere, an empty one, one with the same policy; a plan that names none."""
    plan = planned(begun(house))
    for name in ("new", "third"):
        other = Workspace(tmp_path / name).create()
        ledger = begun(other)
        with pytest.raises(BudgetRefused, match="was made under"):
            ledger.reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
        with pytest.raises(BudgetRefused, match="was made under"):
            ledger.require_here(plan)
        assert all(row.kind != "release" for row in ledger.rows())
    empty = Ledger.open(f"sqlite:///{tmp_path / 'empty.db'}")
    with pytest.raises(BudgetRefused, match="an empty one"):
        empty.reserve(plan)
    with pytest.raises(BudgetRefused, match="names no ledger"):
        opened(house).require_here(make_plan())


def test_a_plan_whose_ledger_was_written_over_by_hand(house: Workspace, tmp_path: Path) -> None:
    """The other ledger's name alone does not do: the row must be in it, and the signature is over both."""
    plan = planned(begun(house))
    ledger = begun(Workspace(tmp_path / "new").create())
    mark = ledger.mark()
    assert mark is not None
    assert plan.ledger is not None
    mixed = plan.model_copy(update={"ledger": Mark(ledger=mark.ledger, sequence=1, hash=plan.ledger.hash)})
    with pytest.raises(BudgetRefused, match="no such row"):
        ledger.reserve(mixed, plan_digest="d" * 64, decisions=[approved(mixed)])
    moved = plan.model_copy(update={"ledger": mark})
    with pytest.raises(InputError, match="something else"):
        ledger.reserve(moved, plan_digest="d" * 64, decisions=[approved(plan)])


@pytest.mark.parametrize("url", ["elsewhere", "deleted", "empty"])
def test_a_ledger_in_the_place_of_the_one_that_was_used(house: Workspace, tmp_path: Path, url: str) -> None:
    """By another URL, deleted, or replaced by an empty file: refused before one is made."""
    begun(house)
    place = house.ledger_url
    if url == "elsewhere":
        place = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    else:
        for left in house.home.glob("ledger.db*"):
            left.unlink()
        if url == "empty":
            (house.home / "ledger.db").touch()
    with pytest.raises(ForeignLedger, match="has used ledger"):
        opened(house, place)
    assert not (tmp_path / "elsewhere.db").exists()
    fresh = Workspace(tmp_path / "fresh").create()
    begun(fresh)
    with pytest.raises(ForeignLedger, match="has used ledger"):
        opened(house, fresh.ledger_url)


@pytest.mark.parametrize("after", ["reserved", "drawn", "committed"])
def test_approve_back_up_release_restore_release(house: Workspace, tmp_path: Path, after: str) -> None:
    """The old approval does not release again, wherever the first release was; the rows come back, and with them it."""
    ledger = begun(house)
    plan = planned(ledger)
    decision = approved(plan)
    restore = backup(house, tmp_path / "backup.db")
    release_id = str(ledger.reserve(plan, plan_digest="d" * 64, decisions=[decision]).release_id)
    if after != "reserved":
        ledger.mark_drawn(release_id, draw_digest="d" * 64)
    if after == "committed":
        ledger.commit(release_id, bundle_digest="b" * 64)
    before = ledger.rows()
    restore()
    with pytest.raises(ForeignLedger, match="went back: it ends at row 1"):
        opened(house)
    with pytest.raises(ForeignLedger, match="went back"):  # one that was open all the time
        ledger.reserve(plan, plan_digest="d" * 64, decisions=[decision])
    found = lost.look(house.ledger_url, house)
    assert found is not None
    assert lost.put_back(house.ledger_url, house, found) == len(before) - 1
    again = opened(house)
    assert again.rows() == before
    assert again.verify().ok
    assert again.reserve(plan, plan_digest="d" * 64, decisions=[decision]).release_id == release_id


def test_a_restored_ledger_that_went_on(house: Workspace, tmp_path: Path) -> None:
    """Behind the workspace's back it grew longer than before: told by the row, not by the length."""
    ledger = begun(house)
    restore = backup(house, tmp_path / "backup.db")
    released(ledger, planned(ledger, "a"))
    restore()
    other = Ledger.open(house.ledger_url)
    released(other, planned(other, "b"))
    plan = planned(other, "c")
    other.reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
    with pytest.raises(ForeignLedger, match="was rewritten: its row 4"):
        opened(house)
    found = lost.look(house.ledger_url, house)
    assert found is not None
    assert found.missing == ()


def signed(content: dict[str, Any], key: Any = KEY) -> Decision:
    return sign(key, subject="recovery", decision="approve", digest=digest(content), terms=recovery_terms(content))


@pytest.mark.parametrize("state", ["forked", "deleted"])
def test_a_ledger_is_given_up_by_signature_alone(house: Workspace, tmp_path: Path, state: str) -> None:
    """Nobody's, a stranger's, the requester's own, one over another state: none does. Old plans count no more after."""
    ledger = begun(house)
    old = planned(ledger)
    restore = backup(house, tmp_path / "backup.db")
    released(ledger, planned(ledger, "a"))
    restore()
    if state == "forked":
        Ledger.open(house.ledger_url).change_policy(STRICT, requester="x", reason="same")
        other = Ledger.open(house.ledger_url)
        plan = planned(other, "b")
        other.reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
    else:  # and what was kept is gone, too
        for left in house.home.glob("ledger.db*"):
            left.unlink()
        own = own_journal(house)
        last = own.last()
        assert last is not None
        policy, *_ = own.file.read_bytes().splitlines(keepends=True)
        own.file.write_bytes(policy + json.dumps(last.model_dump()).encode() + b"\n")
    found = lost.look(house.ledger_url, house)
    assert found is not None
    assert found.missing == ()
    content = lost.ask(house.ledger_url, house, found, requester="lead", reason="the disk is lost")
    other_state = content | {"found": content["lost"]}
    for decisions in ([], [signed(content, officer())], [signed(other_state)], [signed(content | {"reason": "x"})]):
        with pytest.raises(InputError):
            lost.accept(house.ledger_url, house, content, decisions)
    by_themselves = lost.ask(house.ledger_url, house, found, requester="Officer", reason="the disk is lost")
    with pytest.raises(InputError, match="own request"):
        lost.accept(house.ledger_url, house, by_themselves, [signed(by_themselves)])
    with pytest.raises(ForeignLedger):
        opened(house)
    row = lost.accept(house.ledger_url, house, content, [signed(content)])
    assert row.approvals == ("Officer",)
    again = opened(house)
    assert again.verify().ok
    assert again.policy() == STRICT, "what approvals are asked for is not lost with the ledger"
    with pytest.raises(BudgetRefused, match=r"before the ledger was recovered|was made under"):
        again.reserve(old, plan_digest="d" * 64, decisions=[approved(old)])
    new = planned(again, "new")
    released(again, new)
    assert again.verify().ok
    assert lost.look(house.ledger_url, house) is None


def test_a_recovery_nobody_can_sign(house: Workspace) -> None:
    """A policy that names no approver lends nobody the right to give a ledger up."""
    opened(house).begun(requester="operator")
    own = own_journal(house)
    last = own.last()
    assert last is not None
    own.file.write_bytes(json.dumps(last.model_dump()).encode() + b"\n")
    for left in house.home.glob("ledger.db*"):
        left.unlink()
    found = lost.look(house.ledger_url, house)
    assert found is not None
    with pytest.raises(InputError, match="nobody"):
        lost.ask(house.ledger_url, house, found, requester="lead", reason="lost")


def test_the_whole_workspace_restored_is_told_by_a_witness(
    house: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Database and journal together go back: from inside nothing shows. The witness does; without its disk, nothing."""
    witness = tmp_path / "elsewhere" / "witness"
    witness.parent.mkdir()
    monkeypatch.setenv(VARIABLE, str(witness))
    ledger = begun(house)
    plan = planned(ledger)
    saved = tmp_path / "saved"
    shutil.copytree(house.home, saved)
    released(ledger, plan)
    shutil.rmtree(house.home)
    shutil.copytree(saved, house.home)
    with pytest.raises(ForeignLedger, match=r"went back.*the witness"):
        opened(house)
    monkeypatch.delenv(VARIABLE)
    opened(house)  # this is what is not promised without one
    monkeypatch.setenv(VARIABLE, str(tmp_path / "unmounted" / "witness"))
    with pytest.raises(Exception, match="no folder"):
        released(opened(house), plan)
    assert b"body" not in witness.read_bytes(), "a witness is told heads alone"


def test_a_witness_that_can_only_be_added_to(house: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lines that somebody adds to it, torn or foreign, do not take its last word away."""
    witness = tmp_path / "witness"
    monkeypatch.setenv(VARIABLE, str(witness))
    ledger = begun(house)
    released(ledger, planned(ledger))
    last = Journal(witness).last()
    for noise in (b'{"ledger":"', b"\n\n\n", b"x" * 200_000):
        with witness.open("ab") as file:
            file.write(noise)
        assert Journal(witness).last() == last
    ledger.reserve(plan := planned(ledger, "b"), plan_digest="d" * 64, decisions=[approved(plan)])
    newer = Journal(witness).last()
    assert newer is not None
    assert last is not None
    assert newer.sequence > last.sequence


KILLED = """
import os, signal, sys
from storage.ledger import journal
from storage.paths import Workspace
sys.path.insert(0, {tests!r})
from ledger_sites import make_plan
from storage.ledger import Ledger
point, home = sys.argv[1], sys.argv[2]
house = Workspace(__import__("pathlib").Path(home))
ledger = Ledger.open(house.ledger_url, journals=journal.journals_of(house))
plan = make_plan(ledger=ledger.begun(requester="operator"))
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
if point == "before the line":
    journal.Journal.append = die
elif point == "a torn line":
    def append(self, lines):
        with self.file.open("ab") as file:
            file.write(lines[: len(lines) // 2]); file.flush(); os.fsync(file.fileno())
        die()
    journal.Journal.append = append
elif point == "before the commit":
    journal.Journal.news = die
ledger.reserve(plan)
die()
"""


@pytest.mark.parametrize("point", ["before the commit", "before the line", "a torn line", "after"])
def test_killed_around_the_journals_line(house: Workspace, point: str) -> None:
    """Wherever it died, the ledger is accepted as it is and goes on, and the journal is never ahead of it."""
    script = KILLED.format(tests=str(Path(__file__).parents[1]))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run([sys.executable, "-c", script, point, str(house.home)], env=environment, check=False)
    assert run.returncode == -9
    ledger = opened(house)
    kept = own_journal(house).last()
    assert kept is not None
    assert kept.sequence <= ledger.head()[0]
    row = ledger.reserve(make_plan(ledger=ledger.begun(requester="operator")))
    assert row.state == "reserved"
    kept = own_journal(house).last()
    assert (kept.sequence, kept.hash) == ledger.head() if kept else False
    assert [row.mark.sequence for row in own_journal(house).rows()] == list(range(1, ledger.head()[0] + 1))


@pytest.mark.postgres
def test_the_same_on_postgresql(postgres_site: Site, house: Workspace, tmp_path: Path) -> None:
    """A dump from before the release, restored: refused; its rows come back through the database's own procedure."""
    ledger = Ledger.open(postgres_site.url, journals=journals_of(house))
    plan = make_plan(ledger=ledger.begun(requester="operator"))
    at = ledger.head()[0]
    release_id = str(ledger.reserve(plan).release_id)
    ledger.mark_drawn(release_id, draw_digest="d" * 64)
    before = ledger.rows()
    postgres_site.disarm()
    postgres_site.sql(*(f"DELETE FROM {table} WHERE sequence > {at}" for table in ("spend", "ledger_row")), owner=True)
    tables = ("ledger_row", "spend", "record_set")
    postgres_site.sql(*(f"ALTER TABLE {table} ENABLE TRIGGER USER" for table in tables), owner=True)
    with pytest.raises(ForeignLedger, match="went back"):
        Ledger.open(postgres_site.url, journals=journals_of(house))
    found = lost.look(postgres_site.url, house)
    assert found is not None
    assert lost.put_back(postgres_site.url, house, found) == len(before) - at
    again = Ledger.open(postgres_site.url, journals=journals_of(house))
    assert again.rows() == before
    assert again.verify().ok
    assert again.verify().notes == ()


@dataclass(frozen=True)
class Table:
    """A database of heads: as the pipeline's role, and as its owner."""

    site: Site

    @property
    def witness(self) -> Witness:
        return Witness(self.site.url)


@pytest.fixture(params=["sqlite", pytest.param("postgres", marks=pytest.mark.postgres)])
def table(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Table:
    """A witness in a database of its own, which the environment names."""
    if request.param == "sqlite":
        url = f"sqlite:///{tmp_path / 'witness.db'}"
        site, role = Site(url, url), None
    else:
        site = request.getfixturevalue("postgres_site")
        role = sa.make_url(site.url).username
    make_witness(site.owner_url, app_role=role)
    make_witness(site.owner_url, app_role=role)  # again changes nothing
    monkeypatch.setenv(VARIABLE, site.url)
    return Table(site)


def test_the_whole_workspace_restored_is_told_by_a_second_database(
    table: Table, house: Workspace, tmp_path: Path
) -> None:
    """Which gets the head of each transaction, and nothing else; the recovery that officers sign is told there."""
    ledger = begun(house)
    plan = planned(ledger)
    saved = tmp_path / "saved"
    shutil.copytree(house.home, saved)
    released(ledger, plan)
    assert table.witness.last() == ledger.mark()
    shutil.rmtree(house.home)
    shutil.copytree(saved, house.home)
    for attempt in (opened, lambda house: released(opened(house), plan)):
        with pytest.raises(ForeignLedger, match=r"went back.*the witness"):
            attempt(house)
    rows = table.site.rows("SELECT ledger, sequence, hash, recovered FROM ledger_witness ORDER BY number")
    assert {len(row) for row in rows} == {4}
    assert [row[1] for row in rows] == sorted({row[1] for row in rows})
    assert not any(row[3] for row in rows)
    with Ledger.open(house.ledger_url).database.read() as connection:
        table.witness.accept(connection)  # what `recover --accept` does once it is signed
    opened(house)
    assert [row[3] for row in table.site.rows("SELECT number, ledger, hash, recovered FROM ledger_witness")][-1]


def test_a_head_taken_from_a_second_database(table: Table, house: Workspace) -> None:
    """By the pipeline's own role: nothing is changed, removed, or put before or beside the last head."""
    ledger = begun(house)
    released(ledger, planned(ledger))
    last = table.witness.last()
    assert last is not None
    values = f"'{last.ledger}', {last.sequence - 1}, '{'0' * 64}', false"
    add = "INSERT INTO ledger_witness (ledger, sequence, hash, recovered) VALUES"
    for statement in (
        "UPDATE ledger_witness SET sequence = 1",
        "DELETE FROM ledger_witness",
        "DELETE FROM ledger_witness WHERE number = (SELECT max(number) FROM ledger_witness)",
        f"{add} ({values})",
        f"{add} ('{last.ledger}', {last.sequence}, '{'0' * 64}', false)",
        f"{add} ('{'1' * 64}', 1000, '{'0' * 64}', false)",
        f"INSERT INTO ledger_witness (number, ledger, sequence, hash, recovered) VALUES (0, {values})",
        f"INSERT INTO ledger_witness (number, ledger, sequence, hash, recovered) VALUES (1000, {values})",
        *(() if table.site.is_sqlite else ("TRUNCATE ledger_witness", "DROP TABLE ledger_witness")),
        *(() if table.site.is_sqlite else ("ALTER TABLE ledger_witness DISABLE TRIGGER USER",)),
    ):
        with pytest.raises(DBAPIError):
            table.site.sql(statement)
        assert table.witness.last() == last, statement
    for number in range(1, last.sequence + 1):  # a slower process adds nothing, and says nothing
        table.witness.append(b"".join(lines_of(last, number)))
    assert table.witness.last() == last
    table.witness.append(b"".join(lines_of(last, last.sequence + 3)))
    told = table.witness.last()
    assert told is not None
    assert told.sequence == last.sequence + 3


def lines_of(mark: Mark, sequence: int) -> list[bytes]:
    """Of the ledger that a mark is of, at another row."""
    return [json.dumps(mark.model_dump() | {"sequence": sequence}).encode() + b"\n"]


def test_a_second_database_that_is_not_there(house: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without its table, its server or its file nothing is drawn; its password is in no message."""
    ledger = begun(house)
    plan = planned(ledger)
    closed = socket.socket()
    closed.bind(("127.0.0.1", 0))
    for url in (
        f"sqlite:///{tmp_path / 'new.db'}",
        f"sqlite:///{tmp_path / 'unmounted' / 'witness.db'}",
        f"postgresql+psycopg://autocoder:hushhush@127.0.0.1:{closed.getsockname()[1]}/witness",
    ):
        monkeypatch.setenv(VARIABLE, url)
        with pytest.raises(StorageError, match="nobody can tell which ledger is used") as refused:
            released(opened(house), plan)
        assert "hushhush" not in str(refused.value)
    monkeypatch.delenv(VARIABLE)
    assert not [row for row in opened(house).rows() if row.kind == "release"]
    closed.close()
