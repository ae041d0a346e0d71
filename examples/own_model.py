"""Trains your torch model by SWAG-PPM, with one call, and prints what it claims.

Any `nn.Module` that treats each record alone can replace the layers below. `own_model.ipynb` next
to this file is the longer version, with pictures.
"""

import torch
from torch import nn

from autocoder import swag_ppm
from mechanisms.model.config import OptimiserPhase

WIDTH, CLASSES = 8, 3


def invented(n: int, *, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns synthetic features around one corner for each class."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.arange(n) % CLASSES
    return 2 * torch.eye(CLASSES, WIDTH)[labels] + torch.randn(
        n, WIDTH, generator=generator
    ), labels


def main() -> None:
    """Prints accuracy and claim."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 16), nn.LayerNorm(16), nn.Tanh(), nn.Linear(16, CLASSES))
    loss, training, (x, y) = (
        nn.functional.cross_entropy,
        invented(300, seed=1),
        invented(300, seed=2),
    )
    private = swag_ppm(
        model,
        loss,
        training,
        draws=100,
        fine_tune=OptimiserPhase(optimiser="adamw", learning_rate=0.01, epochs=5, batch_size=16),
        collect=OptimiserPhase(optimiser="sgd", learning_rate=0.05, epochs=10, batch_size=16),
    )
    accuracy = (private.model(x).argmax(1) == y).double().mean()
    print(f"accuracy {accuracy:.3f}")
    print(private.claim.model_dump_json(indent=2))


if __name__ == "__main__":
    main()
