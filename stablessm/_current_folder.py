"""Controls whether Python may import modules from the current folder, where they could replace installed packages.

``python -m`` puts the current folder first on the path, so that a file called ``tqdm.py`` there would run instead of
the package. This module is imported first and removes the folder again for ``python -m stablessm``.
"""

import os
import sys


def use() -> None:
    """Add the current folder to the import path, because the user named a module in this folder."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def leave() -> None:
    """Remove the current folder from the import path of this process and of all Python processes that it starts.

    The folder stays on the path if it contains this package, as a checkout that is not installed does.
    """
    os.environ["PYTHONSAFEPATH"] = "1"
    try:
        here, home = os.getcwd(), os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    except FileNotFoundError:
        sys.exit("the current folder was deleted; change to another folder")
    if not sys.flags.safe_path and sys.path and sys.path[0] in ("", here) and home != here:
        del sys.path[0]


if sys.argv[:1] == ["-m"] and ("-m", "stablessm") in zip(sys.orig_argv, sys.orig_argv[1:], strict=False):
    leave()
