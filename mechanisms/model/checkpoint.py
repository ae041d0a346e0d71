"""Tensors that survive a power failure: written to a partial file, synced, then renamed."""

import json
import os
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load as deserialise
from safetensors.torch import save as serialise
from safetensors.torch import save_file
from torch import Tensor


def save(path: Path, tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> None:
    """Atomically replaces `path` by these tensors and a JSON-serialisable description.

    Raises:
        OSError: the disk is full or not writable. The old file is unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        save_file(
            {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
            partial,
            metadata={"meta": json.dumps(dict(meta))},
        )
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except Exception as error:
        partial.unlink(missing_ok=True)
        raise _as_os_error(error, path) from None


def save_joined(path: Path, parts: Sequence[Path]) -> None:
    """Joins the tensors of several files along their first dimension, and writes the file that
    `save` would write of them without a description. Only one tensor of one part is in memory at a
    time.

    Raises:
        OSError: the disk is full or not writable; the old file is unchanged.
    """
    partial = path.with_name(path.name + ".partial")
    try:
        with partial.open("wb") as file:
            layout = _layout(parts)
            file.write(_head(layout))
            for name in layout:
                for part in parts:
                    with safe_open(part, framework="pt") as tensors:
                        values = tensors.get_tensor(name).contiguous()
                    file.write(values.view(-1).view(torch.uint8).numpy().data)
        sync(partial)
        partial.replace(path)
        sync(path.parent)
    except OSError:
        partial.unlink(missing_ok=True)
        raise


_SIZES = {"I64": 8, "F64": 8, "F32": 4, "I32": 4}
"""Bytes of one value."""


def _layout(parts: Sequence[Path]) -> dict[str, dict[str, Any]]:
    """Returns type, shape and place of each joined tensor, in the order of the file: those of wide
    values first, as safetensors has it.
    """
    shapes: dict[str, tuple[str, list[int]]] = {}
    for part in parts:
        with safe_open(part, framework="pt") as tensors:
            for name in tensors.keys():  # noqa: SIM118  (safe_open is no mapping)
                values = tensors.get_slice(name)
                rows, *others = values.get_shape()
                before = shapes[name][1][0] if name in shapes else 0
                shapes[name] = (values.get_dtype(), [before + rows, *others])
    layout: dict[str, dict[str, Any]] = {}
    start = 0
    for name, (dtype, shape) in sorted(shapes.items(), key=lambda one: (-_SIZES[one[1][0]], one)):
        end = start + prod(shape) * _SIZES[dtype]
        layout[name] = {"dtype": dtype, "shape": shape, "data_offsets": [start, end]}
        start = end
    return layout


def _head(layout: Mapping[str, Any]) -> bytes:
    described = {"__metadata__": {"meta": "{}"}, **layout}
    head = json.dumps(described, separators=(",", ":")).encode()
    head += b" " * (-len(head) % 8)
    return len(head).to_bytes(8, "little") + head


def description(path: Path) -> dict[str, Any]:
    with safe_open(path, framework="pt") as file:
        return json.loads((file.metadata() or {}).get("meta", "{}"))


def load(path: Path) -> tuple[dict[str, Tensor], dict[str, Any]]:
    with safe_open(path, framework="pt") as file:
        meta = json.loads((file.metadata() or {}).get("meta", "{}"))
        return {name: file.get_tensor(name) for name in file.keys()}, meta  # noqa: SIM118


def to_bytes(tensors: Mapping[str, Tensor], meta: Mapping[str, object]) -> bytes:
    """The content of the file that `save` would write."""
    return serialise(
        {name: t.detach().cpu().contiguous() for name, t in tensors.items()},
        metadata={"meta": json.dumps(dict(meta))},
    )


def from_bytes(content: bytes) -> tuple[dict[str, Tensor], dict[str, Any]]:
    """The tensors and the description in a file's content.

    Raises:
        ValueError: not a complete file of `save`.
    """
    try:
        tensors = deserialise(content)
        header = json.loads(content[8 : 8 + int.from_bytes(content[:8], "little")])
        return tensors, json.loads(header.get("__metadata__", {}).get("meta", "{}"))
    except SafetensorError:
        raise ValueError("not a whole safetensors file") from None


def sync(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _as_os_error(error: Exception, path: Path) -> Exception:
    """Converts safetensors' own error for a full disk to an OSError that contains the path."""
    if isinstance(error, OSError):
        return error
    return (
        OSError(f"cannot write {path}: {error}")
        if "I/O error" in str(error) or "os error" in str(error)
        else error
    )
