"""Importing the model registers it with the Auto classes; importing the package imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import fresh_process


def run(code: str) -> str:
    code = "import warnings; warnings.simplefilter('error', UserWarning)\n" + code
    done = fresh_process.run(code)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_importing_the_model_registers_it() -> None:
    code = """
import transformers
from stablessm.models import StableSSMForCausalLM
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("stablessm", vocab_size=10, d_model=8, n_layers=1, d_state=2)
print(type(AutoModelForCausalLM.from_config(config)).__name__)
"""
    assert run(code) == "StableSSMForCausalLM"


def test_the_package_alone_imports_nothing_heavy() -> None:
    code = "import sys, stablessm; print(sorted({'torch', 'numpy', 'transformers'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_without_transformers_the_model_says_what_to_install() -> None:
    code = """
import sys
sys.modules["transformers"] = None
import stablessm, torch
model = stablessm.LanguageModel(10, d_model=8, n_layers=1, d_state=2)
assert model(torch.tensor([[1, 2]])).shape == (1, 2, 10)
assert "torch._dynamo" not in sys.modules  # the compiler, which takes as long to import as PyTorch
try:
    from stablessm.models import StableSSMForCausalLM
except ImportError as error:
    print(error)
"""
    said = "StableSSMConfig requires transformers, but transformers is not installed (pip install 'stablessm[hf]')"
    assert run(code) == said
