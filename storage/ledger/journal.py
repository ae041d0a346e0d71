"""Keeps a ledger's rows or heads outside its database, so that another ledger, or an earlier state of it, is detected.

A database that is restored from a backup, deleted, or given by another name looks whole from inside. A journal is a
file that a line is added to after every transaction and that nothing is ever taken from:

* the workspace's own, `private/ledger.journal`, with every row since it began: from it `recover` puts back what a
  restored database lacks;
* a witness, the file that AUTOCODER_LEDGER_WITNESS names, with heads, policies and recoveries alone: on another disk,
  where the pipeline may only append. It shows a restore of database *and* workspace.

Each line names the SHA-256 of the line before it, and a row after that line's row, of the same ledger. A line that does
not go on so is a refusal, unless it is the row of a recovery that those signed who may, by the policy in the lines
before. Before a transaction, and when a ledger is opened, the chain has to go through every line since the last
recovery. A line is written after the commit: a process that dies between the two leaves a journal that is a row behind,
which is the state in which nothing has rested on that row yet. In particular a draw is made only after the line of its
reservation.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import sqlalchemy as sa
from pydantic import ValidationError
from sqlalchemy.engine import Connection

from storage.artifacts import digest
from storage.durable import sync
from storage.errors import InputError, StorageError
from storage.ledger import chain
from storage.ledger.content import recovery_terms
from storage.ledger.decisions import Matter, approvers, from_row
from storage.ledger.models import GENESIS, Mark, Row
from storage.ledger.policy import Policy
from storage.ledger.schema import POLICY_ROW, ledger_row
from storage.paths import Workspace

VARIABLE = "AUTOCODER_LEDGER_WITNESS"
_T = ledger_row.c
_AT_FIRST = 10_000
"""Rows of an existing ledger that a journal begins with."""
_START = b'{"ledger":"'
_SIGNIFICANT = re.compile(r'"kind":"(budget-change|recovery)"')


class ForeignLedger(StorageError):
    """The ledger at hand is not the one that was used before, or not as far; nothing was drawn or recorded."""


class JournalEntry(NamedTuple):
    """Holds a row of the chain as a journal has it."""

    mark: Mark
    body: str


@dataclass
class _Reading:
    offset: int = 0
    lines: int = 0
    newest: str = GENESIS
    """SHA-256 of the newest line."""
    marks: tuple[Mark, ...] = ()
    """Of the lines since the last recovery: the ledger's chain goes through each."""
    policy: Policy | None = None
    confirmed: int = 0
    """How many of the marks a ledger's chain was checked for."""

    @property
    def last(self) -> Mark | None:
        return self.marks[-1] if self.marks else None

    def take(self, line: bytes) -> None:
        """Adds a line; one that does not go on from the lines before is a ValueError."""
        self.lines += 1
        if _torn(line):
            return
        content = _parse(line)
        # guard: a line of the witness names the line before it
        if content.get("previous") != self.newest:
            raise ValueError("does not go on from the line before it")
        mark, body = content["mark"], content.get("body")
        row = _row(mark, body) if body is not None and _SIGNIFICANT.search(body) else None
        if row is not None and row.kind == "recovery":
            self._check_recovery(mark, row)
            self.marks, self.confirmed = (mark,), 0
        elif self.last is not None and (mark.ledger != self.last.ledger or mark.sequence <= self.last.sequence):
            raise ValueError(f"goes to {mark} after {self.last}, and no recovery was signed")
        else:
            self.marks += (mark,)
        if row is not None and row.kind == "budget-change":
            self.policy = Policy.parse(row.details["policy"])
        self.newest = hashlib.sha256(line).hexdigest()

    def _check_recovery(self, mark: Mark, row: Row) -> None:
        content, last = row.details["recovery"], self.last
        abandoned = Mark.model_validate(content["abandoned"])
        continued = None if content["continued"] is None else Mark.model_validate(content["continued"])
        if last is not None and (abandoned.ledger != last.ledger or abandoned.sequence < last.sequence):
            raise ValueError("is a recovery from another line than the one before it")
        start = 0 if continued is None else continued.sequence
        if (continued is not None and continued.ledger != mark.ledger) or not start < mark.sequence <= start + 2:
            raise ValueError("is a recovery that goes on with another ledger")
        if self.policy is None:
            raise ValueError("is a recovery, and no line before it has a policy")
        matter = Matter("recovery", digest(content), recovery_terms(content), content["requester"])
        names = approvers(from_row(row.details), self.policy.approvals, matter)
        if len(names) < max(1, self.policy.approvals.minimum):
            raise ValueError("is a recovery with too few signatures")


@dataclass(frozen=True)
class Journal:
    """Reads and extends one such file."""

    file: Path
    whole: bool = False
    """True where it has every row."""
    _reading: _Reading = field(default_factory=_Reading, compare=False, repr=False)

    @property
    def name(self) -> str:
        """Returns the name that errors give it."""
        return "this workspace" if self.whole else f"the witness {self.file}"

    def last(self) -> Mark | None:
        """Returns the newest mark, None where nothing was kept yet; refuses lines that do not go on from each other."""
        return self._read().last

    def _read(self) -> _Reading:
        reading = self._reading
        try:
            with self.file.open("rb") as opened:
                if os.fstat(opened.fileno()).st_size < reading.offset:
                    raise ForeignLedger(f"{self.file}: it is shorter than before. Restore it from a copy")
                opened.seek(reading.offset)
                for line in opened:
                    if not line.endswith(b"\n"):
                        break  # being written, or torn
                    reading.take(line[:-1])
                    reading.offset += len(line)
        except FileNotFoundError:
            return reading
        except ForeignLedger:
            raise
        except OSError as error:
            raise StorageError(
                f"{self.file}: {error.strerror}. Nobody can tell which ledger is used. Correct that and run again"
            ) from error
        except (ValueError, TypeError, KeyError, RecursionError, StorageError) as error:
            why = error if isinstance(error, InputError) or type(error) is ValueError else "is not a line of a ledger"
            raise ForeignLedger(
                f"{self.file}: line {reading.lines} {why}. Nothing is drawn or recorded. Restore the file from a copy"
            ) from None
        return reading

    def check(self, connection: Connection) -> None:
        """Requires that the chain goes through every mark since the last recovery."""
        problem = self.problem(connection)
        # guard: another ledger than the journal's is refused
        if problem is not None:
            raise ForeignLedger(
                f"{problem}. Nothing is drawn or recorded: name or restore the ledger that was used, or see "
                "`autocoder ledger recover`"
            )

    def problem(self, connection: Connection) -> str | None:
        """Returns what is wrong with the ledger, in words; None where nothing is."""
        reading = self._read()
        mark = reading.last
        if mark is None:
            return None
        first, present = chain.hash_of(connection, 1), chain.hash_of(connection, mark.sequence)
        if first is None:
            return f"the ledger is empty, {self.name} has used {mark}"
        if first != mark.ledger:
            return f"this is ledger {first[:12]}…, {self.name} has used {mark}"
        # guard: a ledger that went back is told
        if present is None:
            at, _ = chain.last(connection)
            return f"the ledger went back: it ends at row {at}, {self.name} has used {mark}"
        unconfirmed = (*reading.marks[reading.confirmed :], mark)
        between = _T.sequence.between(unconfirmed[0].sequence, mark.sequence)
        hashes = {n: h for n, h in connection.execute(sa.select(_T.sequence, _T.hash).where(between))}
        for one in unconfirmed:
            # guard: a ledger that went another way is told
            if hashes.get(one.sequence) != one.hash:
                return f"the ledger was rewritten: its row {one.sequence} is another one, {self.name} has used {one}"
        reading.confirmed = len(reading.marks)
        return None

    def pending_lines(self, connection: Connection) -> bytes:
        """Returns lines for the rows beyond the newest mark; to be appended once the transaction is committed."""
        last, (sequence, _) = self.last(), chain.last(connection)
        if sequence == 0 or (last is not None and last.sequence >= sequence):
            return b""
        rows = _T.sequence > (last.sequence if last is not None else max(0, sequence - _AT_FIRST))
        significant = _T.kind.in_(("budget-change", "recovery"))
        condition = rows if self.whole else rows & (significant | (_T.sequence == sequence))
        if last is None:  # an existing ledger is kept from now on; with it its policy, for a recovery
            condition |= _T.sequence == sa.select(sa.func.max(_T.sequence)).where(POLICY_ROW).scalar_subquery()
        return self._lines(connection, condition)

    def _lines(self, connection: Connection, condition: sa.ColumnElement[bool]) -> bytes:
        ledger = str(chain.hash_of(connection, 1))
        rows = connection.execute(sa.select(_T.sequence, _T.hash, _T.body).where(condition).order_by(_T.sequence))
        return b"".join(
            _line(
                Mark(ledger=ledger, sequence=n, hash=h).model_dump()
                | ({"body": body} if self.whole or _SIGNIFICANT.search(body) else {})
            )
            for n, h, body in rows
        )

    def append(self, lines: bytes) -> None:
        """Adds lines that another process has not added meanwhile; on the disk when this returns.

        Where it cannot be written, what was committed stays; running again goes on from there.
        """
        if not lines:
            return
        try:
            if not self.file.parent.is_dir():
                if not self.whole:
                    raise StorageError(f"{VARIABLE}: folder {self.file.parent} does not exist. Mount its disk")
                self.file.parent.mkdir(mode=0o700, parents=True)
            new = not self.file.exists()
            descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            # buffered: a raw write may write less than it is given, on a disk that is nearly full, and say nothing
            with os.fdopen(descriptor, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n":  # torn by a power cut
                    file.write(b"\n")
                file.write(self._chained(lines))
                file.flush()
                os.fsync(descriptor)
            if new:
                sync(self.file.parent)
        except OSError as error:
            raise StorageError(
                f"{self.file}: {error.strerror}. The ledger's last row is not kept next to it. Nothing was drawn "
                "since. Correct that and run again"
            ) from error

    def _chained(self, lines: bytes) -> bytes:
        reading, chained = replace(self._read()), b""
        for line in lines.splitlines():
            content = json.loads(line)
            last = reading.last
            follows = last is None or content["ledger"] != last.ledger or content["sequence"] > last.sequence
            if follows or '"kind":"recovery"' in content.get("body", ""):
                added = _line(content | {"previous": reading.newest})
                reading.take(added[:-1])
                chained += added
        return chained

    def anchor(self, connection: Connection, row: Row) -> None:
        """Goes on with the ledger at hand from a recovery that was signed by the policy that was kept here."""
        try:
            self.append(self._lines(connection, _T.sequence == row.sequence))
        except (ValueError, InputError) as error:
            raise ForeignLedger(f"{self.file}: the next line {error}. Restore the ledger that was used") from None

    def rows(self) -> Iterator[JournalEntry]:
        """Iterates over the rows that were kept, oldest first, those of ledgers that were given up included."""
        with self.file.open("rb") as file:
            for line in file:
                try:
                    content = _parse(line)
                except (ValueError, TypeError, KeyError):
                    continue  # torn
                if content.get("body") is not None:
                    yield JournalEntry(content["mark"], content["body"])


def own_journal(workspace: Workspace) -> Journal:
    """Returns the workspace's, with every row that it saw."""
    return Journal(workspace.private / "ledger.journal", whole=True)


def journals_of(workspace: Workspace) -> tuple[Journal, ...]:
    """Returns the workspace's own journal, and the witness where AUTOCODER_LEDGER_WITNESS names a file."""
    journal, witness = own_journal(workspace), os.environ.get(VARIABLE)
    if not witness:
        return (journal,)
    if "://" in witness:
        raise InputError(f"{VARIABLE}: it is a URL. Name a file, best on another disk where lines can only be appended")
    return (journal, Journal(Path(witness).expanduser()))


def _line(content: dict[str, Any]) -> bytes:
    return json.dumps(content, ensure_ascii=True, separators=(",", ":")).encode() + b"\n"


def _torn(line: bytes) -> bool:
    """Checks whether a line was begun alone, by a power cut or on a full disk; an empty one is such a line too.

    The next line does not go on from it, so a whole line that was damaged since is still a refusal.
    """
    if not (line.startswith(_START) or _START.startswith(line)):
        return False
    try:
        json.loads(line)
    except ValueError:
        return True
    return False


def _parse(line: bytes) -> dict[str, Any]:
    """Returns a line's content, its mark under `mark`.

    Raises:
        ValueError, TypeError, KeyError: it is not a line of a journal.
    """
    content = json.loads(line)
    try:
        mark = Mark.model_validate({name: content[name] for name in Mark.model_fields})
    except ValidationError:
        raise TypeError from None
    if not set(content) <= {*Mark.model_fields, "previous", "body"}:
        raise TypeError
    return content | {"mark": mark}


def _row(mark: Mark, body: str) -> Row:
    if chain.digest(body) != mark.hash:
        raise ValueError("has a row of another hash")
    return chain.parse(body, mark.hash)
