"""Errors whose text is safe to show: it names files, columns, rows and options, never a record's
content.

    StorageError            what is stored cannot be used
     ├ Unavailable          a server or database does not answer; the same again may succeed
     ├ DamagedData          what is stored is missing, or is not what was written
     ├ Changed              it became another meanwhile: run again, or plan again
     ├ WrongState           a release is in a state in which this cannot be done
     └ InputError           a fault in what the user gave
        ├ Missing           a file, an option or a value that is needed is not there
        ├ Unreadable        a file is there, and is not what it has to be
        ├ Unknown           a name that no one knows
        ├ Contradiction     two things that were given exclude each other, or one is given twice
        ├ OutOfRange        a value is too large, too small or not of its form
        └ NotInstalled      an optional package that this needs

The type says what a caller may do about it. `kind` names the fault itself, so that one can be told
from another while its sentence is free to change; tests/golden/sentences.json has them all.
`option`, `column` and `row` say where the fault is, if it is in one that is not always the same.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class Fault:
    """What is wrong at one place: a part of a refusal's sentence, with the refusal's kind."""

    text: str
    kind: str


class StorageError(Exception):
    """Reports stored data that is missing, damaged, locked or full; the text says what to do."""

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
    """Reports a server or a database that does not answer: the same again may succeed, and no one
    has to act.
    """


class DamagedData(StorageError):
    """Reports stored data that is missing or is not what was written."""


class Changed(StorageError):
    """Reports what became another since it was read or planned."""


class WrongState(StorageError):
    """Reports a release that is in a state in which this cannot be done."""


class InputError(StorageError):
    """Reports a fault in the user's input; the text names the file, column, row or option and what
    to do.
    """


class Missing(InputError):
    """Reports a file, an option or a value that is needed and is not there."""


class Unreadable(InputError):
    """Reports a file that is not what it has to be."""


class Unknown(InputError):
    """Reports a name that nothing has; the text lists those that there are, or the nearest."""


class Contradiction(InputError):
    """Reports two things that exclude each other, or one that is given twice."""


class OutOfRange(InputError):
    """Reports a value that is too large, too small or not of its form."""


class NotInstalled(InputError):
    """Reports an optional package that is not installed."""
