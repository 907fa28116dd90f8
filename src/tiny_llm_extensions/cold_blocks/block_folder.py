"""KV blocks in a folder of the user's: a file each, with a sum over its bytes, written and read in the background."""

import logging
import os
import time
import zlib
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import suppress
from pathlib import Path

LOG = logging.getLogger(__name__)
SUFFIX, PART = ".kv", ".part"
SUM_BYTES = 4
MOST_WRITES = 16  # blocks on their way; while the disk is that far behind, blocks are dropped
MOST_READS = 64  # blocks that were read, and wait for their copy
WAIT_SECONDS = 0.01
OLD_SECONDS = 600.0  # of a file that nobody writes any more


class BlockFolder:
    """The blocks of one model in a folder. Several engines may use it at the same time.

    A file is complete or is not there: it is written under another name, and renamed. One that cannot be read, or whose
    sum is wrong, is deleted, and counts as not there. When nothing can be written, one line says why, and blocks are
    dropped from then on.

    Args:
        folder: an existing folder that the user has chosen.
        model: names the model and all that its keys and values depend on; each name has a folder of its own.
        block_bytes: the size of a block in bytes.

    Attributes:
        read_seconds: what the last block took.
    """

    def __init__(self, folder: Path, model: str, block_bytes: int):
        self.path, self.block_bytes, self.read_seconds = folder / model, block_bytes, 0.0
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)  # texts can be won back from keys and values
        self._delete_parts()
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="blocks")
        self._reads: dict[bytes, Future[bytearray | None]] = {}
        self._planned: dict[bytes, bytearray] = {}  # blocks that were read, and whose copy is planned
        self._num_begun = self._num_written = 0  # each of them belongs to one thread
        self._failure = ""

    def digests(self) -> list[bytes]:
        """The blocks that are there, the oldest first."""
        files = []
        for file in self.path.iterdir():
            with suppress(FileNotFoundError):  # another engine has deleted it meanwhile
                if is_block(file.name):
                    files.append((file.stat().st_mtime, file.name))
        return [bytes.fromhex(name[: -len(SUFFIX)]) for _, name in sorted(files)]

    def newest(self, count: int) -> list[bytes]:
        """The newest blocks, the oldest of them first. Deletes the others."""
        digests = self.digests()
        excess = max(0, len(digests) - count)
        for digest in digests[:excess]:
            self.delete(digest)
        return digests[excess:]

    def write(self, digest: bytes, data: memoryview) -> None:
        """Begins to write a block, from a copy: its memory is free at once."""
        if not self._failure and self._num_begun - self._num_written < MOST_WRITES:
            self._num_begun += 1
            self._worker.submit(self._write, digest, bytes(data))

    def delete(self, digest: bytes) -> None:
        """Deletes a block, after what was begun before."""
        self._planned.pop(digest, None)
        self._worker.submit(self._file(digest).unlink, missing_ok=True)

    def clear(self) -> None:
        """Deletes all blocks, and forgets those that were read."""
        self._reads.clear()
        self._planned.clear()
        for digest in self.digests():
            self.delete(digest)

    def fetch(self, digest: bytes) -> None:
        """Begins to read a block, unless that has begun. See `BlockReader`."""
        if digest not in self._reads:
            self._reads[digest] = self._worker.submit(self._read, digest)
        if len(self._reads) > MOST_READS:  # requests that have ended wanted them
            self._reads.pop(next(iter(self._reads)))

    def fetched(self, digest: bytes) -> bool | None:
        """See `BlockReader`."""
        read = self._reads.get(digest)
        if read is None or not read.done():
            return None
        data = self._reads.pop(digest).result()
        if data is not None:
            self._planned[digest] = data
        return data is not None

    def wait(self) -> None:
        """See `BlockReader`."""
        wait([read for read in self._reads.values() if not read.done()], WAIT_SECONDS)

    def take(self, digest: bytes) -> bytearray:
        """See `BlockReader`. Of two copies that are planned, the second one reads the file again."""
        data = self._planned.pop(digest, None) or self._read(digest)
        if data is None:
            raise OSError(f"{self._file(digest)} cannot be read any more")
        return data

    def close(self) -> None:
        """Returns when all that was begun is written."""
        self._worker.shutdown()

    # On the worker's thread.

    def _write(self, digest: bytes, data: bytes) -> None:
        file = self._file(digest)
        part = file.with_suffix(f".{os.getpid()}-{id(self)}{PART}")
        try:
            if not self._failure:
                with part.open("wb") as opened:
                    opened.writelines((sum_of(digest, data), data))
                part.replace(file)
        except OSError as error:
            self._failure = f"no KV blocks are written to {self.path} any more: {error.strerror or error}"
            LOG.warning(self._failure)
            with suppress(OSError):
                part.unlink()
        finally:
            self._num_written += 1

    def _read(self, digest: bytes) -> bytearray | None:
        start, file, data = time.perf_counter(), self._file(digest), bytearray(self.block_bytes)
        try:
            with file.open("rb") as opened:
                expected = opened.read(SUM_BYTES)
                size = opened.readinto(data)
        except OSError:
            return None
        if size < self.block_bytes or sum_of(digest, data) != expected:
            LOG.warning(f"{file} was damaged: it is deleted, and its tokens are computed again")
            with suppress(OSError):
                file.unlink()
            return None
        self.read_seconds = time.perf_counter() - start
        return data

    def _delete_parts(self) -> None:
        """Deletes what a process has left that was killed while it wrote."""
        for part in self.path.glob(f"*{PART}"):
            with suppress(OSError):  # another engine may be faster
                if time.time() - part.stat().st_mtime > OLD_SECONDS:
                    part.unlink()

    def _file(self, digest: bytes) -> Path:
        return self.path / f"{digest.hex()}{SUFFIX}"


def sum_of(digest: bytes, data: bytes | bytearray) -> bytes:
    """The sum over a block and the name of its text."""
    return zlib.crc32(data, zlib.crc32(digest)).to_bytes(SUM_BYTES, "little")


def is_block(name: str) -> bool:
    """Whether a file's name is that of a block."""
    stem, dot, suffix = name.partition(".")
    return dot + suffix == SUFFIX and len(stem) == 64 and not stem.strip("0123456789abcdef")
