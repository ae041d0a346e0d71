"""A small convolutional network whose layers are linear ones on patches, so that whatever clips linear layers clips it.

A convolution is the same linear layer at every position of an image. Written so (`unfold`, then `nn.Linear` on
[b, positions, patch]), per-record gradients, their norms and the clipped sum come from `mechanisms.model.ghost`, as for
the linear layers of a transformer, and a convolution needs no code of its own there.

Two convolutions (5 x 5 and 3 x 3, both with stride 2) with tanh, and a linear layer: tanh keeps activations bounded,
which under clipping does better than ReLU (Papernot et al. 2021, "Tempered sigmoid activations"). No pooling and no
normalisation: batch normalisation would mix records.
"""

from __future__ import annotations

from torch import Tensor, nn

from mechanisms.errors import MechanismError

CHANNELS = (8, 16)
_KERNELS = (5, 3)
_STRIDE = 2


class PatchConvolution(nn.Module):
    """A convolution with stride 2 and half a kernel of padding, as one linear layer on patches."""

    def __init__(self, channels_in: int, channels_out: int, kernel: int) -> None:
        super().__init__()
        self._unfold = nn.Unfold(kernel, padding=kernel // 2, stride=_STRIDE)
        self.linear = nn.Linear(channels_in * kernel**2, channels_out)

    def forward(self, images: Tensor) -> Tensor:
        """[b, channels, h, w] to [b, channels out, ceil(h/2), ceil(w/2)]."""
        height, width = (_halved(side) for side in images.shape[2:])
        patches = self._unfold(images).transpose(1, 2)
        return self.linear(patches).transpose(1, 2).unflatten(2, (height, width))


class Convolutional(nn.Module):
    """Flattened pixels [b, h w c] in, logits [b, classes] out.

    Args:
        shape: of an image, (h, w) or (h, w, channels).
    """

    def __init__(self, shape: tuple[int, ...], classes: int) -> None:
        super().__init__()
        if len(shape) not in (2, 3) or min(shape) < 1:
            raise MechanismError("model.layers=convolutional is for images: data.ingest.kind=images")
        self._height, self._width, self._channels = (*shape, 1)[:3]
        first, second = CHANNELS
        self.first = PatchConvolution(self._channels, first, _KERNELS[0])
        self.second = PatchConvolution(first, second, _KERNELS[1])
        self.output = nn.Linear(second * _halved(_halved(self._height)) * _halved(_halved(self._width)), classes)

    def forward(self, pixels: Tensor) -> Tensor:
        """Logits [b, classes]."""
        images = pixels.unflatten(1, (self._height, self._width, self._channels)).permute(0, 3, 1, 2)
        hidden = self.second(self.first(images).tanh()).tanh()
        return self.output(hidden.flatten(1))


def _halved(side: int) -> int:
    return -(-side // _STRIDE)
