"""Checks the installation, for `autocoder status --check`."""

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from rich.text import Text

from flows.commands.layout import Console
from flows.commands.terminal import count_of, escape_text, say
from flows.server.settings import configure_prefect
from storage.errors import StorageError
from storage.extras import install_command
from storage.paths import Workspace
from tasks.running import installation


@dataclass(frozen=True)
class Finding:
    check: str
    ok: bool
    result: str
    remedy: str = ""


def show_checks(workspace: Path, *, as_json: bool) -> bool:
    """Prints missing parts and their remedies, and returns whether everything is present.

    The light installation has fewer checks.
    """
    configure_prefect()
    findings = [check(workspace) for check in (_LIGHT if installation.is_light() else _CHECKS)]
    if as_json:
        say(json.dumps([asdict(finding) for finding in findings], indent=2))
    else:
        console = Console()
        for finding in findings:
            mark = Text("ok      ", "green") if finding.ok else Text("missing ", "red")
            console.print(
                Text.assemble(mark, (finding.check, "bold"), f": {escape_text(finding.result)}"),
                soft_wrap=True,
            )
            if finding.remedy:
                console.print(f"         {finding.remedy}", soft_wrap=True)
    return all(finding.ok for finding in findings)


def _installation(_: Path) -> Finding:
    if installation.is_light():
        return Finding(
            "installation",
            True,
            "light: for received bundles",
            f"to train: {install_command('train')}",
        )
    absent = ", ".join(installation.missing())
    return Finding(
        "installation",
        not absent,
        f"without {absent}" if absent else "full",
        absent and install_command("train"),
    )


def _torch(_: Path) -> Finding:
    import torch

    if torch.cuda.is_available():
        names = ", ".join(torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count()))
        return Finding("torch", True, f"{torch.__version__}, {names}")
    note = "no CUDA device: use trainable part `head` here, `full` and `lora` on a GPU worker"
    return Finding(
        "torch", True, f"{torch.__version__}, cpu, {torch.get_num_threads()} threads", note
    )


def _encoder(_: Path) -> Finding:
    from mechanisms.errors import MechanismError
    from mechanisms.model import encoder_files

    try:
        return Finding(
            "encoder packaged-minilm",
            bool(encoder_files.resolve(encoder_files.PACKAGED)),
            "installed",
        )
    except MechanismError as error:
        return Finding("encoder packaged-minilm", False, "not installed", str(error))


def _ledger(home: Path) -> Finding:
    from storage.ledger import Ledger

    url = os.environ.get("AUTOCODER_LEDGER_URL")
    if url is None and not (home / "ledger.db").exists():
        return Finding("ledger", True, f"none yet; `train` creates {home / 'ledger.db'}")
    try:
        rows = len(list(Ledger.open(url or Workspace(home).ledger_url).rows()))
    except StorageError as error:
        return Finding("ledger", False, "cannot be opened", str(error))
    place = "PostgreSQL" if url and "postgres" in url else home / "ledger.db"
    return Finding("ledger", True, f"{count_of(rows, 'row')} in {place}")


def _prefect(_: Path) -> Finding:
    url = os.environ.get("PREFECT_API_URL")
    if url is None:
        return Finding("prefect", True, "no server is set: commands run without one")
    import httpx

    try:
        httpx.get(f"{url.rstrip('/')}/health", timeout=5).raise_for_status()
    except httpx.HTTPError as error:
        remedy = "start it (`prefect server start`), or unset PREFECT_API_URL to run without one"
        return Finding("prefect", False, f"{url} does not answer ({type(error).__name__})", remedy)
    return Finding("prefect", True, f"{url} answers")


def _storage(_: Path) -> Finding:
    from storage.shared_store import VARIABLE, SharedStore

    url = os.environ.get(VARIABLE)
    if not url:
        return Finding(
            "shared storage",
            True,
            f"none ({VARIABLE}): workers need a workspace that they all share",
        )
    try:
        shared = SharedStore(url)
        shared.manifest("check", "0" * 32)
    except StorageError as error:
        return Finding("shared storage", False, "cannot be used", str(error))
    return Finding("shared storage", True, f"{shared.url} answers")


def _disk(home: Path) -> Finding:
    existing = next(p for p in (home, *home.parents) if p.exists())
    free = shutil.disk_usage(existing).free
    remedy = "" if free > 1 << 30 else "training with trainable part `head` needs about 1 GB"
    return Finding("disk", free > 1 << 30, f"{free / 1e9:.1f} GB free at {existing}", remedy)


_LIGHT: tuple[Callable[[Path], Finding], ...] = (_installation, _disk)
_CHECKS = (*_LIGHT, _torch, _encoder, _ledger, _prefect, _storage)
