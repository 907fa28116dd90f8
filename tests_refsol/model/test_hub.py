"""Where a model is looked for, in which order, and what is said when it is nowhere. No test needs a network."""

import shutil
from pathlib import Path

import pytest
from huggingface_hub import constants
from huggingface_hub.utils import filter_repo_objects

from tiny_llm_engine.models import hub
from tiny_llm_engine.models.files import CheckpointError
from tiny_llm_engine.models.hub import model_path
from tiny_llm_engine.models.safetensors_folder import weight_files
from tiny_llm_engine.models.smollm2 import GGUF, smollm2_path

COMMIT = "0" * 40
ON_THE_HUB = ["config.json", "generation_config.json", "tokenizer.json", "tokenizer_config.json"]
ON_THE_HUB += ["chat_template.jinja", "additional_chat_templates/tool_use.jinja"]
ON_THE_HUB += ["model.safetensors.index.json", *(f"model-0000{i}-of-00002.safetensors" for i in (1, 2))]
LEFT_THERE = ["pytorch_model.bin", "model.pt", "onnx/config.json", "original/model.safetensors"]
LEFT_THERE += ["assets/config.json", "adapter/model.safetensors", "README.md", "run.py"]


@pytest.fixture
def shipped(tmp_path_factory, folder, monkeypatch) -> Path:
    """A repository that ships one model, `pocket`, and has another folder beside it."""
    models = tmp_path_factory.mktemp("models")
    shutil.copytree(folder, models / "pocket")
    (models / "train").mkdir()
    monkeypatch.setattr(hub, "MODELS", models)
    return models


@pytest.fixture
def cache(tmp_path_factory, folder, monkeypatch) -> Path:
    """The hub's cache with one model, `org/name`, on a machine that is offline; returns its snapshot."""
    root = tmp_path_factory.mktemp("cache")
    model = root / "models--org--name"
    shutil.copytree(folder, model / "snapshots" / COMMIT)
    (model / "refs").mkdir()
    (model / "refs" / "main").write_text(COMMIT, encoding="utf-8")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(root))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return model / "snapshots" / COMMIT


def test_a_shipped_name_comes_first(shipped, monkeypatch, tmp_path):
    (tmp_path / "pocket").mkdir()
    monkeypatch.chdir(tmp_path)
    assert model_path("pocket") == shipped / "pocket"
    assert model_path("./pocket") == Path("pocket")


def test_a_real_model_by_name_and_before_it_is_there_the_line_that_gets_it(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    (tmp_path / "smollm2").mkdir()
    monkeypatch.chdir(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        model_path("smollm2")
    line = "model 'smollm2': not on this machine yet: run `pdm run get-model smollm2` (93 MB, once)"
    assert str(caught.value) == line
    smollm2_path().parent.mkdir(parents=True)
    with smollm2_path().open("wb") as file:
        file.truncate(GGUF.bytes)
    assert model_path("smollm2") == smollm2_path()


def test_a_folder_by_text_or_path(folder, monkeypatch):
    assert model_path(folder) == model_path(str(folder)) == folder
    monkeypatch.setenv("HOME", str(folder.parent))
    assert model_path(f"~/{folder.name}") == folder


def test_a_name_that_is_nothing(shipped):
    with pytest.raises(CheckpointError) as caught:
        model_path("pockt")
    assert str(caught.value) == (
        "model 'pockt': no such folder; give a shipped model (pocket), smollm2 (after `pdm run get-model smollm2`), "
        "the path of a folder or of a GGUF file, or a hub id like Qwen/Qwen3-0.6B"
    )


@pytest.mark.parametrize(
    "name", ["", "..", "train", "/nowhere/at/all", "a/b/c", "../models", "org/na me", "org/\n", "~nobody/x"]
)
def test_an_odd_name_never_reaches_the_hub(shipped, monkeypatch, tmp_path, name):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(hub, "_hub_folder", None)
    try:
        assert model_path(name).is_dir()
    except CheckpointError as error:
        assert len(str(error).splitlines()) == 1


def test_the_cache_is_enough_offline(cache):
    assert model_path("org/name") == cache


def test_the_cache_is_asked_before_the_network(cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(hub, "_downloaded", None)
    assert model_path("org/name") == cache


@pytest.mark.parametrize("missing", ["config.json", "tokenizer.json", "model.safetensors"])
def test_an_interrupted_download_is_taken_up(cache, monkeypatch, missing):
    (cache / missing).unlink()
    asked = []
    monkeypatch.setattr(hub, "_downloaded", lambda hub_id: asked.append(hub_id) or cache)
    assert model_path("org/name") == cache
    assert asked == ["org/name"]


NOT_HERE = (
    "model 'org/other': not on this machine, and not downloaded: "
    "connect to the network and unset HF_HUB_OFFLINE, or use a shipped model (pocket) ["
)


def test_offline_and_not_in_the_cache(shipped, cache):
    with pytest.raises(CheckpointError) as caught:
        model_path("org/other")
    assert str(caught.value).startswith(NOT_HERE)
    assert len(str(caught.value).splitlines()) == 1


def test_a_name_that_the_hub_does_not_allow(shipped, cache):
    with pytest.raises(CheckpointError, match="HFValidationError") as caught:
        model_path("org/two--dashes")
    assert len(str(caught.value).splitlines()) == 1


def test_no_hub_at_the_other_end(shipped, cache, monkeypatch):
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:9")
    with pytest.raises(CheckpointError) as caught:
        model_path("org/other")
    assert str(caught.value).startswith(NOT_HERE) and "Connection refused" in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_only_what_is_read_is_downloaded():
    wanted = filter_repo_objects(
        ON_THE_HUB + LEFT_THERE, allow_patterns=hub.WANTED_FILES, ignore_patterns=hub.UNWANTED_FILES
    )
    assert list(wanted) == ON_THE_HUB


def test_a_folder_with_pickles_alone_is_refused_unopened(folder, tmp_path):
    (folder / "model.safetensors").unlink()
    proof = tmp_path / "it ran"
    # A pickle that creates a file when it is loaded.
    (folder / "pytorch_model.bin").write_bytes(b"cbuiltins\nopen\n(V" + str(proof).encode() + b"\nVw\ntR.")
    with pytest.raises(CheckpointError, match="a pickle, which may run any code"):
        weight_files(folder)
    assert not proof.exists()
