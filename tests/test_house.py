"""Rules of the house that a reader of one change does not see: size, and one place for what must exist once."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path

import stablessm
from stablessm import _optional

PACKAGE = Path(stablessm.__file__).parent


@dataclass(frozen=True)
class Module:
    lines: list[str]
    nodes: list[ast.AST]

    @cached_property
    def documentation(self) -> set[int]:
        """Numbers of the lines of strings that are statements: of modules, classes, functions and fields."""
        texts = [node for node in self.nodes if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)]
        return {line for text in texts for line in range(text.lineno, text.end_lineno + 1)}


@cache
def modules() -> dict[str, Module]:
    """Each module of the package by its path, parsed once for all tests."""
    texts = {path: path.read_text(encoding="utf-8") for path in sorted(PACKAGE.rglob("*.py"))}
    return {
        path.relative_to(PACKAGE).as_posix(): Module(text.splitlines(), list(ast.walk(ast.parse(text))))
        for path, text in texts.items()
    }


def code_lines(module: Module) -> int:
    """The number of lines that hold code: no docstrings, comments or blank lines."""
    numbered = enumerate(module.lines, 1)
    lines = {number for number, line in numbered if line.strip() and not line.lstrip().startswith("#")}
    texts = [node for node in module.nodes if isinstance(node, ast.Constant | ast.JoinedStr)]
    return len(lines.union(*(range(text.lineno, text.end_lineno + 1) for text in texts)) - module.documentation)


@cache
def code() -> list[tuple[str, str]]:
    """File and line of all code of the package, docstrings and comments left out."""
    return [
        (file, line.partition("  #")[0])
        for file, module in modules().items()
        for number, line in enumerate(module.lines, 1)
        if number not in module.documentation
    ]


def found(pattern: str) -> list[str]:
    """Where code of the package matches: ``file: line``."""
    return [f"{file}: {line.strip()}" for file, line in code() if re.search(pattern, line)]


def test_the_package_does_not_grow() -> None:
    assert sum(map(code_lines, modules().values())) <= 48_754  # the aim is 30,000


def test_few_functions_are_long() -> None:
    functions = [node for module in modules().values() for node in module.nodes if isinstance(node, ast.FunctionDef)]
    long = sorted(function.name for function in functions if function.end_lineno - function.lineno + 1 > 60)
    assert len(long) <= 5, long


def test_one_training_loop_calls_backward() -> None:
    kernels = r"(linear|ssm|ssm_blocked|triton_\w+)\.backward\("
    assert [place for place in found(r"\)\.backward\(\)$") if not re.search(kernels, place)] == [
        "training/gradient.py: loss.sum().backward()"
    ]


def test_one_place_constructs_an_optimizer() -> None:
    assert len(found(r"\boptim\.[A-Z]\w+\(")) == 1


def test_the_old_name_of_the_cpu_backend_is_an_alias() -> None:
    assert found("numba") == ['scan/backends.py: _OLD_NAMES = {"numba": "cpu"}']


def test_papers_are_cited_by_key() -> None:
    root = PACKAGE.parent
    texts = [*PACKAGE.rglob("*.py"), *PACKAGE.rglob("*.md"), *(root / "docs").rglob("*.md"), root / "README.md"]
    assert [path for path in texts if re.search(r"[Pp]apers? 00\d", path.read_text(encoding="utf-8"))] == []


def imported(module: Module) -> set[str]:
    """The packages that a module imports, at its top or in its functions."""
    nodes = module.nodes
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.partition(".")[0] for name in names}


def test_every_optional_package_has_the_command_that_installs_it() -> None:
    project = tomllib.loads((PACKAGE.parent / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    for package, extra in _optional.EXTRAS.items():
        names = [re.split("[>;<]", entry)[0].replace("-", "_") for entry in project["optional-dependencies"][extra]]
        assert package in names, f"stablessm[{extra}] does not install {package}"
    own = {"stablessm", *_optional.REQUIRED, *sys.stdlib_module_names}
    others = set().union(*map(imported, modules().values())) - own
    assert {"transformers", "triton", "jax"} <= others
    for package in others:
        remedy = _optional.import_failure(ModuleNotFoundError("no", name=package))
        assert remedy is not None, f"{package} is imported, but stablessm/_optional.py does not know it"
        assert _optional.install_command(package) in remedy
    assert _optional.install_command("fla") == "pip install flash-linear-attention"
