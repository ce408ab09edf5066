"""Runs recurrent models of the package ``transformers`` with the fast operators of this library and
unchanged weights.
"""

from __future__ import annotations

import inspect
import math
import threading
from collections.abc import Callable
from functools import partial, wraps
from typing import Any, NamedTuple, TypeVar
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from stablessm._checked import checked
from stablessm._errors import ArgumentError, BackendUnavailableError
from stablessm._optional import require
from stablessm.scan import backends, linear_scan, selective_scan, short_convolution
from stablessm.scan.dispatch import forward_mode, quick
from stablessm.scan.padding import last_state
from stablessm.scan.projection import FEW_ROWS, project

Model = TypeVar("Model", bound=nn.Module)


@checked
def accelerate(model: Model) -> Model:
    """Make a ``transformers`` model compute its recurrences with this library's fast operators; return the same model.

    Mamba, FalconMamba, Mamba2, Jamba, RecurrentGemma and every model that contains their mixers are supported. The
    weights stay where they are; only the computation of recurrent mixers and of linear layers is replaced. Nothing has
    to be compiled. Prompts are computed in one pass. A long prompt may be passed in several chunks, because a call with
    a cache continues from the state in the cache. Padding on the left or right changes neither the outputs of real
    tokens nor the states. Generation, caches and training work as before. The hidden states of a Mamba, FalconMamba or
    Mamba2 in float64 are computed in float64; ``transformers`` computes parts of them in float32.

    Args:
        model: a model of ``transformers``, or any module that contains such mixers.

    >>> from transformers import MambaConfig, MambaForCausalLM
    >>> model = MambaForCausalLM(MambaConfig(vocab_size=50, hidden_size=16, num_hidden_layers=1)).eval()
    >>> tokens = torch.arange(20)[None]
    >>> with torch.no_grad():
    ...     before = model(tokens).logits
    ...     after = accelerate(model)(tokens).logits
    >>> torch.allclose(before, after, atol=1e-4)
    True
    """
    found = [(module, _MIXERS[type(module).__name__]) for module in model.modules() if type(module).__name__ in _MIXERS]
    if not found:
        expected = "a model of transformers with one of the mixers " + ", ".join(_MIXERS)
        raise ArgumentError("model", expected, type(model).__name__)
    found += [(module, _linear) for module in model.modules() if type(module) is nn.Linear]
    found += [(module, _norm) for module in model.modules() if type(module).__name__ in _NORMS]
    cache = getattr(require("transformers", "accelerate").cache_utils.Cache, "get_conv_state", None)
    if cache is None or "state_idx" not in inspect.signature(cache).parameters:
        raise BackendUnavailableError("accelerate requires transformers 5.18 or newer: pip install -U transformers")
    for module, forward in found:
        module.forward = partial(forward, module)  # a bound method would be looked up by name when it is unpickled
    for module in model.modules():  # a residual in float32 is more exact, unless the model is in float64
        if getattr(module, "residual_in_fp32", False) and next(module.parameters()).dtype == torch.float64:
            setattr(module, "residual_in_fp32", False)  # noqa: B010 (the type checker takes it for a tensor)
    return model


def _linear(self: nn.Linear, x: Tensor) -> Tensor:
    return project(x, self.weight, self.bias)


def _norm(self: Any, x: Tensor, gate: Tensor | None = None) -> Tensor:
    """Normalize x, times SiLU of the gate, by the root mean square."""
    wide = _wide(x) if gate is None else _wide(x) * F.silu(_wide(gate))
    y = F.rms_norm(wide, x.shape[-1:], eps=_eps(self)).to(x.dtype)
    return self.weight * y if isinstance(self.weight, nn.Parameter) else y  # FalconMamba's weightless norm has ones


def _eps(norm: Any) -> float:
    return float(norm.eps if hasattr(norm, "eps") else norm.variance_epsilon)


def _wide(x: Tensor) -> Tensor:
    """Return x in float32 or better."""
    return x.to(torch.promote_types(x.dtype, torch.float32))


class _Padding(NamedTuple):
    """The positions of the real tokens in a padded batch, with methods that move the real tokens to the front of each
    sequence and back to these positions.
    """

    order: Tensor
    """(B, T): the real tokens first, in their order."""
    lengths: Tensor

    @classmethod
    def of(cls, mask: Tensor | None, steps: int) -> _Padding | None:
        """Return the padding that an attention mask describes, for the last ``steps`` tokens; None if all tokens are
        real.
        """
        if mask is None or mask.dim() != 2:
            return None
        real = mask[:, -steps:].bool()
        if bool(real.all()):
            return None
        return cls(torch.argsort(~real, dim=1, stable=True), real.sum(1))

    def front(self, x: Tensor) -> Tensor:
        """Return a copy of x (B, T, C) in which the real tokens of each sequence come first."""
        return x.gather(1, self.order[..., None].expand(x.shape))

    def back(self, y: Tensor) -> Tensor:
        """Return a copy of y (B, T, C) with the tokens moved back to their original places, and zeros at padding."""
        return torch.zeros_like(y).scatter(1, self.order[..., None].expand(y.shape), y)


def _moved(x: Tensor, padding: _Padding | None) -> tuple[Tensor, Tensor | None]:
    return (x, None) if padding is None else (padding.front(x), padding.lengths)


def _convolved(
    conv: nn.Conv1d, x: Tensor, tail: Tensor | None, lengths: Tensor | None, reset: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute a short convolution of x (B, T, C); return the result (B, T, C) and the last K inputs (B, C, K), where K
    is the length of the filter.

    ``tail`` is the last K inputs before x (None for zeros).
    """
    weight = conv.weight[:, 0]
    before = (x.new_zeros(len(x), *weight.shape) if tail is None else tail).mT
    if x.shape[1] == 1 and lengths is None and reset is None:
        joined = torch.cat([before[:, 1:], x.to(before.dtype)], 1)
        y = (joined * weight.mT).sum(1, keepdim=True)
        return (y if conv.bias is None else y + conv.bias).to(x.dtype), joined.mT
    past = before[:, 1:].to(x.dtype)
    y, last = short_convolution(x, weight.to(x.dtype), conv.bias, past, reset=reset, lengths=lengths)
    return y, _wide(F.pad(last, (0, 0, 1, 0)).mT)  # caches of transformers hold one input more than needed


class _Cache:
    """The states of one mixer in a ``transformers`` cache: the last inputs of its convolution, and its
    recurrent state.
    """

    def __init__(self, mixer: Any, cache: Any) -> None:
        self.cache, self.index = cache, mixer.layer_idx
        self.tail = None if cache is None else cache.get_conv_state(self.index, state_idx=0)
        self.state = None if cache is None else cache.get_recurrent_state(self.index, state_idx=0)

    def update(self, tail: Tensor, state: Tensor) -> None:
        """Store the last K inputs (B, C, K) of a convolution of length K, and the recurrent state, in the cache."""
        if self.cache is None:
            return
        if self.tail is None or self.state is None:
            self.cache.update_conv_state(tail, self.index, conv_kernel_size=tail.shape[-1])
            self.cache.update_recurrent_state(state, self.index)
        else:
            self.tail.copy_(tail)
            self.state.copy_(state)


def _mixing(compute: Callable[..., tuple[Tensor, Tensor, Tensor]]) -> Callable[..., Tensor]:
    """Return the forward pass of a mixer. ``compute(mixer, x, lengths, cache)`` computes it by this library's operators
    for sequences x (B, T, C) with padding at their ends, and returns the output, the last inputs of the convolution and
    the recurrent state.

    If the ``transformers`` cache currently stores the state after every token, which assisted generation requires, the
    code of ``transformers`` runs instead.
    """

    @wraps(compute)
    def forward(
        self: Any, hidden_states: Tensor, cache_params: Any = None, attention_mask: Tensor | None = None, **kwargs: Any
    ) -> Any:
        if cache_params is not None and cache_params.is_recording_past(self.layer_idx):
            return type(self).forward(self, hidden_states, cache_params, attention_mask, **kwargs)
        padding, cache = _Padding.of(attention_mask, hidden_states.shape[1]), _Cache(self, cache_params)
        if padding is None and (step := _step(self, hidden_states, cache)) is not None:
            return step
        y, tail, state = compute(self, *_moved(hidden_states, padding), cache)
        cache.update(tail, state)
        return y if padding is None else padding.back(y)

    return forward


_steps: WeakKeyDictionary[nn.Module, dict[int, tuple[list[Any], Any]]] = WeakKeyDictionary()
"""The prepared step of each mixer for each thread, with all that the preparation depends on."""


def _step(self: Any, hidden: Tensor, cache: _Cache) -> Tensor | None:
    """Compute one step (B, 1, C) of a Mamba mixer by CPU kernels in one call, which change the states in the cache.

    Return None if this is not possible: the kernels compute no gradients, and call no hooks of the mixer's parts.
    """
    tail, state = cache.tail, cache.state
    if tail is None or state is None or "A_log" not in self._parameters or hidden.shape[1] != 1 or not hidden.is_cpu:
        return None
    if torch.is_grad_enabled() or torch.is_autocast_enabled("cpu") or forward_mode() or not quick(hidden, tail, state):
        return None
    key: list[Any] = [(t.shape, t.dtype, t.is_contiguous()) for t in (hidden, tail, state)]
    key.append(torch.is_inference_mode_enabled())  # tensors that are made there cannot be changed elsewhere
    for part in (self, *self._modules.values()):
        forward = part.__dict__.get("forward")
        if part is not self and (part._forward_hooks or part._forward_pre_hooks):
            return None
        options = (part.__dict__.get(name) for name in ("variance_epsilon", "eps", "time_step_limit"))
        key.append((type(part), getattr(forward, "func", forward), *options))
        for t in (*part._parameters.values(), *part._buffers.values()):
            key.append(t is None or t.layout != torch.strided or (id(t), t.data_ptr(), t.stride()))
    prepared, thread = _steps.setdefault(self, {}), threading.get_ident()
    known, step = prepared.get(thread, (None, None))
    if known != key:
        step = _prepared(self, hidden[:, 0], tail, state)
        prepared[thread] = key, step
    return None if step is None else step(hidden[:, 0], tail, state)[:, None]


def _prepared(self: Any, x: Tensor, tail: Tensor, state: Tensor) -> Any:
    """Return the step of a mixer for inputs like x (B, C), or None if the kernels cannot compute it."""
    parts, kernels = self._modules, backends.cpu_kernels("mixer_step")
    for part in parts.values():
        forward = part.__dict__.get("forward")
        if getattr(forward, "func", forward) not in (None, _linear, _norm):
            return None
        if type(part) not in (nn.Linear, nn.Conv1d, nn.SiLU) and type(part).__name__ not in (*_NORMS, "SiLUActivation"):
            return None
    norms = [parts[name] for name in ("dt_layernorm", "b_layernorm", "c_layernorm", "norm") if name in parts]
    weights = tuple(norm.weight if norm._parameters else torch.ones_like(norm.weight) for norm in norms)
    own = [tensor for name in ("in_proj", "conv1d", "out_proj") for tensor in (parts[name].weight, parts[name].bias)]
    own += [self.A_log, self.D, parts["dt_proj"].bias if "dt_proj" in parts else self.dt_bias]
    own += [parts[name].weight for name in ("x_proj", "dt_proj") if name in parts]
    if (
        kernels is None
        or len(x) > FEW_ROWS.get(x.dtype, 0)
        or not quick(*(tensor for tensor in own if tensor is not None))
    ):
        return None
    mixer, limit = kernels.Mixer(*own, norms=weights), getattr(self, "time_step_limit", (0.0, math.inf))
    eps = _eps(norms[0]) if norms else 0.0
    return kernels.Step(x, mixer, tail, state, (eps, *limit)) if kernels.fits(x, mixer, tail, state) else None


@_mixing
def _selective_mixer(self: Any, hidden: Tensor, lengths: Tensor | None, cache: _Cache) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the forward pass of a Mamba, FalconMamba or Jamba mixer."""
    x, gate = self.in_proj(hidden).chunk(2, -1)
    x, tail = _convolved(self.conv1d, x, cache.tail, lengths)
    x = self.act(x)
    sizes = (self.time_step_rank, self.ssm_state_size, self.ssm_state_size)
    step, B, C = self.x_proj(x).split(sizes, -1)
    if hasattr(self, "dt_layernorm"):
        step, B, C = self.dt_layernorm(step), self.b_layernorm(B), self.c_layernorm(C)
    delta = self.dt_proj(step)
    A = -torch.exp(_wide(self.A_log))
    if x.shape[1] == 1 and cache.state is not None and lengths is None:
        delta = F.softplus(_wide(delta))
        state = torch.addcmul((delta * x).mT * B, torch.exp(delta.mT * A), cache.state)
        y = (_wide(C) @ state.mT + self.D * x) * F.silu(gate)
    else:
        y, state = selective_scan(x, delta, A, B, C, self.D, gate, cache.state, delta_softplus=True, lengths=lengths)
    return self.out_proj(y.to(hidden.dtype)), tail, state


@_mixing
def _head_mixer(self: Any, hidden: Tensor, lengths: Tensor | None, cache: _Cache) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the forward pass of a Mamba2 mixer, in which all channels of a head have the same decay.

    :func:`selective_scan` takes one rate for each channel and state, so the rate of a head is repeated for all of its
    channels and states.
    """
    gate, mixed, delta = self.in_proj(hidden).split([self.intermediate_size, self.conv_dim, self.num_heads], -1)
    mixed, tail = _convolved(self.conv1d, mixed, cache.tail, lengths)
    inner = self.n_groups * self.ssm_state_size
    x, B, C = self.act(mixed).split([self.intermediate_size, inner, inner], -1)
    delta = F.softplus(_wide(delta) + self.dt_bias).clamp(*self.time_step_limit)
    each, heads = self.head_dim, self.num_heads // self.n_groups
    A, D = -torch.exp(_wide(self.A_log)), self.D.repeat_interleave(each)
    outputs, states = [], []
    for group in range(self.n_groups):
        own, part = slice(group * heads, (group + 1) * heads), slice(group * heads * each, (group + 1) * heads * each)
        rates = A[own].repeat_interleave(each)[:, None].expand(-1, self.ssm_state_size)
        columns = slice(group * self.ssm_state_size, (group + 1) * self.ssm_state_size)
        before = None if cache.state is None else cache.state[:, own].flatten(1, 2)
        y, state = selective_scan(
            x[..., part], delta[..., own].repeat_interleave(each, -1), rates, B[..., columns], C[..., columns],
            D[part], initial=before, lengths=lengths,
        )  # fmt: skip
        outputs.append(y)
        states.append(state.unflatten(1, (heads, each)))
    y = self.out_proj(self.norm(torch.cat(outputs, -1), gate).to(hidden.dtype))
    return y, tail, torch.cat(states, 1)


def _recurrent_block(
    self: Any, hidden: Tensor, position_ids: Tensor, past_key_values: Any = None, tokens: Tensor | None = None, **_: Any
) -> tuple[Tensor, None]:
    """Compute the forward pass of a recurrent block of RecurrentGemma; ``tokens`` is the attention mask of the tokens.

    The state is in the cache. ``transformers`` keeps the state in the block, where it outlives the cache.
    """
    if past_key_values is not None:
        from stablessm.models.hf_recurrent import RecurrentLayer

        RecurrentLayer.of(past_key_values, self.layer_idx).steps += hidden.shape[1]
    return _mixing(partial(_gated_unit, position_ids == 0))(self, hidden, past_key_values, tokens), None


def _gated_unit(
    starts: Tensor, self: Any, hidden: Tensor, lengths: Tensor | None, cache: _Cache
) -> tuple[Tensor, Tensor, Tensor]:
    """Compute the convolution and the recurrence of a recurrent block.

    Sequences start where ``starts`` (1 or B, T) is True, unless there is padding, and at the first token.
    """
    starts = starts.expand(hidden.shape[:2]) & (lengths is None)
    starts[:, :1] |= cache.state is None
    x, unit, reset = self.linear_x(hidden), self.rg_lru, starts if bool(starts.any()) else None
    x, tail = _convolved(self.conv_1d, x, cache.tail, lengths, reset)
    unit.recurrent_states, unit._rnn_scan = cache.state, partial(_scanned, lengths)
    x, state = type(unit).forward(unit, x, (~starts).long()), unit.recurrent_states
    unit.recurrent_states = None
    return self.linear_out(x * self.act_fn(self.linear_y(hidden))), tail, state


def _scanned(
    lengths: Tensor | None,
    hidden_states: Tensor,
    recurrent_gate: Tensor,
    reset: Tensor,
    recurrent_states: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Compute the recurrence of RecurrentGemma by one scan, in place of the model's method ``_rnn_scan``."""
    drive = _wide(hidden_states)
    states = linear_scan(recurrent_gate.to(drive.dtype), drive, recurrent_states, reset=reset[..., 0])
    before = torch.zeros_like(drive[:, 0]) if recurrent_states is None else recurrent_states
    return states.to(hidden_states.dtype), last_state(states, before, lengths)


def _recurrent_gemma(
    self: Any, input_ids: Any = None, position_ids: Any = None, attention_mask: Any = None, *args: Any, **kwargs: Any
) -> Any:
    """Run RecurrentGemma, with the attention mask of its tokens and the number of the layer for each block."""
    for number, layer in enumerate(self.layers):
        layer.temporal_block.layer_idx = number
    return type(self).forward(self, input_ids, position_ids, attention_mask, *args, tokens=attention_mask, **kwargs)


_NORMS = (
    "MambaRMSNorm", "MambaRMSNormGated", "Mamba2RMSNorm", "FalconMambaRMSNorm", "FalconMambaWeightlessRMSNorm",
    "JambaRMSNorm",
)  # fmt: skip
"""The classes of norms that transformers computes in float32 only."""

_MIXERS: dict[str, Callable[..., Any]] = {
    "MambaMixer": _selective_mixer,
    "FalconMambaMixer": _selective_mixer,
    "JambaMambaMixer": _selective_mixer,
    "Mamba2Mixer": _head_mixer,
    "RecurrentGemmaRecurrentBlock": _recurrent_block,
    "RecurrentGemmaModel": _recurrent_gemma,
}
"""The forward of each class of mixers, by its name in transformers."""
