"""Write the commit into what is built, and the README with absolute links; everything else is in pyproject.toml."""

import json
import re
import runpy
import tomllib
from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist

ROOT = Path(__file__).resolve().parent
PROVENANCE = runpy.run_path(str(ROOT / "stablessm" / "_provenance.py"))
COMMIT = PROVENANCE["commit"]()  # now: what a build writes into the checkout is no change
LINK = re.compile(r"(!?)(\[[^\]]*\])\((?![a-z]+:|#)([^)]+)\)")


def readme() -> str:
    """Return README.md with links to the files of the repository instead of relative ones."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]

    def absolute(link: re.Match[str]) -> str:
        kind = "raw" if link[1] else "blob"
        return f"{link[1]}{link[2]}({project['urls']['Homepage']}/{kind}/main/{link[3]})"

    return LINK.sub(absolute, (ROOT / "README.md").read_text(encoding="utf-8"))


def write_commit(root: str) -> None:
    """Write ``stablessm/_build.json`` below ``root``. A wheel built from an sdist gets the commit of the sdist."""
    path = Path(root) / "stablessm" / PROVENANCE["BUILD"]
    path.unlink(missing_ok=True)  # files of an sdist may be hard links to the source files
    path.write_text(json.dumps({"commit": COMMIT}) + "\n", encoding="utf-8")


class BuildWithCommit(build_py):
    """The package's files, and the commit; an editable install asks git instead."""

    def run(self) -> None:
        """Build."""
        super().run()
        if not self.editable_mode:
            write_commit(self.build_lib)


class SdistWithCommit(sdist):
    """The source, and the commit."""

    def make_release_tree(self, base_dir, files) -> None:
        """Collect the files."""
        super().make_release_tree(base_dir, files)
        write_commit(base_dir)


setup(
    long_description=readme(),
    long_description_content_type="text/markdown",
    cmdclass={"build_py": BuildWithCommit, "sdist": SdistWithCommit},
)
