"""Wraps Hugging Face models as systems that the instruments can measure, with embeddings or tokens as inputs."""

from __future__ import annotations

import inspect
import operator
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn

from stablessm._errors import ArgumentError, quoted
from stablessm.instruments.adapters.facts import by_step, is_transformer, state_name, weight_of
from stablessm.instruments.systems import Call, System, completed

Inputs: TypeAlias = Callable[[Tensor], dict[str, Tensor]]

Output: TypeAlias = str | Callable[[Any], Tensor]
"""The output to use: ``logits``, ``hidden`` (states of the last layer), or a function of the output of the model."""

WARM_UP = 16
"""Number of neutral tokens before the input changes, so that attention has something to attend to."""

_POSITIONS = ("max_position_embeddings", "n_positions", "max_seq_len")


def embedding_system(model: Any, output: Output | None, neutral: Sequence[int] | None = None) -> System:
    """Return a system that runs a model on embeddings; inputs are added to the embedding of a neutral token.

    ``neutral`` is a list of neutral token ids, of which the last is used (default: see :func:`neutral_prefix`).
    """
    base = neutral_embedding(model, neutral)
    return _system(model, output, lambda x: {"inputs_embeds": base + x}, base.shape[-1], base.dtype, "embedding")


def neutral_embedding(model: Any, neutral: Sequence[int] | None) -> Tensor:
    """Return the embedding (d,) of the last of the neutral token ids (default: see :func:`neutral_prefix`)."""
    table = model.get_input_embeddings()
    with torch.no_grad():
        return table(torch.tensor(neutral_prefix(model, neutral)[-1:], device=table.weight.device))[0].detach()


def token_system(model: Any, output: Output | None) -> System:
    """Return a system whose inputs are token ids (B, T, 1), for a Hugging Face model or any callable on token ids."""
    if not is_transformer(model):
        return _token_callable(model, output)
    return _system(model, output, lambda x: {"input_ids": x[..., 0]}, 1, torch.long, "token")


def closed(system: System, suffix: Sequence[int]) -> System:
    """Return a system that runs the model on the input followed by the tokens ``suffix``."""
    if not system.pooled:
        raise ArgumentError(
            "suffix", "None, since the model has an output at every token, before the suffix", list(suffix)
        )
    end = torch.tensor(checked_tokens(system.model, "suffix", suffix), device=system.device)[None, :, None]
    longest = None if system.longest is None else system.longest - len(suffix)

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        return system.call(torch.cat([x, end.expand(len(x), -1, -1)], 1), state)

    return replace(system, call=call, longest=longest)


def neutral_prefix(model: Any, prefix: Sequence[int] | None) -> list[int]:
    """Return the neutral token ids: ``prefix`` if given, otherwise the begin, padding or end token, or token 0."""
    if prefix is not None:
        return checked_tokens(model, "prefix", prefix)
    if not is_transformer(model):
        raise ArgumentError(
            "prefix", "token ids that precede the input, since the model has no begin token of its own", None
        )
    size = model.get_input_embeddings().weight.shape[0]
    named = (getattr(model.config, name, None) for name in ("bos_token_id", "pad_token_id", "eos_token_id"))
    return [next((token for token in named if isinstance(token, int) and 0 <= token < size), 0)]


def checked_tokens(model: Any, argument: str, tokens: Sequence[int]) -> list[int]:
    """Check token ids and return them; raise an ArgumentError if there are none or if one is not in the vocabulary."""
    size = model.get_input_embeddings().weight.shape[0] if hasattr(model, "get_input_embeddings") else None
    try:
        ids = [operator.index(token) for token in tokens]
    except TypeError:
        ids = []
    if not ids or not all(0 <= token < (size or 2**63) for token in ids):
        expected = f"at least one token id from 0 {f'to {size - 1}' if size else 'up'}"
        raise ArgumentError(argument, expected, tokens)
    return ids


def _token_callable(model: Any, output: Output | None) -> System:
    if output is not None:
        raise ArgumentError("output", "None (only a Hugging Face model has several)", output)
    weight = weight_of(model)
    device = torch.device("cpu") if weight is None else weight.device

    run = by_step(model)

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        y = run(x[..., 0])
        return (y[0] if isinstance(y, tuple) else y), None

    return completed(System(model, call, 1, 0, torch.long, device, streams=False, input="token"))


def _system(model: Any, output: Output | None, inputs: Inputs, d_input: int, dtype: torch.dtype, name: str) -> System:
    device = model.get_input_embeddings().weight.device
    positions = next((n for key in _POSITIONS if isinstance(n := getattr(model.config, key, None), int)), None)
    tables = (m.num_embeddings for m in model.modules() if isinstance(m, nn.Embedding))
    limited = positions is not None and any(positions <= size <= positions + 2 for size in tables)  # learned positions
    longest = positions if limited else None

    def made(carry: bool, sure: bool = False) -> System:
        call = _caller(model, output, inputs, carry=carry, sure=sure)
        return completed(System(model, call, d_input, 0, dtype, device, carry, input=name, longest=longest))

    try:
        system = made(carry=True)
    except ArgumentError:  # a cache that fails; without it the model may run
        try:
            return made(carry=False)
        except ArgumentError:
            return made(carry=False, sure=True)  # the argument may be accepted although no signature names it
    # a state that is not used is not requested: some models overwrite it in place, which breaks gradients
    return system if system.streams else made(carry=False)


def _caller(model: Any, output: Output | None, inputs: Inputs, *, carry: bool, sure: bool) -> Call:
    pick = _picker(output)
    accepted = inspect.signature(model.forward).parameters
    state_key = state_name(model) if carry else None
    options: dict[str, Any] = {"use_cache": state_key is not None} if sure or "use_cache" in accepted else {}
    if output == "hidden":
        options["output_hidden_states"] = True

    def call(x: Tensor, state: Any) -> tuple[Tensor, Any]:
        carried = {} if state is None or state_key is None else {state_key: state}
        out = model(**inputs(x), **options, **carried, return_dict=True)
        return pick(out), getattr(out, state_key, None) if state_key else None

    return call


def _picker(output: Output | None) -> Callable[[Any], Tensor]:
    if callable(output):
        return output
    if output == "hidden":
        return lambda out: out.hidden_states[-1] if out.hidden_states is not None else out.last_hidden_state
    if output == "logits":
        return lambda out: out.logits
    if output is None:
        return predicted
    raise ArgumentError("output", "'logits', 'hidden' or a function of the model's output", quoted(output))


def predicted(out: Any) -> Tensor:
    """Return the logits of a model's output, or the states of the last layer if the model has no head."""
    return out.logits if "logits" in out else out.last_hidden_state
