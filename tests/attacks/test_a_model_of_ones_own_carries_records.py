"""Would win: what a module keeps of the records it ran on, in the model that is handed back; one
record that moves the parameters further than the clip, or ends the run.
"""

import own_modules
import pytest
import torch
from refusals import of_kind
from small_heads import clipped_sum
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.fit_module import swag_ppm
from mechanisms.model.custom_module import copy_of

DECLARES = """
a torch module of one's own takes no record past the draw
| a record noted in a parameter that is not trained, while training or after, at once or after a
while; one record so large that sums and norms overflow, in eight kinds of module
| what the module's own program keeps elsewhere: globals, files, attributes of a class
"""

CE, CLIP = nn.functional.cross_entropy, 0.5


class Notebook(nn.Module):
    """Notes the last record that it saw in a parameter that is not trained, such as a codebook or a
    moving mean.
    """

    def __init__(self, *, while_training: bool) -> None:
        super().__init__()
        self.read, self.while_training = nn.Linear(6, 3), while_training
        self.noted = nn.Parameter(torch.zeros(6), requires_grad=False)

    def forward(self, x: Tensor) -> Tensor:
        """[b, 6] to logits [b, 3]."""
        if self.training == self.while_training:
            with torch.no_grad():
                self.noted.copy_(x.detach()[-1])
        return self.read(x)


class Sleeper(Notebook):
    """Notes nothing until it has run a while: a trial on synthetic records is too
    short to see it.
    """

    runs = 0

    def forward(self, x: Tensor) -> Tensor:
        """[b, 6] to logits [b, 3]."""
        self.runs += 1
        return super().forward(x) if self.runs > 20 else self.read(x)


@pytest.mark.parametrize("kind", [Notebook, Sleeper])
@pytest.mark.parametrize("while_training", [False, True])
def test_a_record_in_a_parameter_that_is_not_trained(
    while_training: bool, kind: type[Notebook]
) -> None:
    """It is not drawn: refused, or what comes back holds what was given."""
    x, y = torch.randn(40, 6), torch.arange(40) % 3
    try:
        private = swag_ppm(kind(while_training=while_training), CE, (x, y), draws=4)
    except MechanismError:
        return
    assert isinstance(private.model, Notebook)
    assert torch.equal(private.model.noted, torch.zeros(6))


def test_it_is_refused_on_invented_records() -> None:
    """Before a real one is read, where a trial shows it."""
    model = Notebook(while_training=False)
    with pytest.raises(MechanismError, check=of_kind("changing-buffer"), match=r"noted"):
        copy_of(model, CE, torch.randn(4, 6), torch.arange(4) % 3, device=torch.device("cpu"))


@pytest.mark.parametrize("name", ["layered", "linear"])
def test_one_record_that_is_too_large(name: str) -> None:
    """The sum moves by the clip at most, as with any record."""
    module, x, y = own_modules.made(name, 12)
    x[5] = 3e38
    others = torch.arange(12) != 5

    def clipped(chosen: Tensor) -> Tensor:
        model = copy_of(module, CE, x, y, device=torch.device("cpu"))
        return clipped_sum(
            model, {"features": x[chosen]}, y[chosen], lambda norms: (CLIP / norms).clamp(max=1)
        )[1]

    expected = clipped(others)
    assert expected.norm() > 0
    assert (clipped(others | True) - expected).norm() <= CLIP * (1 + 1e-5)
