"""A text that must have a certain form, with the words for whoever wrote another one."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic_core import CoreSchema, core_schema


@dataclass(frozen=True)
class Worded:
    """A rule for a text, as the annotation of a field: `Annotated[str, Worded("^[/~]", "a path")]`.

    Whoever checks the field against its JSON schema, such as Prefect's page, would report a pattern
    as it is. So the schema asks for the words instead: "'a path' was expected".
    """

    pattern: str
    words: str

    def __get_pydantic_core_schema__(
        self, source: Any, handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self.checked, handler(source))

    def __get_pydantic_json_schema__(
        self, core: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        return handler(core) | self.schema()

    def checked(self, value: str) -> str:
        found = re.search(self.pattern, value)
        # Python's $ also matches before a final line break; that of JSON schemas does not.
        if found is None or (self.pattern.endswith("$") and found.end() != len(value)):
            raise ValueError(f"must be {self.words}")
        return value

    def schema(self) -> dict[str, Any]:
        """Returns the rule as a part of a JSON schema."""
        return {"if": {"not": {"pattern": self.pattern}}, "then": {"const": self.words}}
