"""The public prior: a linear head that knows the classification before it has read a record.

Every code has public texts: its title alone, its title among those of the levels above it, and,
where a sentence is given, its title in that, as a narrative would say it. With the frozen encoder
f, the directions of each kind of text about the mean of its kind are added up,

    t_c = sum over kinds of (f(s_c) - m) / |f(s_c) - m|,   m = mean over codes of f(s_c),
    W_c = beta t_c / |t_c|,    b_c = -W_c M,               M = mean of m over kinds,

so that the untrained head scores a narrative x by beta cos(x - M, t_c) |x - M|: it says the code
whose title is nearest in direction. The mean, which is what all titles share, is taken out of
titles and narratives alike. No record is read, so it costs nothing. A code without a text has W_c =
0 and b_c = 0: what the average code scores. Where the head reads words next to the encoder
(`lexicon`), f has both blocks.
"""

from collections.abc import Callable

import torch
from torch import Tensor, nn

from mechanisms.errors import MechanismError
from mechanisms.model import classifier as classifiers
from mechanisms.model.classifier import Classifier, MeanPooled
from mechanisms.model.config import ModelConfig


def embed(
    config: ModelConfig,
    texts: list[str],
    *,
    device: torch.device | str,
    on_batch: Callable[[int], None] | None = None,
) -> Tensor:
    """The frozen encoder's pooled features of public texts, float32 [texts, width], on the CPU."""
    encoder = classifiers.build(config.frozen(), num_labels=2, seed=0, device=device)
    return encoder.encode(classifiers.tokenize(config, texts), on_batch=on_batch).features


def directions(embeddings: Tensor, known: Tensor) -> tuple[Tensor, Tensor]:
    """(unit vectors of the known codes' texts about their mean, 0 for the others, [classes, width];
    that mean [width]).

    Args:
        embeddings: float32 [kinds of text, classes, width].
    """
    centre = embeddings[:, known].mean(1, keepdim=True)
    about = nn.functional.normalize(embeddings - centre, dim=2).sum(0) * known[:, None]
    return nn.functional.normalize(about, dim=1), centre.mean((0, 1))


def start(classifier: Classifier, embeddings: Tensor, known: Tensor) -> None:
    """Put the prior into the untrained classifier's head, at the scale of its configuration.

    Args:
        embeddings: float32 [kinds of text, classes, width].
        known: bool [classes], which codes have a text.
    """
    unit, centre = directions(embeddings, known)
    head = head_of(classifier)
    classifier.centre = centre
    with torch.no_grad():
        head.weight.copy_(classifier.config.prior_scale * unit)
        head.bias.copy_(-(head.weight @ centre.to(head.weight.device)))


def head_of(classifier: Classifier) -> nn.Linear:
    """Returns the linear layer that reads the pooled features; refuses a head without one."""
    head = classifier.part.head if isinstance(classifier.part, MeanPooled) else classifier.part
    if not isinstance(head, nn.Linear):
        raise MechanismError(
            "model.prior: a prior from titles needs one linear layer on the features: pooling "
            "`mean`"
        )
    return head
