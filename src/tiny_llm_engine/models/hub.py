"""Finds a model's files: in the repository, in a folder or GGUF file, or on the Hugging Face hub. Reads no weights."""

import os
import re
from pathlib import Path

import huggingface_hub  # loads its parts at their first use, so a shipped model does not pay for them

from ..machine.repo import MODELS
from .files import CheckpointError, shown
from .formats import FORMATS, ModelFiles
from .model_files import ModelFolder
from .safetensors_folder import weight_files
from .smollm2 import GET, NAME, fetched_smollm2

MIXTURE = "tiny-qwen3-moe"  # shipped by the repository alone
# Only the files that we read. A pickle runs code when it is loaded, so it is not even downloaded; subfolders hold other
# formats of the same weights, often larger than the model. All but `additional_chat_templates` are left out, by their
# first letters: the hub's client has no patterns for all but one.
WANTED_FILES = ["*.json", "*.jinja", "model*.safetensors"]
UNWANTED_FILES = ["[!a]*/*", "a[!d]*/*", "ad[!d]*/*", "add*/*[!a]"]


def shipped_models() -> list[str]:
    """Names of the models that came with the repository."""
    return sorted(file.parent.name for file in MODELS.glob("*/config.json"))


def find_model(model: str | os.PathLike[str]) -> ModelFiles:
    """The files of a model; none of them has been read, but the header of a GGUF file.

    Args:
        model: as for `model_path`.

    Raises:
        CheckpointError: there is no such model, it cannot be downloaded, or the GGUF file is broken.
    """
    path = model_path(model)
    return ModelFolder(path) if path.is_dir() else FORMATS[path.suffix](path)


def model_path(model: str | os.PathLike[str]) -> Path:
    """The folder of a model's files, or its GGUF file.

    Args:
        model: "smollm2", a shipped name ("tiny-qwen3"), a local folder or GGUF file, or a hub id ("Qwen/Qwen3-0.6B"),
            tried in this order. A hub model is downloaded once, with a progress bar; after that no network is needed.

    Raises:
        CheckpointError: there is no such model, or it cannot be downloaded.
    """
    name = os.fspath(model)
    if name == NAME:
        return fetched_smollm2()
    if name in shipped_models():
        return MODELS / name
    local = Path(os.path.expanduser(name))
    if local.is_dir() or local.suffix in FORMATS:
        return local
    if re.fullmatch(r"\w[\w.-]*/\w[\w.-]*", name):
        return _hub_folder(name)
    if name == MIXTURE:  # too large for a wheel that everybody downloads
        raise CheckpointError(
            f"model {name}: it is not in the wheel, but in `models/{name}` of the repository"
        )
    raise CheckpointError(
        f"model {shown(name)}: no such folder; give a shipped model ({', '.join(shipped_models())}), {NAME} (after "
        f"`{GET}`), the path of a folder or of a GGUF file, or a hub id like Qwen/Qwen3-0.6B"
    )


def _hub_folder(hub_id: str) -> Path:
    # The cache first: the hub's client would use the network even for a model that is cached.
    return _cached(hub_id) or _downloaded(hub_id)


def _cached(hub_id: str) -> Path | None:
    """The model's folder in the hub's cache, or None if a file is missing, as after an interrupted download."""
    try:
        folder = _snapshot(hub_id, local_files_only=True)
        weight_files(folder)
    except (huggingface_hub.errors.LocalEntryNotFoundError, ValueError):
        return None
    return folder if all((folder / name).is_file() for name in ("config.json", "tokenizer.json")) else None


def _downloaded(hub_id: str) -> Path:
    try:
        return _snapshot(hub_id, local_files_only=False)
    except huggingface_hub.errors.GatedRepoError:
        problem = f"its owner asks for consent: give it on https://huggingface.co/{hub_id}, then run `hf auth login`"
    except huggingface_hub.errors.RepositoryNotFoundError:
        problem = "no folder of that name here, and no such model on the hub: check the spelling"
    except Exception as error:
        # The HTTP library, and so the exception, differs between versions of the hub's client.
        problem = (
            "not on this machine, and not downloaded: connect to the network and unset HF_HUB_OFFLINE, or use a "
            f"shipped model ({', '.join(shipped_models())}) [{type(error).__name__}: {shown(str(error))}]"
        )
    raise CheckpointError(f"model {shown(hub_id)}: {problem}")


def _snapshot(hub_id: str, local_files_only: bool) -> Path:
    return Path(
        huggingface_hub.snapshot_download(
            hub_id,
            allow_patterns=WANTED_FILES,
            ignore_patterns=UNWANTED_FILES,
            local_files_only=local_files_only,
        )
    )
