"""Loads the model that a command's argument names: a folder, a name on the Hugging Face hub, or
``package.module:factory``.
"""

from __future__ import annotations

import contextlib
import importlib
import re
from pathlib import Path
from typing import Any

from stablessm import _current_folder, _hub
from stablessm._errors import ArgumentError
from stablessm._optional import require
from stablessm._similar import did_you_mean
from stablessm.cli.output import note

SUM = "sum.safetensors"
"""File that ``stablessm fit`` writes into its folder."""
EXPECTED = "a folder saved by stablessm, a Hugging Face model folder or name, or package.module:factory"
_FEWEST = 1000
"""A Hugging Face model may have this number of layers even with fewer tensors, because some layers share tensors."""
_LONGEST = 300
"""Number of characters of another library's error message that are passed on."""


def load_model(source: str, *, trust_remote_code: bool = False) -> tuple[Any, str]:
    """Load a model; return the model and a name for the kind of its source, such as "factory" or "Hugging Face hub".
    Weights are read from safetensors files, never unpickled.
    """
    folder = Path(source)
    if folder.is_dir():
        return _from_folder(folder, trust_remote_code)
    if ":" in source:
        return _made("MODEL", source, "model", ("parameters",), EXPECTED), "factory"
    if folder.name == SUM and folder.is_file():
        return _from_fit(folder), "fit"
    if folder.is_file():
        raise ArgumentError("MODEL", EXPECTED, f"{source} (a file, not a folder)")
    if _is_path(folder) or source.startswith((".", "/", "~")):
        raise ArgumentError("MODEL", EXPECTED, f"{source} (no such folder{did_you_mean(folder, Path.is_dir)})")
    note(f"there is no folder {source}; looking for a model of this name on the Hugging Face hub", err=True)
    with _hub.cache_without_network() as unreachable:
        try:
            return _from_hugging_face(source, trust_remote_code), "Hugging Face hub"
        except ArgumentError as error:
            if not unreachable:
                raise
            why = f"no such folder{did_you_mean(folder, Path.is_dir)}, not downloaded before, and {unreachable}"
            raise ArgumentError("MODEL", EXPECTED, f"{source} ({why})") from error


def checkpoints(source: str) -> list[str]:
    """Return the paths of all models in a folder of checkpoints, ordered by the numbers in their names."""
    folder = Path(source)
    if not folder.is_dir() or _is_model(folder):
        return [source]
    found = [path for path in folder.iterdir() if path.is_dir() and _is_model(path)]
    order = sorted(found, key=lambda path: ([int(number) for number in re.findall(r"\d+", path.name)], path.name))
    return [str(path) for path in order] or [source]


def _is_model(folder: Path) -> bool:
    from stablessm.layers import storage

    saved = storage.is_saved_layer(folder) or storage.is_saved_layer(folder / "model")
    return saved or (folder / "config.json").is_file()


def _is_path(folder: Path) -> bool:
    """Return True if the argument of a command is meant as the path of a folder, and False if it is meant as the name
    of a model on the Hugging Face hub.

    Names on the hub are NAME or OWNER/NAME. A name ``runs/NAME`` is a path, because commands write to the folder
    ``runs``.
    """
    parts = folder.parts
    return len(parts) > 2 or (len(parts) == 2 and (parts[0] == "runs" or folder.parent.is_dir()))


def load_tokenizer(source: str, argument: str, *, trust_remote_code: bool = False) -> Any:
    """Load the tokenizer of a Hugging Face model; ``argument`` is the name of the command-line argument, for error
    messages.
    """
    transformers = require("transformers", argument)
    with contextlib.nullcontext("") if Path(source).is_dir() else _hub.cache_without_network() as unreachable:
        try:
            return transformers.AutoTokenizer.from_pretrained(source, trust_remote_code=trust_remote_code)
        except Exception as error:
            raise ArgumentError(argument, f"a tokenizer with {source}", unreachable or _said(error)) from error


def _from_folder(folder: Path, trust_remote_code: bool) -> tuple[Any, str]:
    from stablessm.layers import storage
    from stablessm.training.folder import check_own

    if not storage.is_saved_layer(folder) and storage.is_saved_layer(folder / "model"):
        check_own(folder)
        folder = folder / "model"  # the folder of a training run
    if (folder / SUM).is_file():
        return _from_fit(folder / SUM), "fit"
    if storage.is_saved_layer(folder):
        try:
            return storage.load(folder), "stablessm folder"
        except Exception as error:
            raise ArgumentError("MODEL", "a complete folder", f"{folder} ({_said(error)})") from error
    if not (folder / "config.json").is_file():
        hint = storage.replica_hint(folder) or " (it has no config.json)"
        raise ArgumentError("MODEL", EXPECTED, f"{folder}{hint}")
    if not list(folder.glob("*.safetensors")):
        raise ArgumentError("MODEL", "weights in a .safetensors file (pickled weights can run code)", str(folder))
    return _from_hugging_face(str(folder), trust_remote_code), "Hugging Face folder"


def _from_fit(path: Path) -> Any:
    """Return a float32 layer that computes the sum of exponentials in a file of ``stablessm fit``."""
    from stablessm.constructions import ExponentialSum

    try:
        found = ExponentialSum.load(path)
    except (ArgumentError, OSError) as error:
        raise ArgumentError("MODEL", "a complete folder of stablessm fit", f"{path.parent} ({error})") from error
    layer = found.to_layer()
    note(f"{path}: {type(layer).__name__} with {found.order} states in float32 (ExponentialSum.to_layer)", err=True)
    return layer


def _from_hugging_face(name: str, trust_remote_code: bool) -> Any:
    transformers = require("transformers", f"the Hugging Face model {name}")
    import stablessm.models.hf_model  # noqa: F401  (registers our model with the Auto classes)
    from stablessm import _tensors

    options: dict[str, Any] = {"trust_remote_code": trust_remote_code}
    try:
        config = transformers.AutoConfig.from_pretrained(name, **options)
        _tensors.require_sizes(Path(name), fewest=_FEWEST)
        options |= {"use_safetensors": True, "output_loading_info": True}
        model, found = _auto_class(transformers, config).from_pretrained(name, **options)
    except Exception as error:  # transformers raises many kinds, for damaged files and unknown models
        if "trust_remote_code" in str(error):
            expected = "a model without code of its own; read its code, then add --trust-remote-code"
            raise ArgumentError("MODEL", expected, name) from error
        raise ArgumentError("MODEL", EXPECTED, f"{name} ({_said(error)})") from error
    for kind, what in (("missing_keys", "not in the file and random"), ("unexpected_keys", "in the file and not used")):
        if keys := sorted(found[kind]):
            note(f"{name}: {len(keys)} weights are {what}: {', '.join(keys[:3])}{', …' * (len(keys) > 3)}", err=True)
    if wrong := [key for key, weight in model.named_parameters() if not bool(weight.isfinite().all())]:
        note(f"{name}: NaN or infinite values in {', '.join(wrong[:3])}; outputs are meaningless", err=True)
    return model


def _auto_class(transformers: Any, config: Any) -> Any:
    """Return the Auto class of ``transformers`` that loads a model with the output head named in its config."""
    architectures = " ".join(getattr(config, "architectures", None) or ())
    for ending, auto in (
        ("SequenceClassification", transformers.AutoModelForSequenceClassification),
        ("CausalLM", transformers.AutoModelForCausalLM),
        ("LMHeadModel", transformers.AutoModelForCausalLM),
    ):
        if ending in architectures:
            return auto
    return transformers.AutoModel


def from_factory(argument: str, source: str, kind: str, *methods: str) -> Any:
    """Import the object that ``source`` names as ``package.module:NAME``, and return it; if the object is a class or a
    factory function, call it and return the result.

    Args:
        argument: Name of the command-line argument, for error messages.
        kind: Name of what is expected, such as ``logger``.
        methods: Methods that the object must have.
    """
    made = _made(argument, source, kind, methods, f"package.module:factory of a {kind}")
    missing = [method for method in methods if not callable(getattr(made, method, None))]
    if missing:
        expected = f"a {kind} with the methods {', '.join(methods)} from {source}"
        raise ArgumentError(argument, expected, f"{type(made).__name__} without {', '.join(missing)}")
    return made


def _made(argument: str, source: str, kind: str, methods: tuple[str, ...], expected: str) -> Any:
    """Import the object that ``source`` names; return the object if it has the required methods and is not a class,
    otherwise call it and return the result.

    ``argument``, ``kind`` and ``expected`` are texts for error messages.
    """
    module_name, _, attribute = source.partition(":")
    _current_folder.use()
    try:
        found: Any = importlib.import_module(module_name)
        for part in attribute.split("."):
            found = getattr(found, part)
    except (ImportError, AttributeError, ValueError) as error:
        raise ArgumentError(argument, expected, f"{source} ({_said(error)})") from error
    if not isinstance(found, type) and all(hasattr(found, method) for method in methods):
        return found
    if not callable(found):
        raise ArgumentError(argument, f"a function that returns a {kind} at {source}", type(found).__name__)
    try:
        return found()
    except Exception as error:
        raise ArgumentError(argument, f"{source}() to return a {kind}", _said(error)) from error


def _said(error: Exception) -> str:
    """Return the type and the message of an error as one line of limited length."""
    text = " ".join(str(error).split()) or "no message"
    return f"{type(error).__name__}: {text if len(text) <= _LONGEST else text[:_LONGEST] + '…'}"
