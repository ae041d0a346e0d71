"""Defines errors whose text is safe to show: it names files, columns, rows and options, never a
record's content.
"""


class StorageError(Exception):
    """Reports stored data that is missing, damaged, locked or full; the text says what to do."""


class Unavailable(StorageError):
    """Reports a server or a database that does not answer: the same again may succeed, and no one
    has to act.
    """


class InputError(StorageError):
    """Reports a fault in the user's input; the text names the file, column, row or option and what
    to do.
    """
