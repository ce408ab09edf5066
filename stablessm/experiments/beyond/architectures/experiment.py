"""Measures the memory functions of LSTM, GRU, Mamba, RWKV and attention models. The same function, ``memory_function``,
measures all of them.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from stablessm._optional import require
from stablessm.experiments.frame import Claim, Claims, Figure, Figures, Run, Stages, described, memories, rules, stage
from stablessm.experiments.frame.words import span
from stablessm.instruments import MemoryCurve, memory_function
from stablessm.models import accelerate

RECURRENT = ("LSTM", "GRU", "Mamba", "RWKV")
ATTENTION = ("GPT-2", "Llama", "Mistral")
WIDTH, LAYERS, WINDOW = 32, 2, 8
WARM_UP = 16
TRAINED = "stories260K"
POSITIONS = 512
"""Largest number of tokens that the trained model can read."""

_SIZE = {"hidden_size": WIDTH, "num_hidden_layers": LAYERS}
_HEADS = {"num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 2 * WIDTH}
CONFIGS: dict[str, tuple[str, dict[str, int]]] = {
    "Mamba": ("Mamba", {**_SIZE, "state_size": 8}),
    "RWKV": ("Rwkv", {**_SIZE, "attention_hidden_size": WIDTH}),
    "GPT-2": ("GPT2", {"n_embd": WIDTH, "n_layer": LAYERS, "n_head": 4}),
    "Llama": ("Llama", {**_SIZE, **_HEADS}),
    "Mistral": ("Mistral", {**_SIZE, **_HEADS, "sliding_window": WINDOW}),
}


@dataclass(frozen=True)
class ArchitectureConfig:
    """Settings of ``ext-architectures``: horizons in tokens, number of random directions of the input, and number of
    seeds.
    """

    horizon: int = 4096
    mamba: int = 16384
    """Horizon of Mamba: the slowest states of the initialization last for 1000 tokens (steps of at least 0.001, rates
    of at least 1)."""
    directions: int = 4
    seeds: int = 4


def build(name: str, horizon: int) -> nn.Module:
    """Return a model of the named architecture with random weights. If the architecture has a table of positions, the
    table is long enough for a measurement over ``horizon`` tokens.
    """
    if name in ("LSTM", "GRU"):
        return getattr(nn, name)(WIDTH, WIDTH, LAYERS, batch_first=True)
    transformers = require("transformers", "ext-architectures")
    transformers.logging.set_verbosity_error()
    family, options = CONFIGS[name]
    positions = {"n_positions": horizon + WARM_UP} if name == "GPT-2" else {}
    options = {**options, **positions, "vocab_size": 64, "bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 0}
    model = getattr(transformers, f"{family}Model")(getattr(transformers, f"{family}Config")(**options))
    return accelerate(model.double()) if name == "Mamba" else model  # alone, it would compute in single precision


def trained() -> nn.Module:
    """Load a small trained Llama model from the folder that the environment variable ``STABLESSM_DATA`` names."""
    transformers = require("transformers", "ext-architectures")
    transformers.logging.disable_progress_bar()
    return transformers.AutoModel.from_pretrained(_data(), local_files_only=True)


def _data() -> Path:
    return Path(os.environ.get("STABLESSM_DATA", "")) / "stories260k_hf"


@stage("trained")
def is_there(config: ArchitectureConfig, run: Run) -> dict[str, list[bool]]:
    """Return ``{"there": [True]}`` if the trained Llama model is in the folder that the environment variable
    ``STABLESSM_DATA`` names, and ``{"there": [False]}`` otherwise.
    """
    return {"there": [(_data() / "config.json").exists()]}


@memories.survey("{name}")
def curves(config: ArchitectureConfig, seed: int, name: str) -> MemoryCurve:
    """Measure and return the memory function of the model with this name and seed."""
    longest = {TRAINED: min(config.horizon, POSITIONS - WARM_UP), "Mamba": config.mamba}
    horizon = longest.get(name, config.horizon)
    model: Any = memories.seeded(seed, trained if name == TRAINED else partial(build, name, horizon))
    d = model.get_input_embeddings().embedding_dim if hasattr(model, "get_input_embeddings") else WIDTH
    generator = torch.Generator().manual_seed(0)
    directions = torch.randn(config.directions, d, generator=generator, dtype=torch.float64)
    return memory_function(model, horizon, directions=directions, warm_up=WARM_UP, progress=False)


def measured(stages: Stages) -> dict[str, list[MemoryCurve]]:
    """Return a dict from the name of each measured model to its memory functions, one per seed."""
    return {name: curves(stages, name) for name in names(stages)}


def names(stages: Stages) -> tuple[str, ...]:
    """Return the names of the models that the run measured; the trained Llama model is one of these models if the run
    found its files.
    """
    return (*RECURRENT, *ATTENTION, *((TRAINED,) if is_there(stages)["there"][0] else ()))


def run(config: ArchitectureConfig, run: Run) -> None:
    """Compute all stages: measure the memory functions of all models."""
    is_there.compute(config, run)
    for name in names(run):
        curves.compute(replace(config, seeds=1) if name == TRAINED else config, run, name)


def figures(config: ArchitectureConfig, stages: Stages) -> Figures:
    """Yield a figure of the memory functions of the first seed, over linear and over logarithmic time."""
    first = {name: found[0] for name, found in measured(stages).items()}
    yield Figure(
        "memory",
        "Memory of one model of each architecture, down to rounding. Left, time is linear and an exponential is a "
        "straight line; right, time is logarithmic and a power law is a straight line.",
        [
            memories.panel("exponentials are straight", first, "tokens"),
            memories.panel("powers are straight", first, "tokens", "log"),
        ],
    )


def claims(config: ArchitectureConfig, stages: Stages) -> Claims:
    """Yield claims with their verdicts: the memory of recurrent models decays exponentially; the memory of attention
    does not; and attention with a sliding window remembers only the tokens that the windows of all layers together can
    reach.
    """
    found, n = measured(stages), config.seeds
    kinds = {name: memories.listed(memories.tally(curves)) for name, curves in found.items()}
    for name in RECURRENT:
        rates = memories.rates(found[name])
        yield Claim(
            f"{name} forgets exponentially",
            "exponential decay (theorem 3.13, table 1)",
            f"{kinds[name]} of {n} seeds; rates {span(rates)} per token",
            confirmed(found[name]),
            f"M is above rounding up to token {max(c.decay().used[1] for c in found[name]):.0f} of "
            f"{found[name][0].time[-1]:.0f}; "
            f"the slowest e-folding time is {1 / min(rates, default=math.nan):.3g} tokens; log-log slopes of the last "
            f"octaves, which an exponential doubles: {slopes(found[name][:1])} (seed 0).",
        )
    attention = [name for name in found if name not in (*RECURRENT, "Mistral")]
    powers = [memories.is_power(curve) for name in attention for curve in found[name]]
    left_out = "" if TRAINED in found else f"; the trained {TRAINED} was not found (STABLESSM_DATA) and is left out"
    yield Claim(
        "attention does not forget exponentially",
        "no restriction (table 1)",
        "; ".join(f"{name} {kinds[name]}, slopes {slopes(found[name])}" for name in attention) + left_out,
        rules.most(sum(powers), len(powers)),
        f"In {sum(powers)} of {len(powers)} models the log-log slope does not double in the last octave, as it does "
        "for an exponential (a negative slope is a rise). Llama averages over the past; GPT-2's untrained positions "
        "keep changing the output.",
    )
    lags = [fit.last_lag for curve in found["Mistral"] if (fit := curve.decay()).last_lag is not None]
    reach = LAYERS * (WINDOW - 1)
    yield Claim(
        "a sliding window ends memory",
        f"{LAYERS} layers of window {WINDOW} see {reach} tokens back",
        f"{kinds['Mistral']}; last lag {span(lags)}",
        rules.most(sum(lag == reach for lag in lags), n),
        f"Each layer looks {WINDOW - 1} tokens back, and M is exactly zero after lag {reach}.",
    )


def confirmed(curves: list[MemoryCurve]) -> rules.Verdict:
    """Return the verdict on the claim that all these memory functions decay exponentially: ``reproduced`` if all of
    them do, ``partly`` if only some do or if the end of a curve looks like a power law. Curves whose decay is undecided
    do not count; if at least half of the curves are undecided, the verdict is ``inconclusive``.
    """
    exponential = [curve for curve in curves if curve.decay().kind == "exponential"]
    unclear = sum(curve.decay().kind == "undecided" for curve in curves)
    full = len(exponential) == len(curves) - unclear and not any(map(memories.is_power, curves))
    return rules.seen(unclear, len(curves), rules.graded(full, bool(exponential)))


def slopes(curves: list[MemoryCurve]) -> str:
    """Return two numbers as text: the negated log-log slopes of the memory functions in the second last and in the last
    octave (doubling) of time, as in :func:`.octave_slopes`. Both numbers are medians over the curves.
    """
    earlier, later = np.median([memories.octave_slopes(curve) for curve in curves], axis=0)
    return f"{earlier:.2f} then {later:.2f}"


SMOKE = ArchitectureConfig(horizon=640, mamba=640, directions=2, seeds=1)
EXPERIMENT = described(__file__, run, figures, claims, smoke=SMOKE, paper=ArchitectureConfig(), minutes=(0.1, 3.0))
