"""Connects to the Prefect server at PREFECT_API_URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client

from storage.errors import StorageError


@contextmanager
def server() -> Iterator[SyncPrefectClient]:
    """Opens a client of the server.

    Raises:
        StorageError: the server does not answer, or refuses access.
    """
    try:
        with get_client(sync_client=True) as client:
            yield client
    except httpx.HTTPStatusError as error:  # Prefect's error derives from it
        code = error.response.status_code
        remedy = ". Set PREFECT_API_AUTH_STRING." if code == httpx.codes.UNAUTHORIZED else ""
        raise StorageError(f"Prefect server: it answers {code}{remedy}") from None
    except httpx.HTTPError as error:
        raise StorageError(f"Prefect server: no answer ({type(error).__name__}). Check PREFECT_API_URL.") from None
