"""check_state: finds planted faults in the case they belong to, and raises no false alarm."""

from __future__ import annotations

import copy
import itertools
import json

import faulty_states
import hf_models
import numpy as np
import pytest
import rare_state_faults
import torch
from torch import Tensor, nn

import stablessm as ssm
from stablessm import ArgumentError
from stablessm.instruments import NotSupportedError, Stateful, _states, families
from stablessm.instruments import _state_plans as plans
from stablessm.instruments.adapters import as_stateful
from stablessm.instruments.state import CASES

OURS = {
    "RealSSM": lambda width: ssm.RealSSM(3, width, 2, map="best"),
    "LRU": lambda width: ssm.LRU(3, width, 2),
    "S4D": lambda width: ssm.S4D(3, width),
    "ContinuousRNN": lambda width: ssm.ContinuousRNN(3, width, 2, activation="tanh"),
    "classifier": lambda width: ssm.SequenceClassifier(4, d_input=3, d_model=8, n_layers=2, d_state=width),
    "language": lambda width: ssm.LanguageModel(20, d_model=8, n_layers=2, d_state=width),
}
KINDS = [nn.RNN, nn.GRU, nn.LSTM, nn.RNNCell, nn.GRUCell, nn.LSTMCell]


@pytest.mark.parametrize("name", OURS)
def test_ours_are_right(name):
    report = ssm.check_state(OURS[name](4))
    assert report.passed, str(report)
    assert report["right padding"].status == report["packing"].status == "pass"


@pytest.mark.parametrize("seed", range(6))
def test_no_false_alarm_on_random_recurrences_of_torch(seed):
    draw = np.random.default_rng(seed)
    kind, d_input, width = KINDS[seed], int(draw.integers(1, 6)), int(draw.integers(1, 20))
    options = {}
    if not kind.__name__.endswith("Cell"):
        options = {"num_layers": int(draw.integers(1, 4)), "batch_first": bool(draw.integers(2)), "dropout": 0.3}
    model = kind(d_input, width, **options).to(draw.choice([torch.float32, torch.float64, torch.bfloat16]))
    with torch.no_grad():
        for weight in model.parameters():
            weight.mul_(10 ** draw.uniform(-1, 1))
    report = ssm.check_state(model, seed=seed, length=int(draw.integers(12, 30)), batch=int(draw.integers(2, 5)))
    assert report.passed, str(report)


def total(x: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
    y = x.cumsum(1) if state is None else x.cumsum(1) + state[:, None]
    return y, y[:, -1]


def forgets(x, state):
    return total(x, state)[0], x[:, -1]


def wrong_in_chunks(x, state):
    return total(x, state if x.shape[1] == 1 else None)


def wrong_in_steps(x, state):
    return total(x, None if x.shape[1] == 1 else state)


def mixes_rows(x, state):
    y, state = total(x, state)
    return y + 0.1 * y.mean(0), state


def overwrites(x, state):
    y, last = total(x, state)
    if state is None:
        return y, last.clone()
    state.copy_(last)
    return y, state


class Held:
    """A state whose copies share memory, or lose a part."""

    def __init__(self, value: Tensor, lost: str) -> None:
        self.value, self.lost = value, lost

    def __deepcopy__(self, memo):
        return Held(self.value if self.lost == "shared" else torch.zeros_like(self.value), self.lost)


def held(lost):
    def run(x, state):
        y, last = total(x, None if state is None else state.value)
        if state is None:
            return y, Held(last.clone(), lost)
        state.value.copy_(last)
        return y, state

    return run


class Inside(nn.Module):
    """Keeps its state in itself, whatever state it is given."""

    d_input = 2
    memory = None

    def forward(self, x, state=None):
        y, self.memory = total(x, None if state is None else self.memory)
        return y, torch.zeros(len(x), 1)


class Padded(nn.Module):
    """Our interface, with a fault in the lengths, or in the resets."""

    d_input = 2

    def __init__(self, fault: str) -> None:
        super().__init__()
        self.fault, self.scale = fault, nn.Parameter(torch.ones(()))

    def initial_state(self, batch):
        return torch.zeros(batch, 2)

    def forward(self, x, state=None, *, lengths=None, reset=None):
        x = self.scale * x
        y, last = total(x, state)
        if reset is not None and self.fault != "resets":
            starts = reset.nonzero().tolist()
            for row in range(len(x)):
                bounds = [at for i, at in starts if i == row] + [x.shape[1]]
                for a, b in itertools.pairwise(bounds):
                    y[row, a:b] = x[row, a:b].cumsum(0)
            last = y[:, -1]
        if lengths is None or (self.fault == "lengths" and reset is None):
            return y, last
        return y, y[torch.arange(len(x)), lengths - 1]


def sees_the_future(x, state):
    y, last = total(x, state)
    return y + 0.1 * x[:, -1:], last


FAULTS = {
    "sees the future": (
        sees_the_future,
        {"causal", "step by step", "chunks"},
    ),
    "forgets": (forgets, {"step by step", "chunks"}),
    "wrong in chunks": (wrong_in_chunks, {"chunks"}),
    "wrong in steps": (wrong_in_steps, {"step by step"}),
    "mixes rows": (mixes_rows, {"batch"}),
    "overwrites": (overwrites, {"cache mutation"}),
    "shared": (held("shared"), {"rollback", "state copied", "state saved", "state moved", "cache mutation"}),
    "lost": (held("lost"), {"rollback", "state copied", "state saved", "state moved", "cache mutation"}),
    "inside": (Inside(), {"rollback", "state copied", "state saved", "state moved", "cache reuse", "cache mutation"}),
    "lengths": (Padded("lengths"), {"right padding"}),
    "resets": (Padded("resets"), {"packing"}),
    "none": (Padded("none"), set()),
}


@pytest.mark.parametrize("name", FAULTS)
def test_a_fault_is_found_in_the_case_that_it_belongs_to(name):
    model, expected = FAULTS[name]
    names = [each for each in CASES if each not in ("float32", "bfloat16")]
    report = ssm.check_state(model, d_input=2, cases=names)
    assert {case.name for case in report.cases if not case.passed} == expected, report
    assert report.passed == (not expected)


class Tokens(Stateful):
    """A recurrence of token ids with a table of embeddings; in chunks of ``lost`` steps the state is lost."""

    vocabulary = 17

    def __init__(self, seed, dtype, lost):
        generator = torch.Generator().manual_seed(seed)
        super().__init__(torch.randn(17, 4, generator=generator, dtype=dtype), d_input=1, dtype=dtype)
        self.lost = lost

    def run(self, x, state=None):
        assert x.dtype == torch.int64
        assert x.max() < self.vocabulary
        state = 0 if state is None or x.shape[1] == self.lost else state[:, None]
        y = (self.model[x].cumsum(1) + state).sin()
        return y, (self.model[x].cumsum(1) + state)[:, -1]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("seed", range(3))
def test_an_adapter_with_a_vocabulary_gets_tokens(seed, dtype):
    report = ssm.check_state(Tokens(seed, dtype, None), seed=seed)
    assert report.passed, report
    assert report["step by step"].status == report["state saved"].status == "pass"
    assert report["generate"].status == "not supported"
    assert not ssm.check_state(Tokens(seed, dtype, 5 + seed), cases=["chunks"]).passed
    curve = ssm.length_curve(Tokens(seed, dtype, None), torch.arange(40) % 4, window=8)
    assert curve.carried


class LessExact(nn.Module):
    """A GRU whose state shrinks in single steps, in the given dtypes only."""

    d_input = 2

    def __init__(self, width, factor, *dtypes):
        super().__init__()
        self.gru, self.factor, self.dtypes = nn.GRU(2, width, batch_first=True), factor, dtypes

    def forward(self, x, state=None):
        y, state = self.gru(x, state)
        return y, state * self.factor if x.dtype in self.dtypes and x.shape[1] == 1 else state


@pytest.mark.parametrize("seed", range(6))
def test_a_state_that_is_less_exact_in_one_dtype_is_found(seed):
    torch.manual_seed(seed)
    width, factor = 2 + 2 * seed, (0.95, 0.9, 1.05)[seed % 3]
    report = ssm.check_state(LessExact(width, factor, torch.bfloat16), cases=["step by step", "bfloat16", "float32"])
    assert [case.status for case in report.cases] == ["pass", "fail", "pass"], report
    report = ssm.check_state(LessExact(width, 1 + 1e-5 * (-1) ** seed, torch.float32).double(), cases=["float32"])
    assert not report.passed, report
    assert ssm.check_state(LessExact(width, 1.0), cases=["bfloat16", "float32"]).passed


def test_a_dtype_is_not_judged_if_single_steps_are_wrong_anyway():
    torch.manual_seed(0)
    model = LessExact(6, 0.9, torch.float32, torch.float64, torch.bfloat16)
    report = ssm.check_state(model, cases=["step by step", "bfloat16", "float32"])
    assert [case.status for case in report.cases] == ["fail", "inconclusive", "inconclusive"]
    assert report["bfloat16"].note == "not judged: single steps are already wrong in float32"


def test_the_error_the_first_step_and_the_layer():
    class Two(nn.Module):
        d_input = 2

        def __init__(self):
            super().__init__()
            self.first, self.second = nn.GRU(2, 4, batch_first=True), nn.GRU(4, 3, batch_first=True)

        def forward(self, x, state=None):
            first, second = (None, None) if state is None else state
            h, first = self.first(x, first)
            y, second = self.second(h, second if x.shape[1] == 1 else None)
            return y, (first, second)

    case = ssm.check_state(Two(), cases=["chunks"]).cases[0]
    assert (case.first, case.layer, case.status) == (1, "second", "fail")
    assert 1e-3 < case.error < 2
    assert case.note == "calls of 1, 23 steps"


class Stepped(nn.Module):
    """A recurrence with a method for single steps, which loses ``lost`` of its state, and without initial_state."""

    d_input = 2

    def __init__(self, lost):
        super().__init__()
        self.rnn, self.lost = nn.GRU(2, 4, batch_first=True), lost

    def forward(self, x, state=None):
        return self.rnn(x, state)

    def step(self, x_t, state=None):
        y, state = self.rnn(x_t[:, None], state)
        return y[:, 0], (1 - self.lost) * state


@pytest.mark.parametrize("lost", [0.0, 0.1])
def test_a_method_for_single_steps_is_checked(lost):
    report = ssm.check_state(Stepped(lost))
    assert [case.name for case in report.cases if not case.passed] == (["step by step"] if lost else [])


def test_a_model_that_raises_fails_and_says_so():
    def run(x, state):
        if state is not None and x.shape[1] > 1:
            raise ValueError("only single steps\nafter the first")
        return total(x, state)

    report = ssm.check_state(run, d_input=1)
    assert (report["chunks"].status, report["chunks"].error) == ("fail", None)
    assert report["chunks"].note == "raised ValueError: only single steps"
    assert report["step by step"].passed


def test_a_report_is_a_table_a_mapping_and_json():
    report = ssm.check_state(forgets, d_input=2)
    lines = str(report).splitlines()
    assert lines[0] == "the state of forgets is wrong in 2 of 17 cases: step by step, chunks"
    assert lines[1].split() == ["case", "result", "error", "from", "step", "first", "layer", "note"]
    assert [case.name for case in report.cases] == list(CASES)
    data = json.loads(json.dumps(report.as_dict()))
    assert (data["model"], data["passed"], data["cases"][1]["passed"]) == ("forgets", False, False)
    with pytest.raises(KeyError, match="the cases are causal, step by step, chunks"):
        report["padding"]


@pytest.mark.parametrize(
    ("model", "options", "match"),
    [
        (lambda x: x, {"d_input": 2}, "carries a state"),
        (lambda x, s: (x + torch.rand(1), x[:, 0]), {"d_input": 2}, "same output"),
        (lambda x, s: (x.mean(1), x[:, 0]), {"d_input": 2}, "3 time steps"),
        (nn.GRU(2, 3, bidirectional=True), {}, "causal"),
        (nn.GRU(2, 3), {"cases": ["chunk"]}, "step by step"),
        (nn.GRU(2, 3), {"length": 4}, "at least 12"),
        (total, {}, "d_input"),
    ],
)
def test_what_cannot_be_checked_is_refused(model, options, match):
    with pytest.raises(ArgumentError, match=match):
        ssm.check_state(model, **options)


def test_functions_of_arrays_and_of_single_steps():
    weights = np.random.default_rng(0).standard_normal((5, 3)) / 2

    def cell(x, state):  # one step: (B, d_input)
        state = np.zeros((len(x), 3)) if state is None else state
        state = np.tanh(np.concatenate([np.asarray(x), state], 1) @ weights)
        return state, state

    report = ssm.check_state(cell, d_input=2)
    assert report.passed, str(report)
    assert report["state saved"].status == "pass"


def test_an_adapter_of_ones_own():
    class Accumulator(Stateful):
        def run(self, x, state=None):
            return total(x, state)

        def padded(self, x, real, state=None):
            if not real[:, 0].all():
                raise NotSupportedError("padding on the right only")
            y, _ = total(x * real[..., None], state)
            return y, y[:, -1]

    report = ssm.check_state(Accumulator(None, 2, torch.float64))
    assert report.passed
    assert (report["left padding"].status, report["right padding"].status) == ("not supported", "pass")
    assert report["left padding"].note == "padding on the right only"


def test_rounding_of_a_chaotic_model_is_no_fault():
    torch.manual_seed(0)
    model = nn.RNN(2, 40, batch_first=True)
    with torch.no_grad():
        model.weight_hh_l0.normal_(std=40**-0.5 * 8)
    report = ssm.check_state(model, length=60)
    assert report.passed, str(report)


def test_copies_of_states_share_no_memory():
    state = (torch.randn(2, 3), {"h": [torch.randn(4, dtype=torch.bfloat16)], "n": 3}, np.ones(2))
    for change in (_states.copied, _states.saved, _states.moved):
        other = change(state)
        assert other[1]["n"] == 3
        for (path, a), (same, b) in zip(_states.leaves(state), _states.leaves(other), strict=True):
            assert path == same
            assert a is not b
            assert (a == b).all()
            assert not np.shares_memory(np.asarray(torch.as_tensor(a).float()), np.asarray(torch.as_tensor(b).float()))


def test_mamba_in_chunks_and_right_padding_are_found_and_mamba2_in_chunks_is_right():
    cases = ["step by step", "chunks", "left padding", "right padding", "state saved", "generate"]
    found = {name: ssm.check_state(families.random_model(name), cases=cases) for name in ("mamba", "mamba2")}
    failed = {name: [case.name for case in report.cases if not case.passed] for name, report in found.items()}
    assert failed == {"mamba": ["chunks", "right padding"], "mamba2": ["right padding"]}
    chunks = found["mamba"]["chunks"]
    assert 0.01 < chunks.error < 1.5
    assert (chunks.first, chunks.layer.startswith("backbone.layers.0.")) == (1, True)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mistral"])
def test_no_false_alarm_on_attention(name):
    report = ssm.check_state(hf_models.model(name, torch.float32))
    assert report.passed, str(report)
    supported = {case.name for case in report.cases if case.status == "pass"}
    assert supported == set(CASES) - {"cache mutation"} - ({"right padding"} if name == "mistral" else set())


def test_our_hugging_face_model_is_right():
    from stablessm.models import StableSSMConfig, StableSSMForCausalLM

    model = StableSSMForCausalLM(StableSSMConfig(vocab_size=40, d_model=8, n_layers=2, d_state=4, eos_token_id=0))
    report = ssm.check_state(model)
    assert report.passed, str(report)
    assert {report[name].status for name in ("left padding", "right padding", "packing", "generate")} == {"pass"}


def test_families_are_found_and_small_and_others_refused():
    names = families.names()
    assert {"mamba", "mamba2", "rwkv", "zamba2", "jamba", "qwen3_5", "lfm2"} <= set(names)
    assert not {"llama", "gpt2", "bert"} & set(names)
    before = torch.get_rng_state()
    one, same = families.random_model("falcon-mamba", seed=3), families.random_model("falcon_mamba", seed=3)
    assert torch.equal(torch.get_rng_state(), before)
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), same.parameters(), strict=True))
    with pytest.raises(ArgumentError, match="zamba2"):
        families.random_model("mambo")


def test_the_adapter_does_not_change_the_model():
    model = nn.LSTM(2, 3)
    before = copy.deepcopy(model.state_dict())
    ssm.check_state(model)
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert as_stateful(model).model is model


def test_a_model_with_too_few_positions_says_so():
    import transformers

    config = transformers.GPT2Config(vocab_size=40, n_embd=8, n_layer=1, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config).eval()
    with pytest.raises(ArgumentError, match=r"runs on 3 sequences of 24 steps \(length\)"):
        ssm.check_state(model)
    assert ssm.check_state(model, length=14, cases=["chunks", "generate"]).passed


class _Averages(torch.nn.Module):
    """Two moving averages, one of them scaled; ``kept`` multiplies the returned state."""

    def __init__(self, kept: list[float]) -> None:
        super().__init__()
        self.decay = torch.nn.Parameter(torch.tensor([0.9, 0.8]))
        self.scale, self.kept = torch.tensor([1e5, 1.0]), torch.tensor(kept)

    def forward(self, x, state=None):
        h, outputs = torch.zeros(len(x), 2) if state is None else state, []
        for t in range(x.shape[1]):
            h = self.decay * h + x[:, t]
            outputs.append(h * self.scale)
        return torch.stack(outputs, 1), h * self.kept


def test_an_error_in_a_small_channel_beside_a_large_one_is_found():
    report = ssm.check_state(_Averages([1.0, 0.0]), d_input=2, cases=["chunks"], progress=False)
    assert not report.passed
    assert report["chunks"].error > 0.1
    assert "small channel" in report["chunks"].note
    assert ssm.check_state(_Averages([1.0, 1.0]), d_input=2, cases=["chunks"], progress=False).passed


@pytest.mark.parametrize(
    ("model", "options", "expected"),
    [
        (lambda x, state: (x * float("nan"), torch.zeros(1)), {}, "finite outputs"),
        (lambda x, state: (2 * x, None), {}, "returns a state"),
        (torch.nn.GRU(3, 4), {"tol": float("nan")}, "above 0"),
        (torch.nn.GRU(3, 4), {"cases": "chunks"}, "a list with"),
        (torch.nn.GRU(3, 4), {"cases": []}, "a list with"),
    ],
)
def test_models_and_options_that_can_show_nothing_are_refused(model, options, expected):
    with pytest.raises(ssm.ArgumentError, match=expected):
        ssm.check_state(model, d_input=3, progress=False, **options)


@pytest.mark.parametrize("seed", range(1000, 1012))
def test_random_faults_are_found_and_random_models_without_a_fault_pass(seed):
    """A small part of ``python tests/faulty_states.py 0 1000``."""
    name, right, report = faulty_states.verdict(seed)
    assert report.passed == right, (name, str(report))


@pytest.mark.parametrize("seed", range(1000, 1016))
def test_rare_faults_are_found(seed):
    """A small part of ``python tests/rare_state_faults.py 0 1000``."""
    name, right, report = rare_state_faults.verdict(seed)
    assert report.passed == right, (name, str(report))


@pytest.mark.parametrize("steps", [12, 13, 24, 31])
def test_every_length_is_a_first_chunk_and_a_chunk_from_a_state(steps):
    ways = [[len(feed.rows[0][0]) for feed in plan] for plan in plans.chunks(plans.Shape(2, steps))]
    assert all(sum(way) == steps for way in ways)
    assert {way[0] for way in ways} == set(range(1, steps + 1)) - {steps - 1}  # of which single steps follow
    assert {length for way in ways for length in way[1:]} == set(range(2, steps))
    assert {length for way in ways for length in way[1:-1]} >= set(range(2, steps - 2))


@pytest.mark.parametrize("steps", [12, 24, 37])
@pytest.mark.parametrize("rows", [1, 2, 5])
@pytest.mark.parametrize("make", [plans.padded_twice, plans.restarts, plans.alone])
def test_plans_feed_every_step_of_a_sequence_in_order(make, rows, steps):
    for plan in make(plans.Shape(rows, steps)):
        at: dict[int, tuple[int, int]] = {}
        for feed in plan:
            assert len({sum(map(len, row)) for row in feed.rows}) == 1
            for row, pieces in enumerate(feed.rows):
                for piece in pieces:
                    if piece.sequence == plans.PADDING:
                        continue
                    assert piece.stop <= steps
                    assert piece.start == 0 or at[row] == (piece.sequence, piece.start)
                    at[row] = (piece.sequence, piece.stop)
