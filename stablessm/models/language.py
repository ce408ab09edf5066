"""A language model, which returns the logits of the next token at every step."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, final

import torch
from torch import Tensor, nn

from stablessm._checked import Count, Seed, Several, checked
from stablessm._errors import ArgumentError
from stablessm.layers.storage import saved
from stablessm.models.config import LanguageConfig
from stablessm.models.sampling import Draw, drawn
from stablessm.models.sequence_model import SequenceModel
from stablessm.scan.checks import check_device, check_tensor

EMBEDDING = 0.02
"""Standard deviation of the initial embeddings; with a tied readout, initial logits are then below one."""


@saved
@final
class LanguageModel(SequenceModel):
    """A language model that returns the logits (B, T, vocab_size) of the next token at every step.

    By default, the model is the language model of StableSSM, section 4.2.

    ``model(tokens)`` returns the logits, for training. ``model.sequence(tokens, state)`` also takes and returns a
    state, and ``model.step(tokens, state)`` reads one token per row, tokens (B,). The size of the state does not grow
    with the text. The argument ``reset`` marks the first token of each document within a row.
    :class:`~stablessm.models.StableSSMForCausalLM` wraps the same network as a Hugging Face model.

    Args:
        vocab_size: number of tokens.
        tied: whether the readout shares its weights with the embeddings.
        **options: the other settings of :class:`~stablessm.models.LanguageConfig`: ``d_model``, ``n_layers``,
            ``d_state``, ``mixer``, ``map``, ``dropout``, …

    >>> model = LanguageModel(100, d_model=16, n_layers=2, d_state=8).eval()
    >>> tokens = torch.randint(0, 100, (4, 50))
    >>> logits, state = model.sequence(tokens)
    >>> next_logits, state = model.step(logits[:, -1].argmax(-1), state)
    >>> logits.shape, next_logits.shape
    (torch.Size([4, 50, 100]), torch.Size([4, 100]))
    """

    config: LanguageConfig

    @checked
    def __init__(self, vocab_size: Several, *, tied: bool = True, **options: Any) -> None:
        super().__init__(LanguageConfig.of({"vocab_size": vocab_size, "tied": tied, **options}))
        with torch.no_grad():
            for module in self.modules():
                self._adjust(module)

    @torch.no_grad()
    def draw(self, module: nn.Module) -> None:
        """Draw new initial values for the parameters of one module, without its submodules, as when the
        model is built.
        """
        if not isinstance(module, nn.Module):
            raise ArgumentError("module", "an nn.Module", type(module).__name__)
        reset: Any = getattr(module, "reset_parameters", None)
        if reset is not None:
            reset()
        self._adjust(module)

    def _adjust(self, module: nn.Module) -> None:
        """Replace PyTorch's default initial weights of one module.

        Embeddings are small, biases are zero, and the weights of the outputs that blocks add to the residual stream are
        scaled down with the number of blocks, as in GPT-2.
        """
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBEDDING)
        elif isinstance(module, nn.Linear):
            if module.bias is not None:
                nn.init.zeros_(module.bias)
            if self._adds(module):
                module.weight.mul_((2 * self.config.n_layers) ** -0.5)

    def _adds(self, module: nn.Module) -> bool:
        """Return True if a block adds the output of this module to its residual stream."""
        parts = ((block.narrow, getattr(block.mixer, "output", None)) for block in self.body.blocks)
        return any(module is part for both in parts for part in both)

    @checked
    def generate(
        self,
        prompt: Tensor,
        count: Count,
        *,
        temperature: float = 1.0,
        top_k: int | None = None,
        never: Sequence[int] = (),
        seed: Seed = 0,
    ) -> Tensor:
        """Generate ``count`` tokens, (B, count), that continue prompts (B, T) of equal length.

        The other arguments are those of :func:`~stablessm.models.sample_tokens`, which yields single tokens as they are
        drawn. On an NVIDIA GPU, a step of the model and the draw run as one CUDA graph.

        >>> model = LanguageModel(100, d_model=16, n_layers=1, d_state=8)
        >>> model.generate(torch.tensor([[1, 2, 3], [4, 5, 6]]), 5, temperature=0).shape
        torch.Size([2, 5])
        """
        if prompt.dim() != 2 or not prompt.shape[1]:
            raise ArgumentError("prompt", "(batch, time), at least one token each", f"shape {tuple(prompt.shape)}")
        device = self._table.device
        draw = Draw(device, temperature=temperature, top_k=top_k, never=never, seed=seed)
        tokens = torch.empty(len(prompt), count, dtype=torch.int64, device=device)
        for i, column in enumerate(drawn(self, prompt.to(device), count, draw)):
            tokens[:, i] = column
        return tokens

    def logits(self, h: Tensor) -> Tensor:
        """Compute the logits (…, vocab_size) for outputs h (…, d_model) of the blocks."""
        check_tensor("h", h)
        check_device("h", h, self._table)
        if not h.is_floating_point() or h.shape[-1:] != self._table.shape[1:]:
            raise ArgumentError(
                "h", f"real numbers (…, {self._table.shape[1]})", f"{h.dtype} of shape {tuple(h.shape)}"
            )
        return self._read(h)
