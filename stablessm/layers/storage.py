"""Saves layers and models to a folder as ``config.json`` and ``model.safetensors``, without pickle, and loads them."""

from __future__ import annotations

import inspect
import json
import os
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import nn

from stablessm import _tensors, record
from stablessm._checked import checked
from stablessm._errors import ArgumentError, quoted
from stablessm._renamed import reading_a_file
from stablessm._typing import Time
from stablessm.layers.base import SequenceLayer
from stablessm.layers.bidirectional import Bidirectional
from stablessm.layers.continuous_rnn import ContinuousRNN
from stablessm.layers.hgrn import HGRN
from stablessm.layers.lru import LRU
from stablessm.layers.min_gru import MinGRU, MinLSTM
from stablessm.layers.real_ssm import RealSSM
from stablessm.layers.rg_lru import RGLRU
from stablessm.layers.s4d import S4D
from stablessm.layers.selective import SelectiveSSM
from stablessm.reparam import get as get_map
from stablessm.reparam import matrix

CLASSES: dict[str, type[nn.Module]] = {
    cls.__name__: cls
    for cls in (RealSSM, LRU, S4D, ContinuousRNN, Bidirectional, MinGRU, MinLSTM, RGLRU, HGRN, SelectiveSSM)
}
FORMAT = "stablessm layer"
WEIGHTS = "model.safetensors"
_EXPECTED = "a folder written by stablessm.save"
_TRIES = 100
"""Number of times that a folder is read if its files do not belong together and another process is changing them."""


class SavedModel(nn.Module):
    """The base class of models whose constructor arguments are all in ``config``, as values that JSON can represent."""

    config: Any


_Model = TypeVar("_Model", bound=type[SavedModel])
_models: dict[str, type[SavedModel]] = {}


def saved(cls: _Model) -> _Model:
    """Register a class of models by its name, so that :func:`save` and :func:`load` support it."""
    _models[cls.__name__] = cls
    return cls


@checked
def save(layer: SequenceLayer | Bidirectional | SavedModel, folder: str | os.PathLike[str]) -> None:
    """Write a layer, or a model such as a ``SequenceClassifier``, to ``folder``, from which :func:`load` restores it.

    >>> import tempfile
    >>> with tempfile.TemporaryDirectory() as folder:
    ...     save(LRU(1, 4, 1, map="tanh"), folder)
    ...     load(folder)
    LRU(1, 4, 1, map=tanh(time='discrete'), normalize=True)
    """
    if type(layer) not in (*CLASSES.values(), *_known_models().values()):
        raise ArgumentError("layer", f"one of {', '.join((*CLASSES, *_models))}", type(layer).__name__)
    folder = Path(folder)
    if folder.exists() and not folder.is_dir():
        raise ArgumentError("folder", "a folder", f"{folder}, a file")
    content = {"format": FORMAT, "dtype": str(next(layer.parameters()).dtype).removeprefix("torch."), **_config(layer)}
    try:
        _build(json.loads(json.dumps(record.plain(content))))
    except ArgumentError as error:
        known = "a map that reparam.get knows (reparam.register) and a mixer that models know (register_mixer)"
        raise ArgumentError("layer", known, str(error)) from error
    before, tensors = _weights_of(folder), _tensors.packed(layer.state_dict())
    new = _tensors.digest("", tensors)
    record.write_json(
        folder / "config.json", {**content, "weights": [new, *before]}
    )  # lists the old and the new weights, so that the folder is valid at any time
    _tensors.save(folder / WEIGHTS, tensors)
    if before:
        record.write_json(folder / "config.json", {**content, "weights": [new]})


@checked
def load(folder: str | os.PathLike[str]) -> Any:
    """Return the layer or model that :func:`save` wrote to a folder, with its weights and dtype.

    The random state is not changed. Damaged files and weights of another model raise an error. Weights that are not
    finite raise a warning. A folder to which another process saves a model meanwhile is read again.
    """
    folder = Path(folder)
    config, weights = folder / "config.json", folder / WEIGHTS
    if not config.is_file():
        raise ArgumentError("folder", _EXPECTED, f"{folder} without config.json{replica_hint(folder.parent)}")
    for _ in range(_TRIES):
        before = _weights_of(folder)
        try:
            return _loaded(folder, config, weights)
        except record.DamagedFileError:
            if _weights_of(folder) == before:
                raise
    return _loaded(folder, config, weights)


def _loaded(folder: Path, config: Path, weights: Path) -> Any:
    expected = f"a file written by stablessm.save{checkpoint_hint(folder)}"
    content = record.read_json(config, expected)
    if content.get("format") != FORMAT:
        found = quoted(content.get("format", "none"))
        raise ArgumentError("folder", _EXPECTED, f"{folder}, whose config.json has the format {found}, not {FORMAT!r}")
    if not weights.exists():
        raise record.DamagedFileError(str(weights), expected, "no such file. Restore it from a copy, or make it again")
    shapes = _tensors.header(weights, expected)[0]
    with record.reading(config, expected):
        if content["class"] not in CLASSES and content["class"] not in _known_models():
            raise ArgumentError("class", f"one of {', '.join((*CLASSES, *_models))}", content["class"])
        known = list(content.get("weights", ()))
        try:
            _require_shapes(content, shapes)  # this check comes before memory is allocated
        except ArgumentError:
            _require_whole(weights, known, expected)
            raise
        layer = _build(content).to(getattr(torch, content["dtype"]))
    restore(layer, weights, known, expected)
    return layer


def restore(
    layer: nn.Module, weights: Path, known: Sequence[str | None], expected: str = "a whole .safetensors file"
) -> None:
    """Load the weights of a layer from a ``.safetensors`` file.

    The SHA-256 of the file must be in the list ``known``, unless the list is empty. ``expected`` describes the file in
    error messages.
    """
    tensors = _require_whole(weights, known, expected)
    with record.reading(weights, expected):
        layer.load_state_dict(tensors)
    wrong = [name for name, t in tensors.items() if t.is_floating_point() and not bool(t.isfinite().all())]
    if wrong:
        warnings.warn(f"{weights}: NaN or infinite values in {', '.join(wrong)}; outputs are meaningless", stacklevel=3)


def _require_whole(weights: Path, known: Sequence[str | None], expected: str) -> dict[str, torch.Tensor]:
    """Load the tensors of a ``.safetensors`` file; raise an error if the file is damaged, or if its checksum is not in
    the list ``known`` (an empty list allows any checksum). ``expected`` describes the file for the error message.
    """
    _, tensors, seal = _tensors.load(weights, expected)
    with record.reading(weights, expected):
        if known and seal not in known:
            raise ValueError("weights of another model")
    return tensors


def _weights_of(folder: Path) -> list[str | None]:
    """Return a list that contains the checksum of the weights, as the config of the folder states it.

    The list is [None] if the config states no checksum, and empty if there is no readable config.
    """
    try:
        return list(record.read_json(folder / "config.json").get("weights", [None])[:1])
    except (OSError, ArgumentError, TypeError):
        return []


def checkpoint_hint(folder: Path) -> str:
    """Return a hint to use the last checkpoint instead of damaged weights; return "" if there is no checkpoint."""
    if not any(folder.parent.glob("checkpoints/step-*")):
        return ""
    return f", or stablessm train with --last-good, which takes the weights of the last checkpoint of {folder.parent}"


def replica_hint(folder: Path) -> str:
    """Return a hint to choose a replica if ``folder`` belongs to a run with several replicas; otherwise return ""."""
    found = sorted(path.name for path in folder.glob("replica-*") if is_saved_layer(path / "model"))
    return f" (each replica has a model: choose {found[0]} … {found[-1]} in {folder})" if found else ""


def _require_shapes(content: dict[str, Any], shapes: Mapping[str, tuple[int, ...]]) -> None:
    """Raise an error if the sizes in the ``content`` of a config file differ from the ``shapes`` of the saved
    weights.
    """
    _require_at_most(content, "n_layers", len(shapes))  # building a layer takes time even on the meta device
    try:
        with torch.device("meta"):
            built = {name: tuple(tensor.shape) for name, tensor in _build(content).state_dict().items()}
    except (RuntimeError, NotImplementedError) as error:
        if "meta" not in str(error):
            raise
        longest = max((length for shape in shapes.values() for length in shape), default=1)
        for name in content["options"] if content["class"] in CLASSES else ():  # a matrix map reads its weights
            _require_at_most(content, name, longest)
        return
    for name in sorted(built.keys() | shapes.keys()):
        if built.get(name) != shapes.get(name):
            raise ArgumentError(name, f"shape {shapes.get(name)}, as in {WEIGHTS}", built.get(name))


def _require_at_most(content: dict[str, Any], name: str, most: int) -> None:
    size = content["options"].get(name)
    if isinstance(size, int) and size > most:
        raise ArgumentError(name, f"at most {most}, as in {WEIGHTS}", size)


def is_saved_layer(folder: str | os.PathLike[str]) -> bool:
    """Return True if :func:`save` wrote this folder, as its config or, if the config is damaged, its weights show."""
    config = Path(folder) / "config.json"
    try:
        with record.reading(config, FORMAT):
            written = FORMAT in config.read_text(encoding="utf-8", errors="replace")
        return written or _tensors.header(config.with_name(WEIGHTS))[1] is not None
    except (OSError, ArgumentError):
        return False


def _known_models() -> dict[str, type[SavedModel]]:
    import stablessm.models  # noqa: F401  (models add themselves to the table when they are imported)

    return _models


def _config(layer: nn.Module) -> dict[str, Any]:
    """Return the class name of a layer or model and its constructor arguments, but not its weights."""
    if isinstance(layer, SavedModel):
        return {"class": type(layer).__name__, "options": asdict(layer.config)}
    if isinstance(layer, Bidirectional):
        back = None if layer.back is layer.ahead else _config(layer.back)
        options: dict[str, Any] = {"ahead": _config(layer.ahead), "back": back, "merge": layer.merge}
        return {"class": "Bidirectional", "options": options}
    options = {name: _option(layer, name) for name in inspect.signature(type(layer)).parameters}
    if options.get("time") == "discrete":
        options = {name: value for name, value in options.items() if name not in ("dt", "discretization")}
    return {"class": type(layer).__name__, "options": options}


def _option(layer: Any, name: str) -> Any:
    if name == "eigenvalues":  # the given initial eigenvalues, if any
        start = layer._start
        return None if start is None else torch.view_as_real(start.to(torch.complex128)).tolist()
    if name == "map":
        return {"name": layer.map.name, **vars(layer.map)}
    if name in ("d_state", "d_model"):
        return layer.state_shape[-1 if name == "d_state" else 0]
    if name == "d_output" and layer.C is None:  # without a readout, the state is the output
        return None
    if name in ("bias", "skip"):
        return getattr(layer, "bias" if name == "bias" else "D") is not None
    return getattr(layer, name)


def _build(content: dict[str, Any]) -> Any:
    # the random state of a training run is restored
    with reading_a_file(), torch.random.fork_rng(devices=[]):
        return _built(content)


def _built(content: dict[str, Any]) -> Any:
    options = dict(content["options"])
    if content["class"] in _models:
        return _models[content["class"]](**options)
    cls = CLASSES[content["class"]]
    if cls is Bidirectional:
        ahead = _built(options["ahead"])
        back = ahead if options["back"] is None else _built(options["back"])
        return Bidirectional(ahead, back, merge=options["merge"])
    start = options.pop("eigenvalues")
    if start is not None:
        pairs = torch.tensor(start, dtype=torch.float64, device="cpu")
        options["eigenvalues"] = torch.view_as_complex(pairs) if bool(pairs[..., 1].any()) else pairs[..., 0]
    choice = dict(options.pop("map"))
    name = choice.pop("name")
    dense = options.get("recurrence") == "dense"
    time: Time = "discrete" if cls is LRU else options.get("time", "continuous")
    return cls(**options, map=matrix.get(name, **choice) if dense else get_map(name, time=time, **choice))
