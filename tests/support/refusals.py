"""Tells refusals apart by their kind and place, so that a sentence is free to change.

with pytest.raises(InputError, check=of_kind("no-column", column="text")):
"""


class of_kind:
    """Whether an error is of this kind, or of one of several, and has these fields (`option`,
    `column`, `row`, `file`).

    `saying` are values that its text has to contain: a number, a path or a name, never a wording.
    """

    def __init__(self, *kinds: str, saying: object = (), **fields: object) -> None:
        self.kinds = kinds
        self.saying = saying if isinstance(saying, tuple) else (saying,)
        self.fields = fields
        self.__name__ = "-or-".join(kinds)  # by which pytest names a case

    def __call__(self, error: BaseException) -> bool:
        kind = getattr(error, "kind", None)
        shown = f"{type(error).__name__} of kind {kind!r}: {error}"
        assert kind in self.kinds, shown
        for field, value in self.fields.items():
            found = getattr(error, field, None)
            assert found == value, f"{field} is {found!r}, not {value!r}: {shown}"
        for value in self.saying:
            assert str(value) in str(error), f"{value!r} is missing: {shown}"
        return True
