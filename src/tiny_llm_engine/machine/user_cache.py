"""Our folder in the user's cache folder, for what can be made again.

Compiled files there have a checksum in their name: loading a library of which half is missing would end the process.
"""

import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path


def user_cache() -> Path:
    """The folder, which may not exist yet.

    Raises:
        OSError: this user has no home.
    """
    from platformdirs import user_cache_path  # here: `pdm run doctor` answers where nothing is installed yet

    folder = user_cache_path("tiny-llm", appauthor=False)
    if not folder.is_absolute():
        raise OSError("this user has no home folder")
    return folder


def with_checksum(stem: Path, content: bytes) -> Path:
    """The name that a library with this content is kept under."""
    return stem.with_name(f"{stem.name}-{zlib.crc32(content):08x}.so")


def whole_copies(stem: Path) -> Iterator[Path]:
    """The kept libraries whose checksum fits their name."""
    for copy in stem.parent.glob(f"{stem.name}-*.so"):
        with suppress(OSError):  # removed meanwhile, or another user's
            if copy == with_checksum(stem, copy.read_bytes()):
                yield copy
