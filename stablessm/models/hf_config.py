"""The settings of a language model as a Hugging Face configuration."""

from __future__ import annotations

from dataclasses import asdict, field, fields
from typing import Any, ClassVar, Self

from stablessm._checked import checked, require, rule_of
from stablessm._errors import MissingPackageError
from stablessm._optional import import_failure
from stablessm._renamed import reading_a_file

try:
    from transformers import PreTrainedConfig
except Exception as error:  # transformers is missing, too old, or broken
    raise MissingPackageError(f"StableSSMConfig requires transformers, but {import_failure(error)}") from error

from stablessm.models.config import LanguageConfig

_NAMES = [entry.name for entry in fields(LanguageConfig) if entry.name not in ("d_input", "tied")]
"""Settings that have the same name in both configs."""


class StableSSMConfig(PreTrainedConfig):
    """The settings of a :class:`~stablessm.models.StableSSMForCausalLM`, which are given as keyword arguments.

    The settings are the same as for :class:`~stablessm.models.LanguageConfig`; only ``tied`` has another name here,
    ``tie_word_embeddings``.

    >>> config = StableSSMConfig(vocab_size=100, d_model=16, n_layers=2, d_state=8, mixer="hyena-real", map="exp")
    >>> config.model_type, config.hidden_size, config.network().mlp
    ('stablessm', 16, 4)
    """

    model_type: ClassVar[str] = "stablessm"
    attribute_map: ClassVar[dict[str, str]] = {"hidden_size": "d_model", "num_hidden_layers": "n_layers"}
    keys_to_ignore_at_inference: ClassVar[list[str]] = ["past_key_values"]

    vocab_size: int = 8192
    d_model: int = 512
    n_layers: int = 8
    mixer: str = "hyena-real"
    d_state: int = 64
    map: Any = "best"
    map_options: dict[str, Any] = field(default_factory=dict)
    mixer_options: dict[str, Any] = field(default_factory=dict)
    norm: str = "layer"
    prenorm: bool = True
    activation: str = "none"
    gate: bool = False
    mlp: int = 4
    dropout: float = 0.0
    edge_dropout: float = 0.0
    tie_word_embeddings: bool = True
    use_cache: bool = True
    bos_token_id: int | None = None
    eos_token_id: int | list[int] | None = None
    pad_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        network = self.network()
        for name in _NAMES:  # replaces a map instance by its name and options
            setattr(self, name, getattr(network, name))
        super().__post_init__(**kwargs)

    @classmethod
    @checked
    def from_dict(cls, config_dict: dict[str, Any], **kwargs: Any) -> Any:
        """Return a config with the settings in a dictionary, such as the content of a ``config.json``."""
        with reading_a_file():
            return super().from_dict(config_dict, **kwargs)

    def network(self) -> LanguageConfig:
        """Return the settings of the :class:`~stablessm.models.LanguageModel` inside the Hugging Face model."""
        tied: Any = self.tie_word_embeddings
        require("tie_word_embeddings", tied, rule_of(bool))
        return LanguageConfig(tied=tied, **{name: getattr(self, name) for name in _NAMES})

    @classmethod
    @checked
    def of(cls, network: LanguageConfig, **options: Any) -> Self:
        """Return a Hugging Face config for a language model with the given settings.

        ``options`` are further Hugging Face settings, such as ``eos_token_id``.
        """
        settings = asdict(network)
        return cls(tie_word_embeddings=settings["tied"], **{name: settings[name] for name in _NAMES}, **options)
