"""A model from the command line: a folder, a name on the Hugging Face hub, or ``package.module:factory``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

from stablessm import _current_folder
from stablessm._errors import ArgumentError
from stablessm._optional import require

EXPECTED = "a folder saved by stablessm, a Hugging Face model folder or name, or package.module:factory"
_LONGEST = 300
"""Letters of another library's error that are passed on."""


def load_model(source: str, *, trust_remote_code: bool = False) -> tuple[Any, str]:
    """The model, and what kind of source it came from. Weights come from safetensors files; nothing is unpickled."""
    folder = Path(source)
    if folder.is_dir():
        return _from_folder(folder, trust_remote_code)
    if ":" in source:
        return _from_factory(source), "factory"
    below = len(folder.parts) > 1 and (len(folder.parts) > 2 or folder.parent.is_dir())  # no name on the hub
    if folder.exists() or below or source.startswith((".", "/", "~")):
        raise ArgumentError("MODEL", EXPECTED, f"{source} (no such folder)")
    return _from_hugging_face(source, trust_remote_code), "Hugging Face hub"


def load_tokenizer(source: str, argument: str, *, trust_remote_code: bool = False) -> Any:
    """The tokenizer that goes with a Hugging Face model; ``argument``: what needs it."""
    transformers = require("transformers", argument)
    try:
        return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
    except Exception as error:
        raise ArgumentError(argument, f"a tokenizer with {source}", _said(error)) from error


def _from_folder(folder: Path, trust_remote_code: bool) -> tuple[Any, str]:
    from stablessm.layers import storage

    if not storage.is_saved_layer(folder) and storage.is_saved_layer(folder / "model"):
        folder = folder / "model"  # what a training leaves in its folder
    if storage.is_saved_layer(folder):
        try:
            return storage.load(folder), "stablessm folder"
        except Exception as error:
            raise ArgumentError("MODEL", "a whole folder", f"{folder} ({_said(error)})") from error
    if not (folder / "config.json").is_file():
        raise ArgumentError("MODEL", EXPECTED, f"{folder} (it has no config.json)")
    if not list(folder.glob("*.safetensors")):
        raise ArgumentError("MODEL", "weights in a .safetensors file, since pickled ones can run code", str(folder))
    return _from_hugging_face(str(folder), trust_remote_code), "Hugging Face folder"


def _from_hugging_face(name: str, trust_remote_code: bool) -> Any:
    transformers = require("transformers", f"the Hugging Face model {name}")
    import stablessm.models.hf_model  # noqa: F401  (registers our model with the Auto classes)

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)
        return _auto_class(transformers, config).from_pretrained(name, use_safetensors=True, **options)
    except Exception as error:  # many kinds come out of there, of damaged files and of models it does not know
        if "trust_remote_code" in str(error):
            expected = "a model without code of its own, or --trust-remote-code if you have read that code"
            raise ArgumentError("MODEL", expected, name) from error
        raise ArgumentError("MODEL", EXPECTED, f"{name} ({_said(error)})") from error


def _auto_class(transformers: Any, config: Any) -> Any:
    """The head the model was trained with."""
    architectures = " ".join(getattr(config, "architectures", None) or ())
    for ending, auto in (
        ("SequenceClassification", transformers.AutoModelForSequenceClassification),
        ("CausalLM", transformers.AutoModelForCausalLM),
        ("LMHeadModel", transformers.AutoModelForCausalLM),
    ):
        if ending in architectures:
            return auto
    return transformers.AutoModel


def _from_factory(source: str) -> Any:
    module_name, _, attribute = source.partition(":")
    _current_folder.use()
    try:
        factory: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            factory = getattr(factory, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError("MODEL", EXPECTED, f"{source} ({_said(error)})") from error
    if hasattr(factory, "parameters") and not isinstance(factory, type):  # a model, not what makes one
        return factory
    if not callable(factory):
        raise ArgumentError("MODEL", f"a function that returns a model at {source}", type(factory).__name__)
    try:
        return factory()
    except Exception as error:
        raise ArgumentError("MODEL", f"{source}() to return a model", _said(error)) from error


def _said(error: Exception) -> str:
    """What it says, in one line."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}"
