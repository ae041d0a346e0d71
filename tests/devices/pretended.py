"""A card that is not there: tensors of a device `card`, computed on the processor, refused where a
real card refuses. What a machine without a card cannot see is a tensor left on the other side: an
operation on both, an index that is on the card into one that does not, an array taken from its
memory, a generator of the processor's. Importing this makes the device (torch's backend for devices
written in Python); `torch.zeros(3, device="card")` and `module.to("card")` do what they do on CUDA.
Speed, memory, streams and its own kernels' rounding are a real card's alone.
"""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial
from typing import Any

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import (
    _DummyBackendModule,
    _setup_privateuseone_for_python_backend,
)

NAME = "card"


class _Module(_DummyBackendModule):
    @staticmethod
    def get_amp_supported_dtype() -> list[torch.dtype]:
        return [torch.bfloat16]


_setup_privateuseone_for_python_backend(NAME, backend_module=_Module())
torch.__future__.set_overwrite_module_params_on_conversion(True)
_CARD = torch.device(NAME, 0)


class OnCard(torch.Tensor):
    """A tensor of the card; `held` is where the processor keeps it."""

    held: torch.Tensor

    @staticmethod
    def __new__(cls, held: torch.Tensor) -> OnCard:
        with torch.inference_mode(
            held.is_inference()
        ):  # a view of what is older than inference mode is none of its
            made = torch.Tensor._make_wrapper_subclass(
                cls,
                held.shape,
                strides=held.stride(),
                storage_offset=held.storage_offset(),
                dtype=held.dtype,
                device=_CARD,
            )
        made.held = held
        return made

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"OnCard({self.held})"

    @property
    def data(self) -> Any:  # pyrefly: ignore[bad-override-mutable-attribute]
        return torch.Tensor.data.__get__(self)  # pyrefly: ignore[missing-attribute]

    @data.setter
    def data(self, other: OnCard) -> None:
        torch.Tensor.data.__set__(self, other)  # pyrefly: ignore[missing-attribute]
        self.held = other.held

    def numpy(self, *, force: bool = False) -> Any:
        raise TypeError("can't convert a tensor of a card to numpy: use Tensor.cpu() first")

    def __deepcopy__(self, memo: dict[int, Any]) -> OnCard:
        made = self.detach().clone().requires_grad_(self.requires_grad)
        if isinstance(self, torch.nn.Parameter):
            made = torch.nn.Parameter(made, requires_grad=self.requires_grad)
        return memo.setdefault(id(self), made)

    def data_ptr(self) -> int:
        return self.held.data_ptr()

    def tolist(self) -> Any:
        """Copied to the processor, as of every card."""
        return self.held.tolist()

    @classmethod
    # pyrefly: ignore[bad-override]
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, args, kwargs or {})


def _run(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """The operation on what is held; what comes out is on the card where it would be."""
    name = func.overloadpacket.__name__
    leaves = tree_leaves((args, kwargs))
    given = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
    asked = next((leaf for leaf in leaves if isinstance(leaf, torch.device)), None)
    if name == "copy_":
        on_card = isinstance(args[0], OnCard)
    elif name in ("index", "index_put", "index_put_", "_unsafe_index", "_index_put_impl_"):
        on_card = isinstance(args[0], OnCard)  # indices of the processor are taken there
        others = list(args[1]) if not on_card else []
        _refuse_mixed(name, [args[0], *others, *(args[2:3] if "put" in name else ())])
    else:
        on_card = asked is None or asked.type == NAME
        if name not in ("_to_copy", "to"):
            _refuse_mixed(name, given)
    generator = kwargs.get("generator")
    if on_card and generator is not None and generator.device.type != NAME:
        raise RuntimeError(
            f"{name}: expected a generator of the card, found one of {generator.device}"
        )
    found = func(*tree_map(_held, args), **tree_map(_held, kwargs))
    same = {id(_held(one)): one for one in given}
    return tree_map(partial(_told, same=same, on_card=on_card), found)


def _refuse_mixed(name: str, given: Iterable[Any]) -> None:
    """Except for numbers, which a card takes from the processor."""
    kinds = {
        isinstance(one, OnCard) for one in given if isinstance(one, torch.Tensor) and one.dim() > 0
    }
    if len(kinds) > 1:
        raise RuntimeError(
            f"{name}: expected all tensors to be on the same device, found the card and the "
            "processor"
        )


def _held(value: Any) -> Any:
    if isinstance(value, torch.device):
        return torch.device("cpu")
    return value.held if isinstance(value, OnCard) else value


def _told(value: Any, *, same: dict[int, torch.Tensor], on_card: bool) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return same[id(value)] if id(value) in same else OnCard(value) if on_card else value


def _factory(make: Any) -> Any:
    def made(*args: Any, device: Any = None, pin_memory: Any = None, **kwargs: Any) -> OnCard:
        return OnCard(make(*args, device="cpu", **kwargs))

    return made


_LIBRARY = torch.library.Library("aten", "IMPL")
for _name in ("empty.memory_format", "empty_strided"):
    _packet, _, _overload = _name.partition(".")
    _make = getattr(torch.ops.aten, _packet)
    _LIBRARY.impl(_name, _factory(getattr(_make, _overload) if _overload else _make), "PrivateUse1")


def _cast(product: Any) -> Any:
    """A product in autocast's type, as autocast has it done on a card."""

    def done(*args: Any, **kwargs: Any) -> Any:
        kind = torch.get_autocast_dtype(NAME)
        others = torch._C.DispatchKeySet(torch._C._dispatch_key_parse("AutocastPrivateUse1"))

        def of_kind(value: Any) -> Any:
            return (
                value.to(kind)
                if isinstance(value, torch.Tensor) and value.dtype == torch.float32
                else value
            )

        with torch._C._ExcludeDispatchKeyGuard(others):
            return product(*tree_map(of_kind, args), **tree_map(of_kind, kwargs))

    return done


_EVERY = torch.library.Library("_", "IMPL")
_EVERY.fallback(torch.library.fallthrough_kernel, "AutocastPrivateUse1")
for _name in (
    "linear",
    "matmul",
    "mm",
    "bmm",
    "addmm",
    "baddbmm",
    "addbmm",
    "scaled_dot_product_attention",
):
    _LIBRARY.impl(_name, _cast(getattr(torch.ops.aten, _name)), "AutocastPrivateUse1")
