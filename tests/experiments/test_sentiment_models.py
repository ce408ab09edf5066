from __future__ import annotations

import dataclasses
import os

os.environ.setdefault("HF_HUB_OFFLINE", "1")

import numpy as np
import pytest
import torch

from stablessm import ArgumentError
from stablessm.experiments.frame import run as run_module
from stablessm.experiments.frame.run import Run
from stablessm.experiments.iat import sentiment_memory, sentiment_training
from stablessm.experiments.iat.fig6.experiment import EXPERIMENT, subjects
from stablessm.experiments.iat.sentiment_memory import accuracies, asked, fluctuation, late, memories, study, trained
from stablessm.experiments.iat.sentiment_models import TINY, WordLSTM, bert, bert_source
from stablessm.experiments.iat.sentiment_text import reviews
from stablessm.experiments.iat.sentiment_training import Fitting, accuracy, batches, fit, load
from stablessm.instruments import MemoryCurve
from stablessm.tasks.corpus import Corpus, word_corpus

ARCHITECTURES = ("LSTM", "BiLSTM", "stacked BiLSTM")
OPTIONS = Fitting(epochs=2, batch=16, lr=0.01, weight_decay=0.01, clip=0.1, device="cpu")


def corpus(closed=False) -> Corpus:
    return word_corpus(*reviews("synthetic", 80), 64, 16, closed=closed)


def model(name):
    torch.manual_seed(0)
    if name == TINY:
        return bert(TINY, 64)
    return WordLSTM(name, words=64, embedding=6, hidden=5, dropout=0.2)


@pytest.mark.parametrize("name", [*ARCHITECTURES, TINY])
def test_padding_changes_no_score(name):
    found = model(name).double().eval()
    ids = torch.randint(1, 64, (3, 9), generator=torch.Generator().manual_seed(0))
    lengths = torch.tensor([9, 4, 1])
    padded = torch.where(torch.arange(9) < lengths[:, None], ids, 0)
    alone = torch.cat([found(ids[i : i + 1, :n]) for i, n in enumerate(lengths)])
    torch.testing.assert_close(found(padded, lengths), alone)


@pytest.mark.parametrize("name", [*ARCHITECTURES, TINY])
def test_memory_is_the_difference_of_scores_of_repeats(name):
    read = corpus(closed=name == TINY)
    found, end = model(name), [read.end] if read.end is not None else []
    curve = asked(found, read, ["good", "ha"], 7)
    assert curve.inputs == ("good", "ha")
    (word,) = read.ids(["ha"])
    found.double().eval()
    with torch.no_grad():
        scores = [found(torch.tensor([[read.start, *[word] * k, *end]])) for k in range(8)]
    np.testing.assert_allclose(curve.of("ha").value, torch.cat(scores).diff().abs(), atol=1e-13)


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_an_lstm_is_that_of_torch(name):
    """With packed sequences, which say what padding, directions and layers mean."""
    found = model(name).double().eval()
    directions, layers = 1 + (name != "LSTM"), 1 + name.startswith("stacked")
    twin = torch.nn.LSTM(6, 5, layers, batch_first=True, bidirectional=directions == 2).double()
    with torch.no_grad():
        for k, layer in enumerate(found.layers):
            for suffix, lstm in zip(("", "_reverse"), layer, strict=False):
                for key, value in lstm.named_parameters():
                    getattr(twin, key.replace("l0", f"l{k}") + suffix).copy_(value)
        ids = torch.randint(1, 64, (4, 9), generator=torch.Generator().manual_seed(0))
        lengths = torch.tensor([9, 4, 1, 6])
        packed = torch.nn.utils.rnn.pack_padded_sequence(
            found.embedding(ids), lengths, batch_first=True, enforce_sorted=False
        )
        last = twin(packed)[1][0][-directions:]
        torch.testing.assert_close(found(ids, lengths), found.score(torch.cat(list(last), -1))[:, 0])


def test_an_architecture_that_is_not_there():
    with pytest.raises(ArgumentError, match="architecture: expected one of LSTM, BiLSTM, stacked BiLSTM"):
        WordLSTM("GRU", words=9, embedding=2, hidden=2, dropout=0.0)


@pytest.mark.parametrize("name", ["stacked BiLSTM", TINY])
def test_killed_and_resumed_to_the_same_bits(name, tmp_path, monkeypatch):
    monkeypatch.setattr(run_module, "CHECKPOINT_SECONDS", 0.0)
    read, inner = corpus(), sentiment_training._tensors

    def attempt(folder, lives):
        calls = 0

        def dying(reviews, index, device):
            nonlocal calls
            calls += reviews is read.train
            if calls > lives:
                raise KeyboardInterrupt
            return inner(reviews, index, device)

        monkeypatch.setattr(sentiment_training, "_tensors", dying)
        run = Run(tmp_path / folder, {}, progress=False)
        return run.stage("weights", lambda: fit(run, "weights", model(name), read, OPTIONS, seed=3))

    whole = attempt("whole", 100)
    for lives in (1, 2, 4):
        with pytest.raises(KeyboardInterrupt):
            attempt("killed", lives)
    killed = attempt("killed", 100)
    assert whole.keys() == killed.keys() >= {"losses", "valid"}
    for key in whole:
        np.testing.assert_array_equal(whole[key], killed[key], err_msg=key)
    assert len(whole["losses"]) == 2 * -(-len(read.train) // 16)
    again = load(model(name), whole)
    assert accuracy(again, read.valid, 3) == pytest.approx(whole["valid"][-1])


def test_training_is_repeatable_and_leaves_no_trace(tmp_path):
    read, found = corpus(), []
    for i, seed in enumerate((0, 0, 1)):
        untrained = model("LSTM")
        before = torch.get_rng_state()
        found.append(fit(Run(tmp_path / str(i), {}, progress=False), "w", untrained, read, OPTIONS, seed=seed))
        assert torch.equal(torch.get_rng_state(), before)
    np.testing.assert_array_equal(found[0]["losses"], found[1]["losses"])
    assert not np.array_equal(found[0]["losses"], found[2]["losses"])
    assert not torch.are_deterministic_algorithms_enabled()


def test_batches_have_every_review_once_and_like_lengths():
    read = word_corpus(*reviews("synthetic", 400), 64, 30).train
    for epoch in (0, 1):
        found = batches(read, 16, seed=0, epoch=epoch)
        assert sorted(np.concatenate(found).tolist()) == list(range(len(read)))
        spread = np.mean([np.ptp(read.lengths[batch]) for batch in found])
        assert spread < np.ptp(read.lengths) / 4
    assert not np.array_equal(batches(read, 16, 0, 0)[0], batches(read, 16, 0, 1)[0])


CONFIG = dataclasses.replace(EXPERIMENT.config("smoke"), architectures=("LSTM",), horizon=20, lag=10)


def test_what_is_kept_needs_no_weights_and_wrong_words_no_training(tmp_path, monkeypatch):
    run = Run(tmp_path, {}, progress=False)
    with pytest.raises(ArgumentError, match="such as 'good'"):
        study(dataclasses.replace(CONFIG, words=("goood",)), run, subjects(CONFIG, run))
    assert not [name for name in run.stages() if name.startswith("weights")]
    study(CONFIG, run, subjects(CONFIG, run))
    curves = memories(CONFIG, run, ["BERT"])["BERT"]
    assert accuracies(CONFIG, run, "LSTM")[0] > 0.75
    lstm = subjects(CONFIG, run)[0]
    other = asked(trained(run, lstm, 0), lstm.corpus(), ["boring", "good"], 20)  # another word, no training
    np.testing.assert_array_equal(other.of("good").value, memories(CONFIG, run, ["LSTM"])["LSTM"][0].of("good").value)
    for path in (*tmp_path.glob("weights-*"), *tmp_path.glob("reviews*")):
        path.unlink()
    monkeypatch.setattr(sentiment_memory, "fit", None)
    study(CONFIG, run, subjects(CONFIG, run))
    np.testing.assert_array_equal(memories(CONFIG, run, ["BERT"])["BERT"][0].value, curves[0].value)


def test_late_memory_and_fluctuation():
    t = np.arange(200.0)
    falling, waves = MemoryCurve(t, np.exp(-t / 9)), MemoryCurve(t, np.exp(-t / 9) * (2 + np.cos(t)))
    assert fluctuation(falling) == pytest.approx(0, abs=1e-12)
    assert fluctuation(waves) > 0.1
    assert fluctuation(MemoryCurve(t, np.zeros(200))) == 0
    assert fluctuation(MemoryCurve(t, np.where(t < 100, 1.0, 1e-9 * (1 + t % 2)), floor=1e-6)) == 0
    assert late(falling, 50) == pytest.approx(np.exp(-50 / 9))


def test_names_of_berts(tmp_path, monkeypatch):
    package = tmp_path / "some_bert" / "model"
    package.mkdir(parents=True)
    (tmp_path / "some_bert" / "__init__.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    assert bert_source("some-bert") == "some-bert"
    bert(TINY, 64).model.save_pretrained(package)
    assert bert_source("some-bert") == str(package)
    assert bert("some-bert", 0).model.config.vocab_size == 64
    with pytest.raises(ArgumentError, match="bert: expected 'tiny', a folder, an installed package"):
        bert("nobody/no-such-bert", 64)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"horizon": 127}, "horizon: expected at most the 126 repeats that BERT can read, got 127"),
        ({"lag": 60}, "lag: expected from 1 to below the horizon of 60"),
        ({"seeds": 0}, "seeds: expected at least 1"),
        ({"architectures": ()}, "architectures: expected at least one"),
        ({"dropout": 2.0}, "dropout: expected a number from 0 to below 1"),
    ],
)
def test_settings_that_cannot_work_are_refused_before_training(changes, message, tmp_path):
    def attempt() -> None:
        config = dataclasses.replace(EXPERIMENT.config("smoke"), **changes)
        EXPERIMENT.run(config, Run(tmp_path, dataclasses.asdict(config), progress=False))

    with pytest.raises(ArgumentError, match=message):
        attempt()
    assert not list(tmp_path.glob("weights-*"))


def test_nothing_is_left_of_no_memory():
    zeros = MemoryCurve(np.arange(8.0), np.zeros(8))
    assert late(zeros, 2) == 0
    assert late(MemoryCurve(np.arange(8.0), np.array([0.0, 0, 0, 0, 2, 0, 0, 0])), 2) == 0
    assert late(MemoryCurve(np.arange(8.0), np.array([4.0, 0, 1, 0, 2, 0, 0, 0])), 2) == 0.25
