"""Would win: a second draw of one plan, under another ledger, or under the same one put back to an
earlier state.
"""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from ledger_sites import Site, append_past
from refusals import of_kind
from releases import make_plan, release_key
from sqlalchemy.engine import Connection

from storage.errors import InputError, StorageError
from storage.ledger import BudgetRefused, Ledger, Policy, ReleasePlan, chain, recovery
from storage.ledger.decisions import Decision, sign
from storage.ledger.entries import Blocked, PolicySet
from storage.ledger.journal import (
    VARIABLE,
    ForeignLedger,
    Journal,
    journals_of,
    line_of,
    own_journal,
)
from storage.ledger.keys import public_pem
from storage.ledger.models import LedgerPosition
from storage.paths import Workspace

DECLARES = """
one plan is drawn once
| the plan in a new workspace, also with its ledger's name written over and the artifacts copied;
`AUTOCODER_LEDGER_URL`; the ledger deleted, empty, restored after approval at each state, restored
and continued with; SIGKILL around the journal's line; lines appended to the witness of a restored
workspace: older, repeated, further than the restored ledger, of another one, unknown; a journal's
line left out or moved, torn at any brace, or cut short by a full disk
| database and workspace restored together without a witness; anyone who reads the posterior draws
manually
"""


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
        "approvals": {
            "minimum": 1,
            "approvers": {"Officer": public_pem(KEY.public_key()).decode()},
        },
        "default": {"asymptotic-local": {"epsilon": 8}},
    }
)


def opened(house: Workspace, url: str | None = None) -> Ledger:
    return Ledger.open(url or house.ledger_url, journals=journals_of(house), key=release_key())


def ensure_genesis_row(house: Workspace) -> Ledger:
    ledger = opened(house)
    ledger.change_policy(STRICT, requester="lead", reason="start")
    return ledger


def planned(ledger: Ledger, key: str = "k") -> ReleasePlan:
    return make_plan(key, ledger=ledger.ensure_genesis_row(requester="operator"))


def blocked(line: str) -> Blocked:
    return Blocked(plan_digest=chain.digest(line), audit_row=1, line=line, requester="operator")


def approved(plan: ReleasePlan, key: Any = KEY) -> Decision:
    from storage.ledger.content import release_terms

    return sign(
        key, subject="release", decision="approve", digest="d" * 64, terms=release_terms(plan)
    )


def released(ledger: Ledger, plan: ReleasePlan, decision: Decision | None = None) -> str:
    row = ledger.reserve(plan, plan_digest="d" * 64, decisions=[decision or approved(plan)])
    ledger.mark_drawn(str(row.release_id), draw_digest="d" * 64, plan_digest="d" * 64)
    ledger.commit(str(row.release_id), bundle_digest="b" * 64, plan_digest="d" * 64)
    return str(row.release_id)


def backup(house: Workspace, to: Path) -> Callable[[], None]:
    """Copy the database (SQLite checkpoints its log when the last connection
    closes); the way back.
    """
    file = house.home / "ledger.db"
    shutil.copy(file, to)

    def restore() -> None:
        for left in house.home.glob("ledger.db*"):
            left.unlink()
        shutil.copy(to, file)

    return restore


def test_a_plan_under_another_ledger(house: Workspace, tmp_path: Path) -> None:
    """A new workspace's, one that is elsewhere, an empty one, one with the same policy; a plan that
    names none.
    """
    plan = planned(ensure_genesis_row(house))
    for name in ("new", "third"):
        other = Workspace(tmp_path / name).create()
        ledger = ensure_genesis_row(other)
        with pytest.raises(BudgetRefused, check=of_kind("plan-of-another-ledger")):
            ledger.reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
        with pytest.raises(BudgetRefused, check=of_kind("plan-of-another-ledger")):
            ledger.require_here(plan)
        assert not ledger.releases()
    empty = Ledger.open(f"sqlite:///{tmp_path / 'empty.db'}", key=release_key())
    with pytest.raises(BudgetRefused, check=of_kind("plan-of-another-ledger", saying="empty")):
        empty.reserve(plan)
    with pytest.raises(BudgetRefused, check=of_kind("plan-without-ledger")):
        opened(house).require_here(make_plan())


def test_a_plan_whose_ledger_was_written_over_by_hand(house: Workspace, tmp_path: Path) -> None:
    """The other ledger's name alone does not do: the row must be in it, and the signature is over
    both.
    """
    plan = planned(ensure_genesis_row(house))
    ledger = ensure_genesis_row(Workspace(tmp_path / "new").create())
    mark = ledger.state().mark
    assert mark is not None
    assert plan.ledger is not None
    mixed = plan.model_copy(
        update={"ledger": LedgerPosition(ledger=mark.ledger, sequence=1, hash=plan.ledger.hash)}
    )
    with pytest.raises(BudgetRefused, check=of_kind("plan-after-rollback")):
        ledger.reserve(mixed, plan_digest="d" * 64, decisions=[approved(mixed)])
    moved = plan.model_copy(update={"ledger": mark})
    with pytest.raises(InputError, check=of_kind("stale-decision")):
        ledger.reserve(moved, plan_digest="d" * 64, decisions=[approved(plan)])


@pytest.mark.parametrize("url", ["elsewhere", "deleted", "empty"])
def test_a_ledger_in_the_place_of_the_one_that_was_used(
    house: Workspace, tmp_path: Path, url: str
) -> None:
    """By another URL, deleted, or replaced by an empty file: refused before one is made."""
    ensure_genesis_row(house)
    place = house.ledger_url
    if url == "elsewhere":
        place = f"sqlite:///{tmp_path / 'elsewhere.db'}"
    else:
        for left in house.home.glob("ledger.db*"):
            left.unlink()
        if url == "empty":
            (house.home / "ledger.db").touch()
    with pytest.raises(
        ForeignLedger,
        check=of_kind("emptied-ledger" if url == "empty" else "no-ledger-where-one-was"),
    ):
        opened(house, place)
    assert not (tmp_path / "elsewhere.db").exists()
    fresh = Workspace(tmp_path / "fresh").create()
    ensure_genesis_row(fresh)
    with pytest.raises(ForeignLedger, check=of_kind("another-ledger")):
        opened(house, fresh.ledger_url)


@pytest.mark.parametrize("after", ["reserved", "drawn", "committed"])
def test_approve_back_up_release_restore_release(
    house: Workspace, tmp_path: Path, after: str
) -> None:
    """The old approval does not release again, wherever the first release was; the rows come back,
    and with them it.
    """
    ledger = ensure_genesis_row(house)
    plan = planned(ledger)
    decision = approved(plan)
    restore = backup(house, tmp_path / "backup.db")
    release_id = str(ledger.reserve(plan, plan_digest="d" * 64, decisions=[decision]).release_id)
    if after != "reserved":
        ledger.mark_drawn(release_id, draw_digest="d" * 64, plan_digest="d" * 64)
    if after == "committed":
        ledger.commit(release_id, bundle_digest="b" * 64, plan_digest="d" * 64)
    before = ledger.rows()
    restore()
    with pytest.raises(ForeignLedger, check=of_kind("ledger-went-back", saying="row 1")):
        opened(house)
    with pytest.raises(
        ForeignLedger, check=of_kind("ledger-went-back")
    ):  # one that was open all the time
        ledger.reserve(plan, plan_digest="d" * 64, decisions=[decision])
    found = recovery.detect(house.ledger_url, house)
    assert found is not None
    assert recovery.restore(house.ledger_url, house, found) == len(before) - 1
    again = opened(house)
    assert again.rows() == before
    assert again.verify().ok
    assert again.reserve(plan, plan_digest="d" * 64, decisions=[decision]).release_id == release_id


def test_a_restored_ledger_that_went_on(house: Workspace, tmp_path: Path) -> None:
    """Behind the workspace's back it grew longer than before: told by the row, not
    by the length.
    """
    ledger = ensure_genesis_row(house)
    restore = backup(house, tmp_path / "backup.db")
    released(ledger, planned(ledger, "a"))
    restore()
    other = Ledger.open(house.ledger_url, key=release_key())
    released(other, planned(other, "b"))
    plan = planned(other, "c")
    other.reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
    with pytest.raises(ForeignLedger, check=of_kind("ledger-rewritten", saying="row 2")):
        opened(house)
    found = recovery.detect(house.ledger_url, house)
    assert found is not None
    assert found.missing == ()


def test_a_policy_that_nobody_signed_in_the_journal(house: Workspace, tmp_path: Path) -> None:
    """Any worker writes there. Nothing of it is put back; the owner's own rows are, and a policy
    that is named.
    """
    lax = Policy.parse({"name": "lax", "default": {"asymptotic-local": {"epsilon": 1000}}})
    ledger = ensure_genesis_row(house)
    restore = backup(house, tmp_path / "backup.db")
    copied = Ledger.open(f"sqlite:///{tmp_path / 'backup.db'}", key=release_key())
    forged_row = PolicySet(policy=lax, requester="lead", reason="more", approvals=("Officer",))
    append_past(copied, forged_row)
    forged = own_journal(house)
    with copied.database.read() as connection:
        forged.append(connection)
    assert ledger.policy() == STRICT
    found = recovery.detect(house.ledger_url, house)
    assert found is not None
    assert len(found.missing) == 1
    with pytest.raises(StorageError, check=of_kind("damaged-journal", saying="approvals")):
        recovery.restore(house.ledger_url, house, found, key=release_key().public_key(), policy=lax)
    with pytest.raises(ForeignLedger):
        opened(house)
    restore()
    assert Ledger.open(house.ledger_url).policy() == STRICT


def test_a_first_policy_that_nobody_signed_in_the_journal(house: Workspace) -> None:
    """The database is gone: without a row by this machine's key behind it, the operator has to name
    the policy.
    """
    ensure_genesis_row(house)
    for left in house.home.glob("ledger.db*"):
        left.unlink()
    found = recovery.detect(house.ledger_url, house)
    assert found is not None
    own = release_key().public_key()
    with pytest.raises(StorageError, check=of_kind("unsigned-policy"), match=r"strict"):
        recovery.restore(house.ledger_url, house, found, key=own)
    assert Ledger.open(house.ledger_url).head()[0] == 0
    assert recovery.restore(house.ledger_url, house, found, key=own, policy=STRICT) == 1
    released(opened(house), planned(opened(house)))
    for left in house.home.glob("ledger.db*"):
        left.unlink()
    found = recovery.detect(house.ledger_url, house)
    assert found is not None
    with pytest.raises(StorageError, check=of_kind("unsigned-policy")):
        recovery.restore(house.ledger_url, house, found, key=officer().public_key())
    assert recovery.restore(house.ledger_url, house, found, key=own) == 4


def test_the_whole_workspace_restored_is_told_by_a_witness(
    house: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Database and journal together go back: from inside nothing shows. The witness does; without
    its disk, nothing.
    """
    witness = tmp_path / "elsewhere" / "witness"
    witness.parent.mkdir()
    monkeypatch.setenv(VARIABLE, str(witness))
    ledger = ensure_genesis_row(house)
    plan = planned(ledger)
    saved = tmp_path / "saved"
    shutil.copytree(house.home, saved)
    released(ledger, plan)
    shutil.rmtree(house.home)
    shutil.copytree(saved, house.home)
    with pytest.raises(ForeignLedger, check=of_kind("ledger-went-back", saying="the witness")):
        opened(house)
    monkeypatch.delenv(VARIABLE)
    opened(house)  # this is what is not promised without one
    monkeypatch.setenv(VARIABLE, str(tmp_path / "unmounted" / "witness"))
    with pytest.raises(StorageError, check=of_kind("no-journal-folder")):
        released(opened(house), plan)


def test_what_is_appended_to_a_witness(
    house: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Database and workspace restored: no line that someone adds to the witness makes it believe
    the older state. An older line again, rows of the restored ledger that continued, one of another
    ledger, an unknown one.
    """
    witness = tmp_path / "witness"
    monkeypatch.setenv(VARIABLE, str(witness))
    ledger = ensure_genesis_row(house)
    plan = planned(ledger)
    saved = tmp_path / "saved"
    shutil.copytree(house.home, saved)
    first = witness.read_bytes().splitlines(keepends=True)[0]
    released(ledger, plan)
    last, content = Journal(witness).last(), witness.read_bytes()
    assert last is not None
    shutil.rmtree(house.home)
    shutil.copytree(saved, house.home)
    with pytest.raises(ForeignLedger, check=of_kind("ledger-went-back", saying="the witness")):
        opened(house)
    grown = Ledger.open(house.ledger_url, key=release_key())
    for number in range(4):
        grown.note(blocked(str(number)))
    with grown.database.read() as connection:
        rows = list(chain.whole_rows(connection))
    assert rows[-1].sequence > last.sequence
    foreign = chain.StoredRow(last.sequence + 1, chain.digest("{}"), "{}")
    for added in (
        *(first, line_of(rows[-1]), line_of(rows[last.sequence]), line_of(rows[1])),
        *(
            b"".join(line_of(row) for row in rows[2:]),
            line_of(foreign),
            b"x" * 200_000 + b"\n",
            b"{}\n",
            b"\n\n\n",
        ),
        b"5 " + last.hash.encode() + b" torn",
    ):
        witness.write_bytes(content + added)
        with pytest.raises(ForeignLedger):
            opened(house)
        assert witness.read_bytes() == content + added


def test_both_restored_get_back_their_rows(
    house: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Database and journal together went back; the release stands, and the same plan is not drawn
    again.
    """
    monkeypatch.setenv(VARIABLE, str(tmp_path / "witness"))
    ledger = ensure_genesis_row(house)
    plan = planned(ledger)
    saved = tmp_path / "saved"
    shutil.copytree(house.home, saved)
    release_id = released(ledger, plan)
    shutil.rmtree(house.home)
    shutil.copytree(saved, house.home)
    found = recovery.detect(house.ledger_url, house)
    assert found is not None
    assert recovery.restore(house.ledger_url, house, found, key=release_key().public_key()) == 3
    again = opened(house).reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
    assert (again.release_id, again.state) == (release_id, "committed")


def test_a_journal_that_is_written_again(house: Workspace) -> None:
    """The workspace's own journal is chained as well: a line left out, changed or repeated is a
    refusal.
    """
    ledger = ensure_genesis_row(house)
    released(ledger, planned(ledger))
    file = own_journal(house).file
    lines = file.read_bytes().splitlines(keepends=True)
    for changed in (
        lines[:1] + lines[2:],
        [*lines, lines[-1]],
        [*lines, lines[0]],
        [lines[1], lines[0], *lines[2:]],
    ):
        file.write_bytes(b"".join(changed))
        with pytest.raises(ForeignLedger, check=of_kind("discontinuous-journal")):
            opened(house)


@pytest.mark.parametrize("end", ["every brace", "the last letter"])
def test_a_line_that_is_torn_behind_a_brace(house: Workspace, end: str) -> None:
    """A power cut may leave any beginning of a line, also one that ends as a whole line does: the
    ledger continues.
    """
    ledger = ensure_genesis_row(house)
    released(ledger, planned(ledger))
    file = own_journal(house).file
    whole = file.read_bytes()
    before, line = (
        whole[: whole.rindex(b"\n", 0, -1) + 1],
        whole[whole.rindex(b"\n", 0, -1) + 1 : -1],
    )
    cuts = (
        [at + 1 for at, letter in enumerate(line[:-1]) if letter == ord("}")]
        if end == "every brace"
        else [-1]
    )
    assert cuts
    for number, cut in enumerate(cuts):
        for after in (b"", b"\n"):
            file.write_bytes(before + line[:cut] + after)
            opened(house)
            row = opened(house).note(blocked(f"{number}{after!r}"))
            kept = own_journal(house).last()
            assert kept is not None
            assert (kept.sequence, kept.hash) == (row.sequence, row.hash)


def test_a_disk_that_takes_half_a_line(house: Workspace, monkeypatch: pytest.MonkeyPatch) -> None:
    """A write that a full disk shortens is reported by no system call: without the whole line
    nothing is reserved that could be drawn, and with more room the same request is.
    """
    ledger = ensure_genesis_row(house)
    plan = planned(ledger)
    append, size = Journal.append, own_journal(house).file.stat().st_size
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def on_a_full_disk(journal: Journal, connection: Connection) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (size + 40, usual[1]))
        try:
            append(journal, connection)
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, usual)

    with monkeypatch.context() as full:
        full.setattr(Journal, "append", on_a_full_disk)
        with pytest.raises(StorageError, check=of_kind("journal-not-kept")):
            ledger.reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
    again = opened(house).reserve(plan, plan_digest="d" * 64, decisions=[approved(plan)])
    opened(house).mark_drawn(str(again.release_id), draw_digest="d" * 64, plan_digest="d" * 64)
    kept = own_journal(house).last()
    assert kept is not None
    assert (kept.sequence, kept.hash) == opened(house).head()


KILLED = """
import os, signal, sys, sqlalchemy
from storage.ledger import journal
from storage.paths import Workspace
sys.path.insert(0, {tests!r})
from releases import make_plan, release_key
from storage.ledger import Ledger
point, home = sys.argv[1], sys.argv[2]
house = Workspace(__import__("pathlib").Path(home))
ledger = Ledger.open(house.ledger_url, journals=journal.journals_of(house), key=release_key())
plan = make_plan(ledger=ledger.ensure_genesis_row(requester="operator"))
die = lambda *a, **k: os.kill(os.getpid(), signal.SIGKILL)
if point == "before the line":
    journal.Journal.append = die
elif point == "a torn line":
    line_of = journal.line_of
    journal.line_of = lambda *row: line_of(*row)[: len(line_of(*row)) // 2]
    os.fsync = die
elif point == "before the commit":
    sqlalchemy.event.listen(ledger.database.engine, "commit", die)
ledger.reserve(plan)
die()
"""


@pytest.mark.parametrize("point", ["before the commit", "before the line", "a torn line", "after"])
def test_killed_around_the_journals_line(house: Workspace, point: str) -> None:
    """Wherever it died, the ledger is accepted as it is and continues, and the journal is never
    ahead of it.
    """
    script = KILLED.format(tests=str(Path(__file__).parents[1] / "support"))
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    run = subprocess.run(
        [sys.executable, "-c", script, point, str(house.home)], env=environment, check=False
    )
    assert run.returncode == -9
    ledger = opened(house)
    kept = own_journal(house).last()
    assert kept is not None
    assert kept.sequence <= ledger.head()[0]
    row = ledger.reserve(make_plan(ledger=ledger.ensure_genesis_row(requester="operator")))
    assert row.state == "reserved"
    kept = own_journal(house).last()
    assert (kept.sequence, kept.hash) == ledger.head() if kept else False
    assert [row.sequence for row in own_journal(house).rows()] == list(
        range(1, ledger.head()[0] + 1)
    )


@pytest.mark.postgres
def test_the_same_on_postgresql(postgres_site: Site, house: Workspace, tmp_path: Path) -> None:
    """A dump from before the release, restored: refused; its rows come back through the database's
    own procedure.
    """
    ledger = Ledger.open(postgres_site.url, journals=journals_of(house), key=release_key())
    plan = make_plan(ledger=ledger.ensure_genesis_row(requester="operator"))
    at = ledger.head()[0]
    release_id = str(ledger.reserve(plan).release_id)
    ledger.mark_drawn(release_id, draw_digest="d" * 64)
    before = ledger.rows()
    postgres_site.sql(
        *(f"DELETE FROM {table} WHERE sequence > {at}" for table in ("record_set", "ledger_row")),
        owner=True,
    )
    with pytest.raises(ForeignLedger, check=of_kind("ledger-went-back")):
        Ledger.open(postgres_site.url, journals=journals_of(house), key=release_key())
    found = recovery.detect(postgres_site.url, house)
    assert found is not None
    assert recovery.restore(postgres_site.url, house, found) == len(before) - at
    again = Ledger.open(postgres_site.url, journals=journals_of(house), key=release_key())
    assert again.rows() == before
    assert again.verify().ok
    assert again.verify().notes == ()


@pytest.mark.parametrize("place", ["/dev/zero", "/dev/full", "/", "a pipe"])
def test_a_journal_that_is_no_file(house: Workspace, place: str) -> None:
    """A link to a device without an end, to a folder or to a pipe: refused before anything is read
    of it.
    """
    journal = house.private / "ledger.journal"
    journal.parent.mkdir(exist_ok=True)
    if place == "a pipe":
        os.mkfifo(place := str(house.home / "pipe"))
    journal.symlink_to(place)
    with pytest.raises((InputError, StorageError)):
        opened(house).ensure_genesis_row(requester="operator")


def test_a_journal_with_a_line_without_an_end(house: Workspace) -> None:
    """It is read to the longest that a row can be, and no further."""
    ensure_genesis_row(house)
    with own_journal(house).file.open("r+b") as file:
        file.seek(0, os.SEEK_END)
        file.truncate(file.tell() + (1 << 26))
    with pytest.raises(ForeignLedger, check=of_kind("line-too-long")):
        opened(house)
