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
from typing import NamedTuple

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


def put(classifier: Classifier, weight: Tensor) -> None:
    """Puts rows about the centre of the public texts into a head that starts at titles."""
    head, centre = head_of(classifier), classifier.centre
    assert centre is not None
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(-(head.weight @ centre.to(head.weight.device)))


class AtExamples(NamedTuple):
    """A head at public examples, and how it was found."""

    weight: Tensor
    """float32 [classes, width]."""
    pull: float | None
    """Lambda; None: no pull was better on the entries left out than the titles alone."""
    left_out_loss: float


PULLS = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
_LEFT_OUT = 5
"""One entry of so many is left out to choose the pull."""
_STEPS = 15


def at_examples(
    classifier: Classifier,
    features: Tensor,
    labels: Tensor,
    *,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> AtExamples:
    """Finds the head nearest to the titles that knows public examples,

        W = argmin  mean over entries of log-loss + lambda / 2 |W - W_titles|^2,

    with the lambda at which entries that were left out have the least log-loss. Each row keeps the
    length that it has there: rows of one length, as titles have, would lose what sets the codes'
    scores apart. Entries are public, so it costs nothing.

    Args:
        classifier: starts at titles.
        features: float32 [entries, width], with their labels int64 [entries].
    """
    head, centre = head_of(classifier), classifier.centre
    assert centre is not None
    titles = head.weight.detach().float().cpu()
    about = features - centre.cpu()
    mixed = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    out, within = mixed[: len(labels) // _LEFT_OUT], mixed[len(labels) // _LEFT_OUT :]

    def loss_left_out(weight: Tensor) -> float:
        scores = about[out] @ weight.T
        return float(nn.functional.cross_entropy(scores, labels[out]))

    best: tuple[float, float | None, Tensor] = (loss_left_out(titles), None, titles)
    weight = titles
    for done, pull in enumerate(PULLS):
        progress(done, len(PULLS) + 1)
        weight = _descend(weight, titles, about[within], labels[within], pull)
        loss = loss_left_out(weight)
        if loss >= best[0] and best[1] is not None:
            break
        if loss < best[0]:
            best = (loss, pull, weight)
    loss, chosen, weight = best
    if chosen is not None:
        weight = _descend(weight, titles, about, labels, chosen)
    return AtExamples(weight, chosen, loss)


def _descend(
    start_at: Tensor, titles: Tensor, about: Tensor, labels: Tensor, pull: float
) -> Tensor:
    weight = start_at.clone().requires_grad_()
    optimiser = torch.optim.LBFGS(
        [weight], max_iter=_STEPS, history_size=8, line_search_fn="strong_wolfe"
    )

    def closure() -> Tensor:
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(about @ weight.T, labels)
        loss = loss + pull / 2 * (weight - titles).square().sum()
        loss.backward()
        return loss

    optimiser.step(closure)
    return weight.detach()


def head_of(classifier: Classifier) -> nn.Linear:
    """Returns the linear layer that reads the pooled features; refuses a head without one."""
    head = classifier.part.head if isinstance(classifier.part, MeanPooled) else classifier.part
    if not isinstance(head, nn.Linear):
        raise MechanismError(
            "model.prior: a prior from titles needs one linear layer on the features: pooling "
            "`mean`",
            kind="prior-needs-linear-layer",
        )
    return head
