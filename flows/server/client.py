"""Connects to the Prefect server at PREFECT_API_URL."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client

from storage.errors import StorageError, Unavailable

REFUSED = "Refused"
"""Name of the state of a failed run that needs other input. Starting it again would not help."""


@contextmanager
def server() -> Iterator[SyncPrefectClient]:
    with answering(), get_client(sync_client=True) as client:
        yield client


@contextmanager
def answering() -> Iterator[None]:
    """Re-raises request errors as server errors."""
    try:
        yield
    except httpx.HTTPStatusError as error:  # the base of Prefect's error
        code = error.response.status_code
        remedy = ". Set PREFECT_API_AUTH_STRING." if code == httpx.codes.UNAUTHORIZED else ""
        raise (Unavailable if code >= 500 else StorageError)(
            f"Prefect server: it answers {code}{remedy}"
        ) from None
    except httpx.HTTPError as error:
        raise Unavailable(
            f"Prefect server: no answer ({type(error).__name__}). Check PREFECT_API_URL.",
            kind="server-silent",
        ) from None
