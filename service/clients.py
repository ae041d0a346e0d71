"""Clients of the service (each has a name and a key), and whether the service may answer."""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Mapping
from dataclasses import dataclass, field

SHORTEST_KEY = 16
UNNAMED = "key"
"""Client name for a single key that has no name."""


@dataclass(frozen=True)
class Clients:
    digests: Mapping[str, bytes] = field(repr=False)

    @classmethod
    def of(cls, keys: Mapping[str, str]) -> Clients:
        return cls({name: hashlib.sha256(key.encode()).digest() for name, key in keys.items()})

    @classmethod
    def read(cls, text: str) -> Clients:
        lines = [
            line.split()
            for line in text.splitlines()
            if line.strip() and not line.lstrip().startswith("#")
        ]
        if not lines:
            raise ValueError("the file has no key")
        if len(lines) == 1 and len(lines[0]) == 1:
            lines = [[UNNAMED, *lines[0]]]
        keys: dict[str, str] = {}
        for number, words in enumerate(lines, start=1):
            if len(words) != 2:
                raise ValueError(f"key {number} is not on its own line NAME KEY")
            name, key = words
            if name in keys or key in keys.values():
                raise ValueError(f"key {number} has the name or the key of another client")
            if (
                len(key) < SHORTEST_KEY
                or not (key.isascii() and key.isprintable())
                or not name.isprintable()
            ):
                raise ValueError(
                    f"key {number} needs {SHORTEST_KEY} or more printable characters; make one: "
                    "openssl rand -hex 32"
                )
            keys[name] = key
        return cls.of(keys)

    def name_of(self, key: str) -> str | None:
        """Returns the name of the client with this key. All keys are compared, in constant time."""
        digest = hashlib.sha256(key.encode()).digest()
        names = [
            name for name, stored in self.digests.items() if hmac.compare_digest(digest, stored)
        ]
        return names[0] if names else None


@dataclass(frozen=True)
class State:
    clients: Clients | None = None
    """None admits everyone who can reach the port."""
    withdrawn: str | None = None
    """Why the service no longer codes, such as a revocation."""
