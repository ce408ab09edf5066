"""The adapter that runs Hugging Face models with their cache, attention mask and positions."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Any, final

import torch
from torch import Tensor

from stablessm._errors import ArgumentError
from stablessm.instruments import huggingface
from stablessm.instruments._states import leaves
from stablessm.instruments.adapters._modules import in_dtype
from stablessm.instruments.adapters.facts import name_of, state_name
from stablessm.instruments.adapters.stateful import STATEFUL, NotSupportedError, Result, Stateful

_KEYS = re.compile(r"(keys|values|key_cache|value_cache)(\[\d+\])?$")
"""Names of the parts of a cache that belong to attention."""


@final
@dataclass
class Memory:
    """The state of a Hugging Face model: its cache, and a mask of the past tokens that are not padding."""

    cache: Any
    seen: int
    """Number of tokens, including padding."""
    real: Tensor | None
    """Mask (B, seen), False at padding; None if there was no padding."""


@final
class HuggingFace(Stateful):
    """An adapter for a causal model of ``transformers``. Its state is a :class:`Memory`.

    Inputs are tokens (B, T), or real inputs (B, T, d_input), which are added to the embedding of a neutral token: the
    begin, padding or end token of the model, or token 0.
    """

    in_place = True
    most_exact = torch.float32  # masks for float64 overflow in some models

    def __init__(self, model: Any, positions: bool = True) -> None:
        """Wrap a Hugging Face model; with ``positions=False`` the model must derive the positions of tokens from its
        cache.
        """
        self.positions = positions
        table = model.get_input_embeddings().weight
        super().__init__(model, table.shape[1], table.dtype, table.device)
        self.vocabulary = table.shape[0]
        self._base = huggingface.neutral_embedding(model, None)
        self._key = state_name(model)
        if self._key is None or getattr(model.config, "is_encoder_decoder", False):
            raise ArgumentError("model", STATEFUL, f"{name_of(model)}, whose forward takes no cache")
        sizes = (getattr(model.config, name, None) for name in ("chunk_size", "mamba_chunk_size"))
        self.chunk = max((size for size in sizes if isinstance(size, int)), default=0)
        self._needs_cache = False
        self._accepted = inspect.signature(model.forward).parameters

    @property
    def special(self) -> set[int]:
        """Return the ids of special tokens that are not text, such as padding, begin, end and image tokens."""
        config = self.model.config
        named = (getattr(config, name) for name in dir(type(config)) + list(vars(config)) if name.endswith("token_id"))
        flat = [token for value in named for token in (value if isinstance(value, list) else [value])]
        return {token for token in flat if isinstance(token, int)}

    @property
    def never_generated(self) -> frozenset[int]:  # type: ignore[override]
        ends = getattr(getattr(self.model, "generation_config", None), "eos_token_id", None)
        given = ends if isinstance(ends, list) else [ends]
        return frozenset(token for token in given if token is not None and token < (self.vocabulary or 1))

    def inputs(self, rows: int, steps: int, generator: torch.Generator) -> Tensor:
        """Return random tokens (rows, steps) that are not special tokens."""
        size = self.vocabulary or 1
        allowed = torch.tensor([token for token in range(size) if token not in self.special] or [0])
        return allowed[torch.randint(len(allowed), (rows, steps), generator=generator)].to(self.device)

    def whole(self, x: Tensor) -> Tensor:
        return huggingface.predicted(self.model(input_ids=x, use_cache=False, return_dict=True))

    def run(self, x: Tensor, state: Memory | None = None) -> Result:
        real = None if state is None or state.real is None else x.new_ones(x.shape[:2], dtype=torch.bool)
        return self._run(x, state, real)

    def padded(self, x: Tensor, real: Tensor, state: Memory | None = None) -> Result:
        if "attention_mask" not in self._accepted:
            raise NotSupportedError("forward takes no attention_mask")
        token = getattr(self.model.config, "pad_token_id", None)
        token = token if isinstance(token, int) and 0 <= token < (self.vocabulary or 1) else 0
        return self._run(torch.where(real, x, token), state, real)

    def _run(self, x: Tensor, state: Memory | None, real: Tensor | None) -> Result:
        seen = 0 if state is None else state.seen
        options: dict[str, Any] = {} if state is None else {str(self._key): state.cache}
        if real is not None:
            before = torch.ones(len(x), seen, dtype=torch.bool, device=x.device)
            before = before if state is None or state.real is None else state.real
            real = torch.cat([before, real], 1)
            if self._key == "past_key_values":
                options["attention_mask"] = real.long()
            elif not bool(real[:, seen:].all()):  # a recurrence without attention takes the mask of the new tokens
                options["attention_mask"] = real[:, seen:].long()
        if self.positions and "position_ids" in self._accepted:
            every = torch.ones(len(x), seen + x.shape[1], device=x.device) if real is None else real
            options["position_ids"] = (every.long().cumsum(1) - 1).clamp(min=0)[:, seen:]
        if "cache_position" in self._accepted and self._key == "cache_params" and state is not None:
            options["cache_position"] = torch.arange(seen, seen + x.shape[1], device=x.device)
        if state is None and self._needs_cache:
            from transformers import DynamicCache

            options[str(self._key)] = DynamicCache(config=self.model.config)
        given = {"inputs_embeds": self._base + x} if x.is_floating_point() else {"input_ids": x}
        out = self.model(**given, use_cache=True, return_dict=True, **options)
        cache = getattr(out, str(self._key), options.get(str(self._key)))
        if cache is None and not self._needs_cache and self._key == "past_key_values":
            self._needs_cache = True  # the model does not return the cache that it makes
            return self._run(x, state, None if real is None else real[:, seen:])
        if cache is None:
            raise ArgumentError("model", STATEFUL, f"{name_of(self.model)}, which returns no {self._key}")
        return huggingface.predicted(out), Memory(cache, seen + x.shape[1], real)

    def packed(self, x: Tensor, starts: Tensor) -> Tensor:
        if "reset" in self._accepted:
            options = {"reset": starts}
        elif "position_ids" in self._accepted:
            options = {"position_ids": _positions(starts)}
        else:
            raise NotSupportedError("forward takes no position_ids that could mark the start of a sequence")
        return huggingface.predicted(self.model(input_ids=x, use_cache=False, return_dict=True, **options))

    def unseparated(self, x: Tensor, starts: Tensor) -> Tensor | None:
        if "position_ids" not in self._accepted or "attention_mask" not in self._accepted:
            return None
        # with a mask, transformers does not look for packed sequences
        options = {"position_ids": _positions(starts), "attention_mask": torch.ones_like(x)}
        return huggingface.predicted(self.model(input_ids=x, use_cache=False, return_dict=True, **options))

    def reset(self, state: Memory) -> Memory:
        if not callable(getattr(state.cache, "reset", None)):
            raise NotSupportedError("the cache has no reset method")
        state.cache.reset()
        return Memory(state.cache, 0, None)

    def record(self, state: Memory) -> Memory:
        if not getattr(state.cache, "is_croppable", False):
            raise NotSupportedError("the cache cannot be cropped, and says so (is_croppable); copies of it can be kept")
        state.cache.activate_past_recording()
        return state

    def crop(self, state: Memory, steps: int) -> Memory:
        state.cache.crop(-steps)
        return Memory(state.cache, state.seen - steps, None if state.real is None else state.real[:, :-steps])

    def generate(self, x: Tensor, steps: int) -> Tensor:
        if not self.model.can_generate():
            raise NotSupportedError("the model has no head that predicts tokens")
        return self.model.generate(
            x, attention_mask=torch.ones_like(x), do_sample=False, max_new_tokens=steps, min_new_tokens=steps
        )

    def only_attends(self) -> bool:
        memory = self.run(self.inputs(1, 2, torch.Generator().manual_seed(0)))[1]
        numbers = [path for path, leaf in leaves(memory.cache) if isinstance(leaf, Tensor) and leaf.is_floating_point()]
        return not self._needs_cache and all(_KEYS.search(path) for path in numbers)

    def without_positions(self) -> Stateful:
        if "position_ids" not in self._accepted:
            return super().without_positions()
        return HuggingFace(self.model, positions=False)

    def cast(self, dtype: torch.dtype) -> Stateful:
        if dtype == self.dtype:
            return self
        model = in_dtype(self.model, dtype)
        if dtype == torch.float64 and hasattr(model, "set_experts_implementation"):
            model.set_experts_implementation("eager")  # type: ignore[operator]  # grouped ones lack float64
        return HuggingFace(model)


def _positions(starts: Tensor) -> Tensor:
    """Return positions (B, T) of packed sequences, which start again at 0 where ``starts`` is True."""
    steps = torch.arange(starts.shape[1], device=starts.device).expand(starts.shape)
    return steps - torch.where(starts, steps, 0).cummax(1).values
