"""Errors whose text is safe to show: it names options and counts, never a record."""


class MechanismError(ValueError):
    """A setting or an input that a mechanism cannot work with; the text says what to do.

    `kind` names the fault, so that one can be told from another while its sentence is free to
    change; `option` names the setting, if the fault can be in several.
    """

    def __init__(self, text: str = "", *, kind: str = "", option: str | None = None) -> None:
        super().__init__(text)
        self.kind = kind
        self.option = option
