"""A Hugging Face model around a language model, for use with ``generate``, ``Trainer`` and the Auto classes."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any, Self, final

import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModelForCausalLM, GenerationMixin, PreTrainedModel
from transformers.modeling_outputs import CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from stablessm import _tensors, record
from stablessm._checked import checked
from stablessm._errors import ArgumentError
from stablessm.layers.hold import hold
from stablessm.models.decoding import Repeated
from stablessm.models.hf_cache import StableSSMCache
from stablessm.models.hf_config import StableSSMConfig
from stablessm.models.hf_padding import Padding
from stablessm.models.language import LanguageModel
from stablessm.scan.checks import check_reset, check_tensor

CHECKSUMS = "checksums.json"
_FILES = ("config.json", "generation_config.json", "*.safetensors", "*.safetensors.index.json")
ALIGNMENT = 64
"""Alignment of CPU memory that PyTorch allocates, in bytes."""

_generation: ContextVar[dict[nn.Module, Repeated] | None] = ContextVar("_generation", default=None)
"""Inside ``generate``, the repeated step of each model; with an assistant, there are two models."""


@final
class StableSSMForCausalLM(PreTrainedModel, GenerationMixin):
    """A ``transformers`` model that contains a :class:`~stablessm.models.LanguageModel` as its attribute ``network``.

    ``generate`` carries a state whose size does not grow with the text. Padding on the left or right does not change
    the outputs at real tokens, so each prompt of a batch generates what it would generate alone. The logits at padding
    are the logits of the last real token before it.

    Importing this class registers it with the Auto classes. If ``AutoModelForCausalLM.from_pretrained`` reports that
    Transformers does not recognize the architecture ``stablessm``, run
    ``from stablessm.models import StableSSMForCausalLM`` first.

    Args:
        config: the settings.
        network: the language model to wrap, which is not copied (default: a new one).

    >>> config = StableSSMConfig(vocab_size=100, d_model=16, n_layers=2, d_state=8, eos_token_id=0, pad_token_id=0)
    >>> model = StableSSMForCausalLM(config).eval()
    >>> model.generate(torch.tensor([[5, 6, 7]]), max_new_tokens=4, min_new_tokens=4, do_sample=False).shape
    torch.Size([1, 7])
    """

    config: StableSSMConfig
    config_class = StableSSMConfig
    base_model_prefix = "network"
    supports_gradient_checkpointing = True
    _no_split_modules = ["Block"]  # noqa: RUF012  # as the base class has it
    _keep_in_fp32_modules_strict = [r"mixer\.(?:inner\.)?(?:w|phase|frequency|log_dt)$"]  # noqa: RUF012
    _is_stateful = True

    @checked
    def __init__(self, config: StableSSMConfig, network: LanguageModel | None = None) -> None:
        super().__init__(config)
        self.network = LanguageModel(**asdict(config.network())) if network is None else network
        drawn: Any = not next(self.network.parameters()).is_meta  # then post_init keeps the weights
        for module in self.network.modules():
            module._is_hf_initialized = drawn
        self.post_init()

    @classmethod
    @checked
    def of(cls, network: LanguageModel, **options: Any) -> Self:
        """Wrap a language model, without copying its weights, in a ``transformers`` model.

        Args:
            network: the language model to wrap, trained or not.
            options: further Hugging Face settings, such as ``eos_token_id``.

        >>> plain = LanguageModel(100, d_model=16, n_layers=1, d_state=8)
        >>> StableSSMForCausalLM.of(plain, eos_token_id=0).network is plain
        True
        """
        return cls(StableSSMConfig.of(network.config, **options), network)

    @classmethod
    def from_pretrained(cls, pretrained_model_name_or_path: Any, *args: Any, **kwargs: Any) -> Any:
        """Load a model from a folder or from the Hugging Face hub, with the usual arguments of ``from_pretrained``.

        An error is raised if the checksum of a file in the folder differs from the checksum that ``save_pretrained``
        wrote.
        """
        name = pretrained_model_name_or_path
        _check_files(Path(name or "", kwargs.get("subfolder", "")))
        loaded = super().from_pretrained(name, *args, **kwargs)
        model = loaded[0] if isinstance(loaded, tuple) else loaded
        for parameter in model.parameters():
            # weights in a memory-mapped file may be unaligned, and a complex view of unaligned memory crashes
            if parameter.device.type == "cpu" and parameter.data_ptr() % ALIGNMENT:
                parameter.data = parameter.data.clone()
        return loaded

    @checked
    def save_pretrained(self, save_directory: str | os.PathLike[str], *args: Any, **kwargs: Any) -> None:
        """Write the usual files of ``save_pretrained``, and a file with their checksums."""
        super().save_pretrained(save_directory, *args, **kwargs)
        folder = Path(save_directory)
        files = {path.name: record.digest_of(path) for part in _FILES for path in sorted(folder.glob(part))}
        if files and kwargs.get("is_main_process", True):
            record.write_json(folder / CHECKSUMS, files)

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        past_key_values: StableSSMCache | None = None,
        labels: Tensor | None = None,
        reset: Tensor | None = None,
        use_cache: bool | None = None,
        output_hidden_states: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        **kwargs: Any,
    ) -> CausalLMOutputWithPast:
        """Compute the logits of the next token at every step, and the loss, cache and hidden states that are requested.

        Args:
            input_ids: (B, T) tokens. Give either ``input_ids`` or ``inputs_embeds``.
            inputs_embeds: (B, T, d_model) embeddings of the tokens.
            attention_mask: (B, T), or longer if it includes the tokens in the cache: 0 at padding, 1 at real tokens.
            past_key_values: the cache to continue from, in which the new state is stored.
            labels: (B, T) the same tokens again, if the result must contain the loss; -100 excludes a token. Padding is
                always excluded.
            reset: (B, T) bool: True at the first token of a document, which starts from the initial state.
            use_cache: whether to return a cache (default: the config's setting, and False during training).
            output_hidden_states: whether to return the input of each block and the output of the last norm.
            logits_to_keep: number of last logits to compute (0 for all), or their indices.
        """
        x = input_ids if inputs_embeds is None else inputs_embeds
        if x is None or (input_ids is not None and inputs_embeds is not None):
            raise ArgumentError("input_ids, inputs_embeds", "one of them", "both" if x is not None else "none")
        check_tensor("input_ids" if inputs_embeds is None else "inputs_embeds", x)
        if x.dim() < 2:
            raise ArgumentError("input_ids", "(batch, time)", f"shape {tuple(x.shape)}")
        if not isinstance(past_key_values, StableSSMCache | None):
            raise ArgumentError("past_key_values", "a StableSSMCache", type(past_key_values).__name__)
        if use_cache is None:
            use_cache = self.config.use_cache and not self.training
        if output_hidden_states is None:
            output_hidden_states = self.config.output_hidden_states
        cache = StableSSMCache() if past_key_values is None and use_cache else past_key_values
        check_reset(reset, *x.shape[:2])
        if cache is not None:
            cache.check(attention_mask, x.shape[1])
        padding = Padding.of(attention_mask, *x.shape[:2])
        h, hidden = self._run(x, cache, padding, reset, bool(output_hidden_states))
        if not isinstance(logits_to_keep, int | Tensor) or getattr(logits_to_keep, "dtype", torch.int64) != torch.int64:
            raise ArgumentError("logits_to_keep", "a whole number, or int64 positions", type(logits_to_keep).__name__)
        keep = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) and logits_to_keep else logits_to_keep
        logits = self.network.logits(h if isinstance(keep, int) else h[:, keep])
        loss = None
        if labels is not None:
            check_tensor("labels", labels)
            if labels.shape != x.shape[:2]:
                raise ArgumentError("labels", f"shape {tuple(x.shape[:2])}", f"shape {tuple(labels.shape)}")
            labels = labels if padding is None else padding.labels(labels)
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=self.config.vocab_size, **kwargs)
        parts: dict[str, Any] = {"loss": loss, "logits": logits, "past_key_values": cache, "hidden_states": hidden}
        return CausalLMOutputWithPast(**parts)

    def _run(
        self, x: Tensor, cache: StableSSMCache | None, padding: Padding | None, reset: Tensor | None, wants_hidden: bool
    ) -> tuple[Tensor, tuple[Tensor, ...] | None]:
        """Run the blocks on tokens or embeddings x, from the state in ``cache``, and store the next state there; return
        the output of the blocks at every token, including padding, and the hidden states (None unless
        ``wants_hidden``).
        """
        body = self.network.body
        state, last = (None, None) if cache is None else (cache.state, cache.last)
        if x.shape[1] == 1 and state is not None and padding is None and reset is None and not wants_hidden:
            generation = None if torch.compiler.is_compiling() else _generation.get()
            step = body.step if generation is None else generation.setdefault(body, Repeated(body.step))
            h, state = step(x[:, 0], state)
            h, hidden = h[:, None], None
        else:
            with _inputs(body.blocks, wants_hidden) as seen:
                packed, lengths = (x, None) if padding is None else (padding.packed(x), padding.lengths)
                if reset is not None and padding is not None:
                    reset = padding.packed(reset.expand(x.shape[:2]))
                h, state = body(packed, state, lengths=lengths, reset=reset)
            h = h if padding is None else padding.unpacked(h, last)
            between = seen if padding is None else [padding.unpacked(part, None) for part in seen]
            hidden = (*between, h) if wants_hidden else None
        if cache is not None:
            cache.state, cache.seen = state, cache.seen + x.shape[1]
            cache.last = h[:, -1].clone() if x.shape[1] else last
            if padding is not None:
                cache.padded = x.shape[1] - padding.lengths + (0 if cache.padded is None else cache.padded)
        return h, hidden

    def generate(self, *args: Any, **kwargs: Any) -> Any:
        """Generate tokens with the usual arguments of ``generate``: greedy search, sampling, beam search and streamers.

        On an NVIDIA GPU, the blocks run as one CUDA graph from the fifth token on.
        """
        before = _generation.set({})
        try:
            with hold(self):
                return super().generate(*args, **kwargs)  # type: ignore[misc]  # it types its own self
        finally:
            _generation.reset(before)

    def _prepare_cache_for_generation(  # type: ignore[override]  # it says bool and returns nothing
        self, generation_config: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> None:
        """Create the StableSSMCache that ``generate`` uses, whatever ``cache_implementation`` says."""
        given = model_kwargs.get("past_key_values")
        if given is not None:
            given._is_user_defined = True
        elif generation_config.use_cache is not False:
            model_kwargs["past_key_values"] = StableSSMCache()

    def _update_model_kwargs_for_generation(
        self, outputs: Any, model_kwargs: dict[str, Any], *args: Any, **kwargs: Any
    ) -> dict[str, Any]:
        """Remove the attention mask once the prompt has been read, because every later token is real."""
        if model_kwargs.get("use_cache"):
            model_kwargs["attention_mask"] = None
        return super()._update_model_kwargs_for_generation(outputs, model_kwargs, *args, **kwargs)

    @torch.no_grad()
    def _init_weights(self, module: nn.Module) -> None:
        """Initialize those weights of a module that are missing in the loaded checkpoint.

        ``transformers`` calls this method while it loads a model. Weights that were loaded keep their values.
        """
        own = module.named_parameters(recurse=False)
        kept = {name: p.clone() for name, p in own if getattr(p, "_is_hf_initialized", False)}
        self.network.draw(module)
        for name, value in kept.items():
            module.get_parameter(name).copy_(value)

    def resize_token_embeddings(self, *args: Any, **kwargs: Any) -> nn.Embedding:
        """Resize the embeddings and the readout to another number of tokens, with the usual arguments of
        ``transformers``.
        """
        table = super().resize_token_embeddings(*args, **kwargs)
        config = replace(self.network.config, vocab_size=table.num_embeddings)
        self.network.config = self.network.body.config = config
        self.network.d_output = config.size
        return table

    def get_input_embeddings(self) -> nn.Module:
        """Return the embedding module of the network."""
        return self.network.body.encoder

    def set_input_embeddings(self, value: Any) -> None:
        """Replace the embedding module of the network."""
        self.network.body.encoder = value

    def get_output_embeddings(self) -> nn.Module | None:
        """Return the readout module, or None if the readout shares its weights with the embeddings."""
        return self.network.readout

    def set_output_embeddings(self, new_embeddings: nn.Linear | None) -> None:
        """Replace the readout module of the network."""
        self.network.readout = new_embeddings


AutoConfig.register("stablessm", StableSSMConfig)
AutoModelForCausalLM.register(StableSSMConfig, StableSSMForCausalLM)


def _check_files(folder: Path) -> None:
    """Raise an error if a model's files do not have the stored checksums, or its weights do not fit its config."""
    if (folder / CHECKSUMS).is_file():
        expected = f"the file that save_pretrained wrote, or, if you changed it yourself, no {CHECKSUMS} beside it"
        digests = record.read_json(folder / CHECKSUMS)
        unlisted = {path.name for path in (folder / "config.json", *folder.glob("model*.safetensors"))} - digests.keys()
        for name in sorted(unlisted | {name for name in digests if not (folder / name).is_file()}):
            wrong = f"a list without {name}" if name in unlisted else f"a list with {name}, which does not exist"
            raise record.DamagedFileError(
                str(folder / CHECKSUMS), "a list of the files that save_pretrained wrote", wrong
            )
        for name, digest in digests.items():
            record.require_digest(folder / name, digest, expected)
    _tensors.require_sizes(folder)


@contextmanager
def _inputs(blocks: nn.ModuleList, wanted: bool) -> Iterator[list[Tensor]]:
    """Return a context that yields an empty list. If ``wanted``, each block appends its input to this list whenever the
    block runs inside the context.
    """
    seen: list[Tensor] = []
    hooks = [block.register_forward_pre_hook(lambda _, args: seen.append(args[0])) for block in blocks if wanted]
    try:
        yield seen
    finally:
        for hook in hooks:
            hook.remove()
