"""Errors with text that is safe to show: it contains files, columns, rows and options, never a
record's content.

  StorageError            stored data cannot be used
  ├ Unavailable          a server or database does not answer; retrying may succeed
  ├ DamagedData          stored data is missing or was altered
  ├ Changed              data changed in the meantime: run again, or plan again
  ├ WrongState           the release is in a state that does not allow this
  └ InputError           a fault in the user's input
    ├ Missing           a required file, option or value is missing
    ├ Unreadable        a file exists but has the wrong content
    ├ Unknown           an unknown name
    ├ Contradiction     two inputs exclude each other, or one is repeated
    ├ OutOfRange        a value is too large, too small or malformed
    └ NotInstalled      a required optional package is not installed

The type determines how a caller can react. `kind` identifies the fault, so that callers can
distinguish errors while the wording is free to change; tests/golden/sentences.json lists all of
them. `option`, `column` and `row` locate the fault, if it can be in several places.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """A fault at one place: part of an error's sentence, with the error's kind."""

    text: str
    kind: str


class StorageError(Exception):
    """Stored data is missing, damaged, locked, or does not fit on the disk. The text says what to
    do.
    """

    def __init__(
        self,
        text: str = "",
        *,
        kind: str = "",
        option: str | None = None,
        column: str | None = None,
        row: int | None = None,
    ) -> None:
        super().__init__(text)
        self.kind = kind
        self.option = option
        self.column = column
        self.row = row


class Unavailable(StorageError):
    """A server or a database does not answer. Retrying may succeed without anyone's
    intervention.
    """


class DamagedData(StorageError):
    """Stored data is missing or differs from what was written."""


class Changed(StorageError):
    """Data changed since it was read or planned."""


class WrongState(StorageError):
    """The release is in a state that does not allow this operation."""


class InputError(StorageError):
    """A fault in the user's input. The text contains the file, column, row or option, and the
    remedy.
    """


class Missing(InputError):
    """A required file, option or value is missing."""


class Unreadable(InputError):
    """A file exists but has the wrong type or content."""


class Unknown(InputError):
    """An unknown name. The text lists the known names, or the nearest one."""


class Contradiction(InputError):
    """Two inputs exclude each other, or one is repeated."""


class OutOfRange(InputError):
    """A value is too large, too small or malformed."""


class NotInstalled(InputError):
    """A required optional package is not installed."""
