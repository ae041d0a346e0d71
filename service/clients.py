"""Who may ask the service, each by a key and a name of their own, and whether it may answer; both may change while it
runs."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

SHORTEST_KEY = 16
ONLY = "key"
"""Name of the client where there is one key without a name."""


@dataclass(frozen=True)
class Clients:
    """Keys as digests, by their clients' names."""

    digests: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def of(cls, keys: Mapping[str, str]) -> Clients:
        """From the keys themselves."""
        return cls({name: hashlib.sha256(key.encode()).digest() for name, key in keys.items()})

    @classmethod
    def read(cls, text: str) -> Clients:
        """From a file's text: one key, or a line `NAME KEY` for each client; blank lines and `#` lines are left out.

        Raises:
            ValueError: says what is wrong, by line; no key is quoted.
        """
        lines = [line.split() for line in text.splitlines() if line.strip() and not line.lstrip().startswith("#")]
        if not lines:
            raise ValueError("no key in it")
        if len(lines) == 1 and len(lines[0]) == 1:
            lines = [[ONLY, *lines[0]]]
        keys: dict[str, str] = {}
        for number, words in enumerate(lines, start=1):
            if len(words) != 2:
                raise ValueError(f"key {number} is not on a line NAME KEY of its own")
            name, key = words
            if name in keys or key in keys.values():
                raise ValueError(f"key {number} has the name or the key of another client")
            if len(key) < SHORTEST_KEY or not (key.isascii() and key.isprintable()) or not name.isprintable():
                raise ValueError(
                    f"key {number} needs {SHORTEST_KEY} or more printable characters; make one: openssl rand -hex 32"
                )
            keys[name] = key
        return cls.of(keys)

    def name_of(self, key: str) -> str | None:
        """Whose key it is; every key is compared, in constant time."""
        digest = hashlib.sha256(key.encode()).digest()
        found = [name for name, known in self.digests.items() if hmac.compare_digest(digest, known)]
        return found[0] if found else None


@dataclass(frozen=True)
class State:
    """What holds at the moment."""

    clients: Clients | None = None
    """None lets everybody in who reaches the port."""
    withdrawn: str | None = None
    """Why nothing is coded any more, such as that the release was revoked."""
