"""What is kept of a ledger outside its database, so that another ledger, or an earlier state of it, is told.

A database that is restored from a backup, deleted, or given by another name looks whole from inside. A journal is a
file that a line is added to after every transaction and that nothing is ever taken from:

* the workspace's own, `private/ledger.journal`, with every row since it began: from it `recover` puts back what a
  restored database lacks;
* a witness, the file or the database that AUTOCODER_LEDGER_WITNESS names, with heads alone: on another disk, or where
  the pipeline may only append (`witness.py`). It tells a restore of database *and* workspace.

Before a transaction, and when a ledger is opened, the chain has to go through the last line of each. The line is
written after the commit: a process that dies between the two leaves a journal that is a row behind, which is the state
in which nothing has rested on that row yet. In particular a draw is made only after the line of its reservation.
"""

from __future__ import annotations

import fcntl
import json
import os
from abc import ABC, abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.engine import Connection

from storage.durable import sync
from storage.errors import StorageError
from storage.ledger import chain
from storage.ledger.models import Mark
from storage.ledger.schema import POLICY_ROW, ledger_row
from storage.paths import Workspace

VARIABLE = "AUTOCODER_LEDGER_WITNESS"
_T = ledger_row.c
_BLOCK = 1 << 16
_AT_FIRST = 10_000
"""Rows of a ledger that is there already that a journal begins with."""


class ForeignLedger(StorageError):
    """The ledger at hand is not the one that was used before, or not as far; nothing was drawn or recorded."""


class Kept(NamedTuple):
    """A row of the chain as a journal has it."""

    mark: Mark
    body: str


class Outside(ABC):
    """Marks, or rows with their marks, somewhere that a line is added to and nothing taken from."""

    whole: bool = False
    """Whether rows are kept, too."""

    @property
    @abstractmethod
    def name(self) -> str:
        """What errors call it."""

    @abstractmethod
    def last(self) -> Mark | None:
        """The newest mark; None where nothing was kept yet."""

    @abstractmethod
    def append(self, lines: bytes) -> None:
        """Add lines that another process has not added meanwhile; kept for good when this returns."""

    @abstractmethod
    def overrule(self, lines: bytes) -> None:
        """Add lines, whatever was kept before."""

    def check(self, connection: Connection) -> None:
        """Require that the chain goes through the newest mark.

        Raises:
            ForeignLedger: it does not; says how.
        """
        problem = self.problem(connection)
        if problem is not None:
            raise ForeignLedger(
                f"{problem}. Nothing is drawn or recorded: name or restore the ledger that was used, or see "
                "`autocoder ledger recover`"
            )

    def problem(self, connection: Connection) -> str | None:
        """What is wrong with the ledger at hand, in words; None where nothing is."""
        mark = self.last()
        if mark is None:
            return None
        first, found = chain.hash_of(connection, 1), chain.hash_of(connection, mark.sequence)
        if first is None:
            return f"the ledger is empty, {self.name} has used {mark}"
        if first != mark.ledger:
            return f"this is ledger {first[:12]}…, {self.name} has used {mark}"
        if found is None:
            at, _ = chain.last(connection)
            return f"the ledger went back: it ends at row {at}, {self.name} has used {mark}"
        if found != mark.hash:
            return f"the ledger was rewritten: its row {mark.sequence} is another one, {self.name} has used {mark}"
        return None

    def news(self, connection: Connection) -> bytes:
        """Lines for what the chain has beyond the newest mark; to be appended once the transaction is committed."""
        last, (sequence, row_hash) = self.last(), chain.last(connection)
        if sequence == 0 or (last is not None and last.sequence >= sequence):
            return b""
        ledger = str(chain.hash_of(connection, 1))
        if not self.whole:
            return _line(Mark(ledger=ledger, sequence=sequence, hash=row_hash))
        # An old ledger is kept from now on; with it its policy, whose approvers are asked when it should be lost.
        since = _T.sequence > (last.sequence if last is not None else max(0, sequence - _AT_FIRST))
        newest_policy = sa.select(sa.func.max(_T.sequence)).where(POLICY_ROW).scalar_subquery()
        wanted = since if last is not None else since | (_T.sequence == newest_policy)
        rows = connection.execute(sa.select(_T.sequence, _T.hash, _T.body).where(wanted).order_by(_T.sequence))
        return b"".join(_line(Mark(ledger=ledger, sequence=n, hash=h), body) for n, h, body in rows)

    def accept(self, connection: Connection) -> None:
        """Go on with the ledger at hand from its newest row, whatever was kept before; an officer has signed that."""
        sequence, row_hash = chain.last(connection)
        mark = Mark(ledger=str(chain.hash_of(connection, 1)), sequence=sequence, hash=row_hash)
        newest_policy = sa.select(sa.func.max(_T.sequence)).where(POLICY_ROW).scalar_subquery()
        rows = connection.execute(sa.select(_T.sequence, _T.hash, _T.body).where(_T.sequence == newest_policy)).all()
        policies = (
            [_line(Mark(ledger=mark.ledger, sequence=n, hash=h), body) for n, h, body in rows] if self.whole else []
        )
        self.overrule(b"".join([*policies, _line(mark)]))


@dataclass(frozen=True)
class Journal(Outside):
    """One file of them."""

    file: Path
    whole: bool = False

    @property
    def name(self) -> str:
        """What errors call it."""
        return "this workspace" if self.whole else f"the witness {self.file}"

    def last(self) -> Mark | None:
        """The newest mark; None where nothing was kept yet.

        Raises:
            StorageError: the file cannot be read, or holds no line of ours.
        """
        try:
            for line in _backwards(self.file):
                if (mark := _mark(line)) is not None:
                    return mark
        except FileNotFoundError:
            return None
        except OSError as error:
            raise StorageError(
                f"{self.file}: {error.strerror}; without it nobody can tell which ledger is used"
            ) from error
        if self.file.stat().st_size:
            raise StorageError(f"{self.file}: not what was kept of a ledger; restore it from a copy")
        return None

    def append(self, lines: bytes) -> None:
        """Add lines that another process has not added meanwhile; on the disk when this returns.

        Raises:
            StorageError: it cannot be written. What was committed stays; running again goes on from there.
        """
        if not lines:
            return
        try:
            if not self.file.parent.is_dir():
                if not self.whole:
                    raise StorageError(f"{VARIABLE}: no folder {self.file.parent}; is its disk mounted?")
                self.file.parent.mkdir(mode=0o700, parents=True)
            new = not self.file.exists()
            descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            with os.fdopen(descriptor, "r+b", buffering=0) as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                last = self.last()
                kept = lines.splitlines(keepends=True)
                if last is not None:
                    kept = [line for line in kept if (mark := _mark(line)) and _follows(mark, last)]
                size = os.fstat(descriptor).st_size
                torn = (
                    size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                )  # left by a power cut: it counts for nothing
                file.write((b"\n" if torn else b"") + b"".join(kept))
                os.fsync(descriptor)
            if new:
                sync(self.file.parent)
        except OSError as error:
            raise StorageError(
                f"{self.file}: {error.strerror}; the ledger's last row is not kept beside it. Nothing was drawn since; "
                "put that right and run again"
            ) from error

    def overrule(self, lines: bytes) -> None:
        """Add lines, whatever was kept before."""
        with self.file.open("ab") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            file.write(b"\n" + lines)
            file.flush()
            os.fsync(file.fileno())

    def rows(self) -> Iterator[Kept]:
        """The rows that were kept, oldest first; those of ledgers that were given up among them."""
        with self.file.open("rb") as file:
            for line in file:
                mark, body = _mark(line), _body(line)
                if mark is not None and body is not None:
                    yield Kept(mark, body)


def own_journal(workspace: Workspace) -> Journal:
    """The workspace's, with every row that it saw."""
    return Journal(workspace.private / "ledger.journal", whole=True)


def journals_of(workspace: Workspace) -> tuple[Outside, ...]:
    """The workspace's own journal, and the machine's witness where AUTOCODER_LEDGER_WITNESS names a file or a URL."""
    own, witness = own_journal(workspace), os.environ.get(VARIABLE)
    if not witness:
        return (own,)
    if "://" in witness:
        from storage.ledger.witness import Witness  # it takes URLs as the ledger's database does, which takes this file

        return (own, Witness(witness))
    return (own, Journal(Path(witness).expanduser()))


def marks_of(lines: bytes) -> Iterator[Mark]:
    """The marks in lines that are to be kept."""
    return (mark for line in lines.splitlines() if (mark := _mark(line)) is not None)


def _follows(mark: Mark, last: Mark) -> bool:
    return mark.ledger != last.ledger or mark.sequence > last.sequence


def _line(mark: Mark, body: str | None = None) -> bytes:
    told: dict[str, Any] = mark.model_dump() | ({} if body is None else {"body": body})
    return json.dumps(told, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _mark(line: bytes) -> Mark | None:
    try:
        content = json.loads(line)
        return Mark.model_validate({name: content[name] for name in Mark.model_fields})
    except (ValueError, TypeError, KeyError, ValidationError):
        return None


def _body(line: bytes) -> str | None:
    try:
        body = json.loads(line)["body"]
    except (ValueError, TypeError, KeyError):
        return None
    return body if isinstance(body, str) else None


def _backwards(file: Path) -> Iterator[bytes]:
    """Whole lines of a file, the last first."""
    with file.open("rb") as opened:
        at, rest = opened.seek(0, os.SEEK_END), b""
        while at > 0:
            size = min(_BLOCK, at)
            at -= size
            opened.seek(at)
            first, *lines = (opened.read(size) + rest).split(b"\n")
            yield from reversed(lines)
            rest = first
        yield rest
