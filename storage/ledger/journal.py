"""Keeps a ledger's rows outside its database, to detect another ledger or an earlier state of it.

A database that was restored from a backup, deleted, or replaced by another one looks intact from
inside. A journal is a file with all rows of the ledger from the first one, each as a line of
sequence, hash and canonical JSON. Lines are never removed. There is the workspace's own journal
(`private/ledger.journal`) and a witness, the file in AUTOCODER_LEDGER_WITNESS on another disk to
which the pipeline can only append. The witness reveals a restore of database *and* workspace.
`recover` restores rows from either.

A line that does not continue the previous one is refused. Before each transaction, and when a
ledger is opened, the database must contain the row of every line. A line is written after the
commit. A process that dies in between leaves a journal that is one row behind, which is safe
because nothing depends on that row yet: in particular, a draw is made only after the line of its
reservation.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from sqlalchemy.engine import Connection

from storage.durable import open_regular, sync
from storage.errors import Fault, OutOfRange, StorageError
from storage.ledger import chain
from storage.ledger.chain import StoredRow
from storage.ledger.models import LedgerPosition
from storage.paths import Workspace

VARIABLE = "AUTOCODER_LEDGER_WITNESS"
_LONGEST = 1 << 23
"""Maximum length of a line in bytes, larger than any row."""


class ForeignLedger(StorageError):
    """This is not the ledger that was used before, or it is an earlier state. Nothing was drawn or
    recorded.
    """


@dataclass
class _Reading:
    offset: int = 0
    lines: int = 0
    last: LedgerPosition | None = None
    unconfirmed: list[str] = field(default_factory=list)
    """Hashes of the newest rows, which were not yet compared with a ledger."""


@dataclass(frozen=True)
class Journal:
    """Reads and extends a journal file."""

    file: Path
    own: bool = False
    """Whether this is the workspace's own journal, whose folder is created if necessary."""
    _reading: _Reading = field(default_factory=_Reading, compare=False, repr=False)

    @property
    def name(self) -> str:
        return "this workspace" if self.own else f"the witness {self.file}"

    def last(self) -> LedgerPosition | None:
        """The position of the newest row; None if the journal is empty. Refuses lines that do not
        continue each other.
        """
        reading = self._reading
        reading.unconfirmed += [entry.hash for entry in self._entries(reading)]
        return reading.last

    def rows(self) -> Iterator[StoredRow]:
        """Yields the rows in the journal, oldest first."""
        return self._entries(_Reading())

    def _entries(self, reading: _Reading) -> Iterator[StoredRow]:
        try:
            # guard: test_a_journal_that_is_no_file
            with open_regular(self.file, follow=not self.own) as opened:
                size = os.fstat(opened.fileno()).st_size
                if size < reading.offset:
                    raise ForeignLedger(
                        f"{self.file}: it is shorter than before. Restore it from a copy",
                        kind="shortened-journal",
                    )
                opened.seek(reading.offset)
                while reading.offset < size:
                    line = opened.readline(_LONGEST)
                    if len(line) == _LONGEST:
                        raise ForeignLedger(
                            f"{self.file}: line {reading.lines + 1} is longer than any row. "
                            "Restore it from a copy",
                            kind="line-too-long",
                        )
                    if not line.endswith(b"\n"):
                        break  # still being written, or torn
                    reading.lines += 1
                    entry = self._entry(line[:-1].decode(errors="replace"), reading)
                    reading.offset += len(line)
                    if entry is not None:
                        first = entry.hash if reading.last is None else reading.last.ledger
                        reading.last = LedgerPosition(
                            ledger=first, sequence=entry.sequence, hash=entry.hash
                        )
                        yield entry
        except FileNotFoundError:
            return
        except OSError as error:
            raise StorageError(
                f"{self.file}: {error.strerror}. It is unclear which ledger is "
                "used. Correct that and run again",
                kind="unwritable-journal",
            ) from error

    def _entry(self, line: str, reading: _Reading) -> StoredRow | None:
        sequence, row_hash, body = [*line.split(" ", 2), "", ""][:3]
        if not sequence.isdecimal() or chain.digest(body) != row_hash:
            return None
        # guard: test_a_journal_that_is_written_again
        if int(sequence) != (1 if reading.last is None else reading.last.sequence + 1):
            raise ForeignLedger(
                f"{self.file}: line {reading.lines} does not continue the line before it. "
                "Nothing is released or "
                "recorded. Restore the file from a copy",
                kind="discontinuous-journal",
                row=reading.lines,
            )
        return StoredRow(int(sequence), row_hash, body)

    def check(self, connection: Connection) -> None:
        """Requires that the ledger contains the journal's last row, to which the earlier rows are
        linked.
        """
        problem = self.problem(connection)
        # guard: test_a_ledger_in_the_place_of_the_one_that_was_used
        if problem:
            raise ForeignLedger(
                f"{problem.text}. Nothing is released or recorded. Specify or restore "
                "the ledger that was used, or see `autocoder ledger recover`",
                kind=problem.kind,
            )

    def problem(self, connection: Connection) -> Fault | None:
        """The first discrepancy between the ledger and this journal, if any."""
        mark = self.last()
        if mark is None:
            return None
        first, present = chain.hash_of(connection, 1), chain.hash_of(connection, mark.sequence)
        if first is None:
            return Fault(
                f"the ledger is empty, but {self.name} has used {mark}", kind="emptied-ledger"
            )
        if first != mark.ledger:
            return Fault(
                f"this is ledger {first[:12]}…, but {self.name} has used {mark}",
                kind="another-ledger",
            )
        # guard: test_approve_back_up_release_restore_release
        if present is None:
            last, _ = chain.last(connection)
            return Fault(
                f"the ledger went back: it ends at row {last}, but {self.name} has used {mark}",
                kind="ledger-went-back",
            )
        hashes = self._reading.unconfirmed
        start = mark.sequence - len(hashes)
        present_rows = chain.hashes(connection, start + 1, mark.sequence)
        for sequence, (recorded, there) in enumerate(
            zip(hashes, present_rows, strict=False), start + 1
        ):
            # guard: test_a_restored_ledger_that_went_on
            if recorded != there:
                return Fault(
                    f"the ledger was rewritten: its row {sequence} is another one, but "
                    f"{self.name} has used {mark}",
                    kind="ledger-rewritten",
                )
        self._reading.unconfirmed = [mark.hash]
        return None

    def append(self, connection: Connection) -> None:
        """Appends committed rows that are missing in the journal. They are on disk when this
        returns.

        If writing fails, the committed rows remain, and running again continues from there.
        """
        try:
            if not self.file.parent.is_dir():
                if not self.own:
                    raise StorageError(
                        f"{VARIABLE}: folder {self.file.parent} does not exist. Mount its disk",
                        kind="no-journal-folder",
                    )
                self.file.parent.mkdir(mode=0o700, parents=True)
            new = not self.file.exists()
            no_follow = os.O_NOFOLLOW if self.own else 0  # others may write to the workspace
            descriptor = os.open(self.file, os.O_RDWR | os.O_APPEND | os.O_CREAT | no_follow, 0o600)
            # buffered, because on a nearly full disk a raw write may silently write less than
            # requested
            with os.fdopen(descriptor, "ab") as file:
                fcntl.flock(file, fcntl.LOCK_EX)
                size = os.fstat(descriptor).st_size
                # torn by a power failure
                if size > 0 and os.pread(descriptor, 1, size - 1) != b"\n":
                    file.write(b"\n")
                    file.flush()
                last = self.last()
                written = 0 if last is None else last.sequence
                for entry in chain.whole_rows(connection, written):
                    file.write(line_of(entry))
                file.flush()
                os.fsync(descriptor)
            if new:
                sync(self.file.parent)
        except OSError as error:
            raise StorageError(
                f"{self.file}: {error.strerror}. The ledger's last row was not "
                "added to this file. Nothing has been released since. Correct that "
                "and run again",
                kind="journal-not-kept",
            ) from error


def line_of(entry: StoredRow) -> bytes:
    return f"{entry.sequence} {entry.hash} {entry.body}\n".encode()


def own_journal(workspace: Workspace) -> Journal:
    return Journal(workspace.private / "ledger.journal", own=True)


def journals_of(workspace: Workspace) -> tuple[Journal, ...]:
    """The workspace's own journal, and the witness if AUTOCODER_LEDGER_WITNESS is set."""
    journal, witness = own_journal(workspace), os.environ.get(VARIABLE)
    if not witness:
        return (journal,)
    if "://" in witness:
        raise OutOfRange(
            f"{VARIABLE}: it is a URL. Specify a file, ideally on another disk "
            "where lines can only be appended",
            kind="journal-is-url",
        )
    return (journal, Journal(Path(witness).expanduser()))
