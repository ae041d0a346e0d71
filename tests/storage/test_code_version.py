"""A stage's version follows from whatever its module may run: each import, wherever it stands."""

from storage.code_version import _imports

SOURCE = b"""
from __future__ import annotations
from typing import TYPE_CHECKING
import a
if TYPE_CHECKING:
    import nowhere
else:
    import j
def one():
    from b import c
    async def two():
        async with x:
            import d
class Three:
    try:
        import e
    except ImportError:
        import f
    finally:
        import g
match y:
    case 1:
        import h
for z in y:
    while z:
        import i
"""


def test_an_import_is_found_wherever_it_stands() -> None:
    """In functions, classes, handlers, cases and loops; not under `if TYPE_CHECKING`, except in its
    `else`.
    """
    found = [name for name in _imports(SOURCE) if not name.startswith(("__future__", "typing"))]
    assert sorted(found) == ["a", "b", "b.c", "d", "e", "f", "g", "h", "i", "j"]
