"""The settings of models, as frozen dataclasses that can be written as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Literal, Self, TypeAlias

from stablessm import _renamed
from stablessm._checked import Part, Size, checked
from stablessm._errors import ArgumentError, quoted, unknown_name
from stablessm.models import mixers
from stablessm.models.norms import Norm
from stablessm.reparam import Reparameterization

Pool: TypeAlias = Literal["mean", "last"]

TIMESCALES = (2.0, 2000.0)
"""Shortest and longest initial time scale of the real recurrences of a language model, in tokens."""


@checked
@dataclass(frozen=True, kw_only=True)
class StackConfig:
    """The settings of a stack: the encoder of the inputs and the blocks.

    Args:
        d_input: number of channels, for inputs (B, T, d_input) of numbers. Give either ``d_input`` or ``vocab_size``.
        vocab_size: number of tokens, for inputs (B, T) of whole numbers.
        d_model, n_layers: number of channels between the blocks, and number of blocks.
        mixer: the layer of each block: ``s4d``, ``lru``, ``real`` or a registered name; ``hyena-`` before the name puts
            the layer into a :class:`~stablessm.models.Hyena`.
        d_state: number of states: per channel for ``s4d``, in total for the other mixers.
        map, map_options: reparameterization of the eigenvalues: a name and its options, or an instance as ``map``.
        mixer_options: further arguments of the layer (``dt_min``, ``r_max``, ``mode``, …).
        norm, prenorm, activation, gate, mlp, dropout: as in :class:`~stablessm.models.Block`.
        edge_dropout: dropout before the first block and after the last block.

    >>> from stablessm import reparam
    >>> config = StackConfig(d_input=1, map=reparam.get("best", b=1.0))
    >>> config.map, config.map_options
    ('best', {'a': 1.0, 'b': 1.0})
    """

    d_input: Size | None = None
    vocab_size: Size | None = None
    d_model: Size = 64
    n_layers: Size = 2
    mixer: str = "s4d"
    d_state: Size = 32
    map: str | Reparameterization = "best"
    map_options: Mapping[str, float] = field(default_factory=dict)
    mixer_options: Mapping[str, Any] = field(default_factory=dict)
    norm: Norm = "layer"
    prenorm: bool = True
    activation: str = "gelu"
    gate: bool = True
    mlp: int = 0
    dropout: Part = 0.0
    edge_dropout: Part = 0.0

    def __post_init__(self) -> None:
        if (self.d_input is None) == (self.vocab_size is None):
            got = f"{self.d_input}, {self.vocab_size}"
            raise ArgumentError("d_input, vocab_size", "one of them (numbers or tokens as input)", got)
        for name in ("map_options", "mixer_options"):
            if not isinstance(getattr(self, name), Mapping):
                raise ArgumentError(name, "options by name", repr(getattr(self, name)))
            self._set(name, dict(getattr(self, name)))
        self._set("mixer_options", mixers.current_options(self.mixer, self.mixer_options))
        self._require_flags("prenorm", "gate")
        if isinstance(self.map, Reparameterization):
            time = mixers.map_time(self.mixer, self.mixer_options)
            if time not in (None, self.map.time):
                raise ArgumentError("map", f"a {time}-time map, for the mixer {self.mixer!r}", quoted(self.map))
            if self.map_options:
                raise ArgumentError("map_options", "none, since map is an instance", self.map_options)
            self._set("map_options", dict(vars(self.map)))
            self._set("map", self.map.name)

    def _require_flags(self, *names: str) -> None:
        for name in names:
            if not isinstance(getattr(self, name), bool):
                raise ArgumentError(name, "true or false", repr(getattr(self, name)))

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    @classmethod
    def of(cls, options: Mapping[str, Any]) -> Self:
        """Return a config with the given settings; raise an error that names any unknown setting."""
        known = {entry.name for entry in fields(cls)}
        for name in options.keys() - known:
            raise unknown_name(name, sorted(known), name, f"one of the settings {', '.join(sorted(known))}")
        return cls(**options)


@checked
@dataclass(frozen=True, kw_only=True)
class ModelConfig(StackConfig):
    """The settings of a model: a stack with a readout of ``size`` numbers per step or per sequence."""

    size: Size
    pool: Pool
    per_step: bool

    tied: ClassVar[bool] = False
    bias: ClassVar[bool] = True


@checked
@dataclass(frozen=True, kw_only=True)
class LanguageConfig(StackConfig):
    """The settings of a language model; by default, Hyena blocks with a real recurrence and an MLP in each block.

    With ``tied``, the readout shares its weights with the embeddings. Unless ``mixer_options`` give other time scales,
    a real recurrence starts with time scales from 2 to 2000 tokens, so that every map starts from the same eigenvalues.
    The option ``average`` of :class:`~stablessm.RealSSM` is True by default for the mixer ``real``: its states are
    moving averages, because slow states would otherwise add up the mean of their inputs. The default for ``hyena-real``
    is ``average=False``. Models that were saved before the option ``average`` existed load with ``average=False``.

    >>> LanguageConfig(vocab_size=30).mixer_options
    {'timescales': [2.0, 2000.0]}
    >>> LanguageConfig(vocab_size=30, mixer="real").mixer_options
    {'average': True, 'timescales': [2.0, 2000.0]}
    """

    mixer: str = "hyena-real"
    activation: str = "none"
    gate: bool = False
    mlp: int = 4
    tied: bool = True

    pool: ClassVar[Pool] = "last"
    per_step: ClassVar[bool] = True
    bias: ClassVar[bool] = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.vocab_size is None:
            raise ArgumentError("vocab_size", "the number of tokens", None)
        self._require_flags("tied")
        start: dict[str, Any] = {}
        if self.mixer == "real":
            old = _renamed.is_reading_a_file() and bool(self.mixer_options)  # files always have the time scales
            start["average"] = not old
        if self.mixer.removeprefix(mixers.GATED) == "real" and "eigenvalues" not in self.mixer_options:
            start["timescales"] = list(TIMESCALES)
        self._set("mixer_options", {**start, **self.mixer_options})

    @property
    def size(self) -> int:
        """The size of the readout, which is the size of the vocabulary."""
        return self.vocab_size or 0
