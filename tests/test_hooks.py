"""Hugging Face's Auto classes know our model whichever is imported first; importing us alone imports nothing heavy."""

from __future__ import annotations

import subprocess
import sys

import pytest

BUILD = """
from transformers import AutoConfig, AutoModelForCausalLM
config = AutoConfig.for_model("stablessm", vocab_size=10, d_model=8, n_layers=1, d_state=2)
print(type(AutoModelForCausalLM.from_config(config)).__name__)
"""
FIRST = {
    "stablessm": """
import sys, stablessm
assert not {"torch", "transformers"} & set(sys.modules)
from transformers import AutoConfig
AutoConfig.for_model("stablessm")
assert "transformers.modeling_utils" not in sys.modules  # no more than what was asked for
""",
    "transformers": """
import transformers
from transformers import GPT2LMHeadModel, AutoModelForCausalLM
import stablessm
""",
}


@pytest.mark.parametrize("first", FIRST)
def test_either_import_order(first):
    code = "import warnings; warnings.simplefilter('error', UserWarning)\n" + FIRST[first] + BUILD
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.stdout.strip() == "StableSSMForCausalLM", done.stderr


@pytest.mark.slow
def test_the_model_first_or_everything_at_once():
    for start in (
        "from stablessm.models import StableSSMForCausalLM",
        "import stablessm\nfrom transformers import Trainer, pipeline, GPT2LMHeadModel",
        "import stablessm.models.hf_cache",
    ):
        done = subprocess.run([sys.executable, "-c", start + BUILD], capture_output=True, text=True, check=False)
        assert done.stdout.strip() == "StableSSMForCausalLM", done.stderr


def test_without_transformers_the_model_says_what_to_install():
    code = """
import sys
sys.modules["transformers"] = None
import stablessm, torch
model = stablessm.LanguageModel(10, d_model=8, n_layers=1, d_state=2)
assert model(torch.tensor([[1, 2]])).shape == (1, 2, 10)
try:
    from stablessm.models import StableSSMForCausalLM
except ImportError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert "needs the package transformers, 5.4 or newer (pip install 'stablessm[hf]')" in done.stdout, done.stderr
