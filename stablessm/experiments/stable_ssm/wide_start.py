"""Rescales language models before training, so that the initial loss and the effect of the first updates do not depend
on width and depth.
"""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from stablessm.instruments.modes import recurrent_modules
from stablessm.models.sequence_model import SequenceModel

FAN_IN = 256
"""Smallest number of inputs of a matrix whose updates are scaled down."""
EMBEDDING = 0.1
"""Standard deviation of the trained numbers of the embeddings; the embeddings themselves have standard deviation 1."""
OWN = 1.6
"""Initial logit of the token that was just read, if the blocks added nothing."""


@final
class Scale(nn.Module):
    """A parametrization that stores a weight as s v, with a trained tensor v and a constant s. An optimizer step that
    changes v by δ changes the weight by s δ.
    """

    scale: Tensor

    def __init__(self, scale: float | Tensor) -> None:
        super().__init__()
        self.register_buffer("scale", torch.as_tensor(scale, dtype=torch.float32), persistent=False)

    def forward(self, v: Tensor) -> Tensor:
        """Return the weight s v for the trained tensor v."""
        return v * self.scale.to(v.dtype)

    def right_inverse(self, weight: Tensor) -> Tensor:
        """Return the trained tensor v = weight / s that represents the given weight."""
        return weight / self.scale.to(weight.dtype)


@torch.no_grad()
def scaled_start(model: SequenceModel) -> SequenceModel:
    """Rescale the updates and some initial weights of a language model in place. The model consists of Hyena blocks
    with real recurrences.

    Adam changes every trained number by about the learning rate. The output of a neuron is a sum over its n inputs, and
    the changes of its n weights add up, so the change of the output is proportional to n. To prevent this, weights are
    stored as s v (see :class:`Scale`), and an update changes a weight by s times the learning rate. The constant s is a
    product of up to three factors. For all matrices it contains min(1, 256/n). For matrices whose output is added to
    the residual stream it also contains 1/√(2L), where L is the number of blocks. For the input weights and biases of a
    recurrence it also contains 1 - a², where a is the decay of the mode, because a mode adds up its inputs over about
    1/(1 - a) steps. These factors change only the updates, not the initial weights.

    Two initial weights are changed as well. The embeddings get the standard deviation 1 instead of 0.02, and the gain
    of the final norm is 1.6/d instead of 1, where d is the width. The initial logits then have the variance 2.6/d. The
    weights of the eigenvalues stay as they are.

    >>> from stablessm.models import LanguageModel
    >>> model = scaled_start(LanguageModel(50, d_model=16, n_layers=1, d_state=4))
    >>> float(model(torch.zeros(1, 4, dtype=torch.long)).std()) < 1
    True
    """
    depth = (2 * model.config.n_layers) ** -0.5
    blocks: Any = model.body.blocks
    for block in blocks:
        mixer = block.mixer
        for part, factor in ((mixer.projection, 1.0), (block.wide, 1.0), (mixer.output, depth), (block.narrow, depth)):
            _scaled(part, "weight", factor * min(1.0, FAN_IN / part.in_features))
    for _, layer in recurrent_modules(model):
        rest = (layer.map.distance(layer.w.double()) * (1 + layer.eigenvalues().abs())).float()
        _scaled(layer, "B", min(1.0, FAN_IN / layer.d_input) * rest[:, None])
        _scaled(layer, "bias", rest)
    table: Any = model.body.encoder
    nn.init.normal_(table.weight)
    _scaled(table, "weight", 1 / EMBEDDING)
    norm: Any = model.body.norm
    norm.weight.fill_(OWN / model.config.d_model)
    _scaled(norm, "weight", OWN / model.config.d_model)
    return model


def _scaled(module: nn.Module, name: str, scale: float | Tensor) -> None:
    parametrize.register_parametrization(module, name, Scale(scale))
