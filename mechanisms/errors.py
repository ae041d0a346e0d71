"""Errors with text that is safe to show: it contains options and counts, never a record."""


class MechanismError(ValueError):
    """A setting or an input that a mechanism cannot use. The text says how to correct it.

    `kind` identifies the fault, so that callers can distinguish errors while the wording is free to
    change. `option` is the setting at fault, if there can be several.
    """

    def __init__(self, text: str = "", *, kind: str = "", option: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.option = option
