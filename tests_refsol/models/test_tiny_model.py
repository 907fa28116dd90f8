"""The shipped models as products: their files, how they were made, what they answer."""

import hashlib
import json
import math
from types import SimpleNamespace

import pytest

from models.eval.evaluation import exact_answers, generates_exactly
from models.eval.evaluation_cases import Suite, make_suites, read_material
from models.eval.questions import read_corpus
from tiny_llm_engine.machine.repo import MODELS
from tiny_llm_engine.models.tokenizer import load_tokenizer

# Training, and transformers as a judge, both need torch.
pytestmark = pytest.mark.port("torch")

MODEL, MIXTURE, TRAIN = MODELS / "tiny-qwen3", MODELS / "tiny-qwen3-moe", MODELS / "train"
FILES = {"README.md", "config.json", "generation_config.json", "model.safetensors"}
FILES |= {"tokenizer.json", "tokenizer_config.json", "training_log.json"}
QUESTIONS = read_corpus(TRAIN)
NAMES = (TRAIN / "names.txt").read_text(encoding="utf-8").split()
TOKENIZER = load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def training():
    """The modules of models/train, which need torch."""
    from models.train import card, pipeline, train

    return {"card": card, "pipeline": pipeline, "train": train}


@pytest.fixture(scope="module", params=[MODEL, MIXTURE], ids=["dense", "mixture"])
def folder(request):
    return request.param


@pytest.fixture
def log(folder):
    return json.loads((folder / "training_log.json").read_text(encoding="utf-8"))


@pytest.fixture(scope="module")
def oracle():
    return oracle_of(MODEL)


def oracle_of(folder):
    from models.eval.evaluated_models import oracle_logits

    return oracle_logits("fp32", str(folder))


# --- files ---------------------------------------------------------------------------------------------------------


def test_the_folders_are_whole_and_small():
    files = {path: path.stat().st_size for path in (*MODEL.iterdir(), *MIXTURE.iterdir())}
    assert set(files) == {folder / name for folder in (MODEL, MIXTURE) for name in FILES}
    assert sum(files.values()) < 9_000_000


@pytest.mark.parametrize(
    ("folder", "kind"), [(MODEL, "Qwen3"), (MIXTURE, "Qwen3Moe")], ids=["dense", "mixture"]
)
def test_config_is_of_its_kind_with_a_vocabulary_that_splits_evenly(folder, kind):
    config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    assert config["architectures"] == [f"{kind}ForCausalLM"]
    assert config["model_type"].replace("_", "") == kind.lower()
    assert config["vocab_size"] % 64 == 0 and TOKENIZER.vocab_size <= config["vocab_size"]


def test_weights_are_bf16(folder):
    from safetensors import safe_open

    with safe_open(folder / "model.safetensors", framework="numpy") as tensors:
        assert {tensors.get_slice(name).get_dtype() for name in tensors.keys()} == {"BF16"}  # noqa: SIM118


def test_the_card_says_what_the_log_says(training, folder, log):
    assert (folder / "README.md").read_text(encoding="utf-8") == training["card"].card(log)


def test_the_log_is_of_this_corpus_and_meets_every_target(training, log):
    from models.train.training_log import corpus_digest

    material = training["pipeline"].Material(None, QUESTIONS, NAMES)
    says = "the corpus changed: run `pdm run train-tiny-model`"
    assert log["corpus_sha256"] == corpus_digest(material), says
    pipeline = training["pipeline"]
    assert log["steps"] == (pipeline.MIXTURE_STEPS if log.get("mixture") else pipeline.STEPS)
    for figures in log["evaluation"].values():
        for name, suite in figures.items():
            if suite["target"] is not None:
                misses = suite["cases"] - suite["exact"]
                assert misses <= max(1, suite["cases"] * (1 - suite["target"])), name


# --- answers -------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def suites() -> dict[str, Suite]:
    made = make_suites(read_material(TRAIN, TOKENIZER), count=12, every_question=False, seed=1)
    return {suite.name: suite for suite in made}


@pytest.mark.parametrize("name", ["questions as in training", "look-ups, 20 lines", "look-ups, 100 lines"])
def test_transformers_gives_the_expected_answers(oracle, suites, name):
    assert sum(exact_answers(oracle, suites[name].cases)) >= len(suites[name].cases) - 1


def test_transformers_gives_the_answers_of_the_mixture(suites):
    oracle = oracle_of(MIXTURE)
    for name in ("questions as in training", "look-ups, 20 lines"):
        assert sum(exact_answers(oracle, suites[name].cases)) >= len(suites[name].cases) - 1, name


def test_one_forward_pass_judges_as_step_by_step_decoding_does(oracle, suites):
    cases = (*suites["questions, unseen paraphrases"].cases[:2], *suites["absent names, 20 lines"].cases[:2])
    assert exact_answers(oracle, cases) == [generates_exactly(oracle, case) for case in cases]


def test_a_model_that_forgets_the_first_half_loses_its_look_ups(oracle, suites):
    def forgetful(ids):
        half = len(ids[0]) // 2
        return oracle([[0] * half + row[half:] for row in ids])

    cases = suites["look-ups, 100 lines"].cases
    assert sum(exact_answers(forgetful, cases)) <= len(cases) * 0.8


# --- training ------------------------------------------------------------------------------------------------------


def test_the_offset_heads_prefer_their_own_distance_to_every_other(training):
    from models.train import circuit

    def score(weights, distance):
        return sum(w * math.cos(1e6 ** (-i / 32) * distance) for i, w in enumerate(weights))

    others = [d for d in range(4097) if d != 2]
    assert min(score(circuit.EXACT, 0) - score(circuit.EXACT, d - 2) for d in others) > 0.26
    window = [score(circuit.WINDOW, d - 6.5) for d in range(4097)]
    assert min(window[d] - max(window[max(11, d + 4) :]) for d in range(5, 9)) > 0.41


def test_the_shipped_tokenizer_is_the_one_that_training_builds(training):
    built = training["pipeline"].read_material().tokenizer
    assert json.loads((MODEL / "tokenizer.json").read_text(encoding="utf-8")) == json.loads(built.to_str())
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (MODEL / name).read_bytes() == (MIXTURE / name).read_bytes()


def test_the_circuit_looks_up_before_any_training(training, suites):
    """The first token of the answer alone: that it ends there has yet to be learned."""
    import torch

    from models.train.new_model import new_model

    model = new_model(training["pipeline"].read_material().tokenizer, NAMES, seed=0).requires_grad_(False)
    right = 0
    for case in suites["look-ups, 50 lines"].cases:
        start, _ = case.answers[0]
        right += (
            model(torch.tensor([case.tokens[:start]])).logits[0, -1].argmax().item() == case.tokens[start]
        )
    assert right >= len(suites["look-ups, 50 lines"].cases) - 1


def test_each_layer_is_balanced_by_itself(training):
    """Two layers that each use one of two experts are not even because they use different ones."""
    import torch

    from models.train.balance import balance_loss

    config = SimpleNamespace(num_experts=2, num_experts_per_tok=1, router_aux_loss_coef=0.5)
    first, second = (torch.tensor([row] * 6) for row in ([9.0, -9.0], [-9.0, 9.0]))
    even = torch.cat((first, second))
    assert balance_loss([even, even], config).item() == pytest.approx(0.5)
    assert balance_loss([first, second], config).item() == pytest.approx(1.0)
    assert balance_loss([even, first], config).item() == pytest.approx(0.75), "the mean of the layers"
    assert balance_loss([], config).item() == 0


def test_training_balances_the_experts(training):
    """With another coefficient of the loss the routers learn something else from the same batches."""
    import torch

    from models.train.loop import train
    from models.train.new_model import new_model

    tokenizer = training["pipeline"].read_material().tokenizer
    batch = torch.arange(64).view(2, 32), torch.arange(64).view(2, 32)
    routers = []
    for coefficient in (0.0, 1.0):
        model = new_model(tokenizer, NAMES, seed=0, mixture=True)
        model.config.router_aux_loss_coef = coefficient
        train(model, iter([batch] * 2), 2, lambda step, loss: None)
        routers.append(model.model.layers[1].mlp.gate.weight.detach())
    assert not torch.equal(*routers)


def test_experts_are_written_one_by_one_under_their_published_names(training):
    import torch

    from models.train.published_tensors import published_tensors

    stack = torch.arange(24.0).view(2, 4, 3)
    found = dict(published_tensors("mlp.experts.gate_up_proj", stack))
    wanted = {f"mlp.experts.{x}.{kind}_proj.weight" for x in (0, 1) for kind in ("gate", "up")}
    assert set(found) == wanted and found["mlp.experts.1.up_proj.weight"].equal(stack[1, 2:])
    assert dict(published_tensors("mlp.down_proj.weight", stack[0])).keys() == {"mlp.down_proj.weight"}


def trial(forks, out, steps: int) -> list[str]:
    done = forks.run("tests_refsol.models.spied_training", "--steps", str(steps), "--out", str(out))
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_training_never_opens_the_held_out_questions(forks, tmp_path):
    """A process of its own: the spy must see all that it opens."""
    opened = trial(forks, tmp_path / "a", steps=1)
    assert str(TRAIN / "corpus" / "scheduling.md") in opened, "the spy sees what is opened"
    assert [path for path in opened if "heldout" in path] == []
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES


@pytest.mark.long
def test_training_is_deterministic_and_never_opens_the_held_out_questions(forks, tmp_path):
    opened = trial(forks, tmp_path / "a", steps=3) + trial(forks, tmp_path / "b", steps=3)
    assert str(TRAIN / "corpus" / "scheduling.md") in opened, "the spy sees what is opened"
    assert [path for path in opened if "heldout" in path] == []
    digests = {hashlib.sha256((tmp_path / name / "model.safetensors").read_bytes()).digest() for name in "ab"}
    assert len(digests) == 1
    assert {path.name for path in (tmp_path / "a").iterdir()} == FILES


def test_no_training_file_names_the_held_out_file():
    assert [path.name for path in TRAIN.glob("*.py") if "heldout" in path.read_text(encoding="utf-8")] == []


def test_a_failed_training_leaves_the_old_model_alone(training, tmp_path):
    from models.train.replace_folder import replacing

    target = tmp_path / "model"
    target.mkdir()
    (target / "weights").write_text("old", encoding="utf-8")
    with pytest.raises(RuntimeError), replacing(target) as folder:
        (folder / "weights").write_text("half", encoding="utf-8")
        raise RuntimeError
    assert (target / "weights").read_text(encoding="utf-8") == "old" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("options", [["--steps", "1"], ["--steps", "1", "--mixture"]])
def test_a_trial_never_replaces_a_shipped_model(training, options, capsys):
    with pytest.raises(SystemExit):
        training["train"].main(options)
    assert "--out" in capsys.readouterr().err
