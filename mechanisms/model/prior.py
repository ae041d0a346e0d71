"""The public prior: a linear head that represents the classification before it has read a record.

Every code has public texts: its title, its title combined with the titles of the levels above it,
and, if a sentence template is set, its title in that sentence, as a narrative would say it. With
the frozen encoder f, the directions of each kind of text about the mean of its kind are added,

  t_c = sum over kinds of (f(s_c) - m) / |f(s_c) - m|,   m = mean over codes of f(s_c),
  W_c = beta t_c / |t_c|,    b_c = -W_c M,               M = mean of m over kinds,

so that the untrained head gives a narrative x the score beta cos(x - M, t_c) |x - M| and predicts
the code with the nearest title in direction. The mean, which all titles share, is subtracted from
titles and narratives alike. No record is read, so this costs no privacy. A code without a text has
W_c = 0 and b_c = 0, the score of an average code. If the head also reads words (`lexicon`), f
includes both blocks.
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
    """The unit vectors of the known codes' texts about their mean, [classes, width] (0 for other
    codes), and the mean [width].

    Args:
        embeddings: float32 [kinds of text, classes, width].
        known: bool [classes], which codes have a text.
    """
    centre = embeddings[:, known].mean(1, keepdim=True)
    about = nn.functional.normalize(embeddings - centre, dim=2).sum(0) * known[:, None]
    return nn.functional.normalize(about, dim=1), centre.mean((0, 1))


def start(classifier: Classifier, embeddings: Tensor, known: Tensor) -> None:
    """Initialises the untrained classifier's head with the prior, at the scale of its
    configuration.

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
    """Sets the rows of a head that starts at titles, with the bias that centres them at the public
    texts.
    """
    head, centre = head_of(classifier), classifier.centre
    assert centre is not None
    with torch.no_grad():
        head.weight.copy_(weight)
        head.bias.copy_(-(head.weight @ centre.to(head.weight.device)))


class AtExamples(NamedTuple):
    """A head fitted to public examples, and how it was chosen."""

    weight: Tensor
    """float32 [classes, width]."""
    pull: float | None
    """Lambda. None if the titles alone were at least as good on the held-out entries."""
    left_out_loss: float


PULLS = (3e-3, 1e-3, 3e-4, 1e-4, 3e-5, 1e-5, 3e-6)
_LEFT_OUT = 5
"""One entry in this number is held out to choose the pull."""
_STEPS = 15


def at_examples(
    classifier: Classifier,
    features: Tensor,
    labels: Tensor,
    *,
    progress: Callable[[int, int], object] = lambda done, total: None,
) -> AtExamples:
    """Fits the head that is nearest to the titles while classifying public examples,

      W = argmin  mean over entries of log-loss + lambda / 2 |W - W_titles|^2,

    with the lambda that has the smallest log-loss on held-out entries. Rows keep their fitted
    lengths: with equal lengths, as titles have, the scores of the codes would lose information. The
    entries are public, so this costs no privacy.

    Args:
        classifier: starts at titles.
        features: float32 [entries, width].
        labels: int64 [entries].
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
    """The linear layer that reads the pooled features; refuses a head without one."""
    head = classifier.part.head if isinstance(classifier.part, MeanPooled) else classifier.part
    if not isinstance(head, nn.Linear):
        raise MechanismError(
            "model.prior: a prior from titles needs one linear layer on the features: pooling "
            "`mean`",
            kind="prior-needs-linear-layer",
        )
    return head
