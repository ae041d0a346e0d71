"""Maps a function over parts of a computation: in this process, in processes of this machine, or on
a Dask cluster.

    ""                     this process, part by part
    "4"                    four processes of this machine, which end with it
    "tls://host:8786"      the workers of a cluster; certificates from the folder
                           $AUTOCODER_ENGINE_CERTIFICATES

A part is a short text of paths, digests and numbers, and never contains a record. Workers store
their results and return nothing. This process waits for the status of each part, and reads the
reason for a failure from the scheduler's events, which are plain text.

Dask sends functions by pickle between holders of the cluster's certificates, so anyone who has the
certificates can run code on the scheduler and the workers. They cannot run code here: this process
has the records, the ledger and a login, and unpickles nothing that comes from a cluster. If a
worker dies, other workers take over its parts. If the scheduler restarts, the missing parts are
submitted again.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import pickle
import re
import time
import uuid
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from contextvars import copy_context
from functools import lru_cache
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

from mechanisms.model.devices import own_card
from storage.errors import Contradiction, InputError, Missing, OutOfRange, StorageError, Unavailable
from tasks.running.failures import SAFE, StageError, private_errors

if TYPE_CHECKING:
    from distributed import Client
    from distributed.security import Security

VARIABLE, CERTIFICATES = "AUTOCODER_ENGINE", "AUTOCODER_ENGINE_CERTIFICATES"
CERTIFICATE, KEY = "engine.pem", "engine-key.pem"
"""Files in the folder: one self-signed certificate and its key. Every machine has both.
"""

_OUTAGE_SECONDS = 600.0
"""Longest time without a scheduler that a computation survives."""
_PAUSE_SECONDS = 2.0
_LOOK_SECONDS, _WORKERS_SECONDS = 0.01, 20.0
"""Interval between two checks for finished parts, and between two checks for live workers."""
_LOCAL = re.compile(r"tcp://(127\.\d+\.\d+\.\d+|localhost|\[::1\]):\d+")
_ADDRESS = re.compile(r"(tcp|tls)://[^/\s]+:\d+")
SILENT: dict[str, object] = {
    "distributed.scheduler.http.routes": [],
    "distributed.worker.http.routes": [],
}
"""Dask's own pages show tasks, logs and stacks to anyone who finds their port, so none is served.
"""
_STARTING = {"distributed.comm.timeouts.connect": "120s", "distributed.comm.timeouts.tcp": "120s"}
"""A busy machine that is still importing the libraries is slow to answer."""


def of_environment() -> str:
    return os.environ.get(VARIABLE, "")


def is_cluster(engine: str) -> bool:
    return "://" in engine


def check(engine: str) -> None:
    if not engine:
        return
    if not is_cluster(engine):
        if not re.fullmatch(r"[1-9]\d{0,2}", engine):
            raise OutOfRange(
                f"--engine {engine}: expected a number of processes (1 to 999), "
                "or an address such as tls://host:8786.",
                kind="engine-form",
            )
        return
    try:
        workers = connect(engine).scheduler_info(n_workers=-1)["workers"]
    except (OSError, TimeoutError) as error:
        raise InputError(
            f"--engine {engine}: no scheduler answers ({type(error).__name__}). "
            "Start one with `autocoder engine`, and copy the certificates of one "
            f"folder to all machines ({CERTIFICATES}).",
            kind="no-scheduler",
        ) from None
    if not workers:
        raise InputError(
            f"--engine {engine}: it has no workers. Start one with `autocoder engine --join "
            f"{engine}`.",
            kind="no-worker",
        )


def map_parts(
    body: Callable[[str], object],
    parts: Sequence[str],
    *,
    engine: str,
    done: Callable[[int], None] = lambda number: None,
    at_once: int = 1,
) -> None:
    """Runs `body` on every part. The caller checks what was stored and trusts no worker.

    Args:
        body: a module-level function. It stores its result and reuses a stored result, because a
            part may be assigned to a second worker.
        done: called with the index of each part as soon as it is finished.
        at_once: number of parts computed concurrently in this process. A cluster computes one per
            worker.

    Raises:
        InputError, StorageError, StageError: as a worker described its failure. StorageError is
            also raised if workers died at a part or the engine was unreachable for ten minutes.
    """
    if engine:
        _on_workers(body, parts, engine, done)
        return

    def compute(number: int) -> None:
        body(parts[number])
        done(number)

    with ThreadPoolExecutor(max(1, at_once), thread_name_prefix="parts") as pool:
        waiting = [pool.submit(copy_context().run, compute, number) for number in range(len(parts))]
        try:
            for future in waiting:
                future.result()
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _on_workers(
    body: Callable[[str], object], parts: Sequence[str], engine: str, done: Callable[[int], None]
) -> None:
    from distributed import CancelledError
    from distributed.comm import CommClosedError

    missing = dict.fromkeys(range(len(parts)))
    heard = time.monotonic()
    while missing:
        try:
            for number in _finished(connect(engine), body, parts, list(missing), engine):
                heard = time.monotonic()
                del missing[number]
                done(number)
        except (CancelledError, CommClosedError, TimeoutError, OSError) as error:
            disconnect(engine)
            if time.monotonic() - heard > _OUTAGE_SECONDS:
                raise Unavailable(
                    f"engine {engine}: no answer ({type(error).__name__}). Run again to resume.",
                    kind="engine-silent",
                ) from None
            time.sleep(_PAUSE_SECONDS)


def _finished(
    client: Client,
    body: Callable[[str], object],
    parts: Sequence[str],
    missing: Sequence[int],
    engine: str,
) -> Iterator[int]:
    """Yields the indices of parts as they finish. Nothing that a worker sends is unpickled."""
    from distributed import CancelledError, as_completed

    topic = f"autocoder-{uuid.uuid4().hex}"
    futures = {
        client.submit(_guarded, body, parts[number], topic, pure=False): number
        for number in missing
    }
    try:
        ended, checked_at = as_completed(list(futures), loop=client.loop), time.monotonic()
        while not ended.is_empty():
            for future in ended.next_batch(block=False):
                if future.status == "error":
                    raise _failure(client, topic, engine)
                if future.status != "finished":
                    raise CancelledError(future.status)
                yield futures[future]
            if not ended.has_ready():
                time.sleep(_LOOK_SECONDS)
            if time.monotonic() - checked_at > _WORKERS_SECONDS:
                checked_at = time.monotonic()
                if not client.scheduler_info(n_workers=-1)["workers"]:
                    raise ConnectionError("no worker is left")
    except BaseException:
        client.cancel(list(futures))
        raise


_ERRORS: dict[str, type[Exception]] = {
    "input": InputError,
    "storage": StorageError,
    "stage": StageError,
}
_MOST_SAID = 1_000
"""Longest part of a worker's message that is shown, in characters."""
_NUMBER = re.compile(r"(?:^|-)(\d+)$")
_KIND = re.compile(r"[a-z0-9-]{0,80}")


def _guarded(body: Callable[[str], object], part: str, topic: str) -> None:
    """Runs on a worker. The type, text and kind of an error go to the scheduler's events as JSON,
    and no exception of a library leaves the worker.
    """
    from distributed import get_worker

    try:
        with private_errors("part"), own_card(number_of(get_worker().name)):
            body(part)
        return
    except InputError as error:
        said = "input", str(error), error.kind
    except StageError as error:
        said = "stage", str(error), ""
    except SAFE as error:
        said = "storage", str(error), getattr(error, "kind", "")
    get_worker().log_event(topic, json.dumps(said))
    raise StageError("a part failed; see the events of its run") from None


def number_of(name: object) -> int:
    """The number of a worker among those of one command on its machine, which chooses its card,
    from the worker's name. A worker without a number is the only one.

    >>> number_of(2), number_of("host-317-1"), number_of("tls://10.0.0.5:40123")
    (2, 1, 0)
    """
    number = _NUMBER.search(str(name))
    return 0 if number is None else int(number[1])


def _failure(client: Client, topic: str, engine: str) -> Exception:
    """Reads why a part failed. A worker that died has written nothing."""
    for _, said in client.get_events(topic):
        with suppress(ValueError, TypeError, KeyError):
            name, text, kind = json.loads(said)
            printable = "".join(c if c.isprintable() else " " for c in text[:_MOST_SAID])
            error = _ERRORS[name](printable)
            if isinstance(error, StorageError) and _KIND.fullmatch(kind):
                error.kind = kind
            return error
    return StorageError(
        f"engine {engine}: workers died at one part several times, or they run "
        "another version of the program. Increase their memory, or upgrade them, "
        "and run again.",
        kind="workers-died",
    )


class _Unread(Exception):
    """Replaces a value that another machine serialised and Dask expected."""


def _unpickling(allowed: bool) -> None:
    """Allows or forbids all unpickling by Dask in this process.

    Values inside a message pass through `merge_and_deserialize`, and all other pickles through the
    module that `distributed.protocol.pickle` names. The only exception are the warnings that
    workers send to clients; no client in this process listens to them.
    """
    from distributed import Client
    from distributed.protocol import core
    from distributed.protocol import pickle as of_dask
    from distributed.protocol.serialize import merge_and_deserialize

    def unread(*_: Any, **__: Any) -> _Unread:
        return _Unread()

    Client._default_event_handlers = {}
    read: Any = merge_and_deserialize if allowed else unread
    reader: Any = pickle if allowed else SimpleNamespace(**vars(pickle) | {"loads": unread})
    # guard: test_a_workers_answer_runs_no_code_here
    core.merge_and_deserialize, of_dask.pickle = read, reader


def _client(*arguments: Any, **options: Any) -> Client:
    from distributed import Client

    class StatusClient(Client):
        """A client that is told that a task failed, without the exception."""

        def _handle_key_in_memory(
            self, key: Any = None, type: object = None, workers: Any = None
        ) -> None:
            super()._handle_key_in_memory(key=key, workers=workers)

        def _handle_task_erred(
            self, key: Any = None, exception: object = None, traceback: object = None
        ) -> None:
            super()._handle_task_erred(key=key, exception=_Unread(), traceback=None)

    return StatusClient(*arguments, set_as_default=False, **options)


@lru_cache(maxsize=1)
def connect(engine: str) -> Client:
    import dask
    from distributed import LocalCluster
    from distributed.security import Security

    logging.getLogger("distributed").setLevel(logging.CRITICAL)
    dask.config.set(SILENT)
    _unpickling(allowed=not is_cluster(engine))
    if is_cluster(engine):
        client = _client(engine, security=security_of(engine), timeout=5)
        atexit.register(client.close)
        return client
    # The scheduler of local processes runs in this process and must unpickle what it asks for.
    processes = int(engine)
    dask.config.set(_STARTING)
    dask.config.set(
        {
            f"distributed.nanny.pre-spawn-environ.{name}": value
            for name, value in worker_variables(processes).items()
        }
    )
    cluster = LocalCluster(
        n_workers=processes,
        threads_per_worker=1,
        memory_limit=None,  # Dask would set each core's share of memory, which a model exceeds
        processes=True,
        host="127.0.0.1",
        protocol="tls://",
        # another user of this machine could run code through an open port
        security=Security.temporary(),
        dashboard_address=None,
        scheduler_kwargs={
            "dashboard_address": "127.0.0.1:0"
        },  # otherwise all use port 8787, and the second one warns
        silence_logs=logging.CRITICAL,
    )
    client = _client(cluster)
    atexit.register(cluster.close)
    atexit.register(client.close)
    return client


def worker_variables(processes: int) -> dict[str, str]:
    """Returns the environment of each of `processes` workers on this machine: its share of the
    cores, and an allocator that keeps memory.

    With Dask's own setting, memory is returned to the system at once, and encoding takes a fifth
    longer.
    """
    threads = str(max(1, (os.cpu_count() or 1) // processes))
    return {f"{name}_NUM_THREADS": threads for name in ("OMP", "MKL", "OPENBLAS")} | {
        f"MALLOC_{name}_THRESHOLD_": str(32 << 20) for name in ("TRIM", "MMAP")
    }


def disconnect(engine: str) -> None:
    """Closes this process's connection and ends the processes that it started. The next call makes
    new ones.
    """
    if connect.cache_info().currsize:
        client = connect(engine)
        connect.cache_clear()
        with suppress(OSError, TimeoutError):
            client.close(timeout=5)
            if client.cluster is not None:
                client.cluster.close(timeout=30)


def security_of(engine: str) -> Security | None:
    """Returns the certificates for an address, or None for a local address if there are none."""
    from distributed.security import Security

    if not _ADDRESS.fullmatch(engine):
        raise OutOfRange(
            f"--engine {engine}: not a valid address. Expected something like tls://host:8786.",
            kind="engine-address",
        )
    if engine.startswith("tcp://"):
        if not _LOCAL.fullmatch(engine):
            raise OutOfRange(
                f"--engine {engine}: everyone on the network could run code "
                "there. Use tls://, with certificates from `autocoder engine "
                "--new-certificates`.",
                kind="unencrypted-engine",
            )
        return None
    certificate, key = certificates()
    files = {
        f"tls_{role}_{what}": str(file)
        for role in ("client", "scheduler", "worker")
        for what, file in (("cert", certificate), ("key", key))
    }
    return Security(require_encryption=True, tls_ca_file=str(certificate), **files)


def certificates() -> tuple[Path, Path]:
    folder = os.environ.get(CERTIFICATES)
    files = None if folder is None else (Path(folder) / CERTIFICATE, Path(folder) / KEY)
    if files is None or not all(file.is_file() for file in files):
        raise Missing(
            f"{CERTIFICATES}: {folder or 'it is not set'}. Create the files once "
            "with `autocoder engine --new-certificates FOLDER`, copy the folder "
            "to each machine, and set the variable to it there.",
            kind="no-certificates",
        )
    return files


def make_certificates(folder: Path) -> None:
    """Writes a new certificate and key for one cluster, readable only by this user, valid for a
    year.
    """
    from distributed.security import Security

    if (folder / KEY).exists():
        raise Contradiction(
            f"{folder}: it already has a key. Choose another folder.", kind="certificates-exist"
        )
    certificates = Security.temporary().get_tls_config_for_role("client")
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, content in ((CERTIFICATE, certificates["ca_file"]), (KEY, certificates["key"])):
        file = os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as stream:
            stream.write(str(content))
