"""Modules of someone's own, and the gradients that a loop over records gives them."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from mechanisms.model.custom_module import Loss


class Attention(nn.Module):
    """One block: attention, layer normalisation before it, two linear layers after it, residuals
    around both.
    """

    def __init__(self, width: int = 8, classes: int = 3) -> None:
        super().__init__()
        self.before = nn.LayerNorm(width)
        self.attention = nn.MultiheadAttention(width, num_heads=2, batch_first=True)
        self.after = nn.Sequential(
            nn.LayerNorm(width), nn.Linear(width, 12), nn.GELU(), nn.Linear(12, width)
        )
        self.output = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        """[b, positions, width] to logits [b, classes]."""
        seen = self.before(x)
        x = x + self.attention(seen, seen, seen, need_weights=False)[0]
        return self.output((x + self.after(x)).mean(1))


class Tied(nn.Module):
    """One matrix used twice, one layer that is frozen, one parameter that nothing uses."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.frozen, self.output = (
            nn.Linear(6, 6, bias=False),
            nn.Linear(6, 6),
            nn.Linear(6, 3),
        )
        self.frozen.requires_grad_(False)
        self.unused = nn.Parameter(torch.ones(2))

    def forward(self, x: Tensor) -> Tensor:
        """[b, 6] to [b, 3]."""
        return self.output(
            self.frozen(nn.functional.linear(self.first(x).tanh(), self.first.weight.t()))
        )


def convolutional(classes: int = 3) -> nn.Module:
    """[b, 1, 8, 8] to logits; group normalisation looks at one record."""
    return nn.Sequential(
        nn.Conv2d(1, 4, 3, padding=1),
        nn.GroupNorm(2, 4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(4, 6, 3, stride=2, padding=1),
        nn.Tanh(),
        nn.Flatten(),
        nn.Linear(24, classes),
    )


class Recurrent(nn.Module):
    """A recurrent layer over positions, read in both directions, and a linear one at its end."""

    def __init__(self, layer: Callable[..., nn.RNNBase], classes: int = 3) -> None:
        super().__init__()
        self.read, self.output = (
            layer(4, 5, batch_first=True, bidirectional=True),
            nn.Linear(10, classes),
        )

    def forward(self, x: Tensor) -> Tensor:
        """[b, positions, 4] to logits [b, classes]."""
        return self.output(self.read(x)[0].mean(1))


def layered(classes: int = 3) -> nn.Module:
    """[b, 6] to logits, of layers that DP-SGD knows."""
    return nn.Sequential(
        nn.Linear(6, 10), nn.LayerNorm(10), nn.Tanh(), nn.Sequential(nn.Linear(10, classes))
    )


MODULES: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "convolutional": (convolutional, (1, 8, 8)),
    "attention": (Attention, (5, 8)),
    "tied": (Tied, (6,)),
    "gru": (lambda: Recurrent(nn.GRU), (5, 4)),
    "lstm": (lambda: Recurrent(nn.LSTM), (5, 4)),
    "rnn": (lambda: Recurrent(nn.RNN), (5, 4)),
    "layered": (layered, (6,)),
    "linear": (lambda: nn.Linear(6, 3), (6,)),
}


def made(name: str, n: int = 12) -> tuple[nn.Module, Tensor, Tensor]:
    """A module, n inputs for it of very unlike size, and their classes."""
    build, shape = MODULES[name]
    torch.manual_seed(0)
    module = build()
    spread = torch.logspace(-1, 1, n).view(-1, *(1 for _ in shape))
    return module, torch.randn(n, *shape) * spread, torch.arange(n) % 3


def one_by_one(
    module: nn.Module, loss: Loss, x: Tensor, y: Tensor, *, clip: float
) -> tuple[Tensor, Tensor]:
    """The clipped sum float [P] and the norms float [n], only by autograd on each record."""
    module = copy.deepcopy(module)
    trained = [p for p in module.parameters() if p.requires_grad]
    total, norms = torch.zeros(sum(p.numel() for p in trained)), []
    for record in range(len(x)):
        value = loss(module(x[record : record + 1]), y[record : record + 1])
        parts = torch.autograd.grad(value, trained, allow_unused=True, materialize_grads=True)
        gradient = torch.cat([part.flatten() for part in parts])
        norms.append(gradient.norm())
        total += gradient * (clip / gradient.norm()).clamp(max=1)
    return total, torch.stack(norms)
