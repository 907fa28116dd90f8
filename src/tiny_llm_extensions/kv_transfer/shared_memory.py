"""Memory that other processes of this host and user can read by its name.

`SharedMemory` makes and deletes it. Python's resource tracker, a process of its own, deletes it if this one is killed.
It is mapped by hand, because before Python 3.13 a reader's tracker would delete it as well.
"""

import mmap
import os
import secrets
import shutil
from multiprocessing.shared_memory import SharedMemory

FOLDER = "/dev/shm"  # of Linux; in a container it is often small


class Segment:
    """Shared memory of `size` bytes; deleted by `close`.

    Attributes:
        name: for `mapped`.
        memory: its bytes.

    Raises:
        OSError: there is no room for it.
    """

    def __init__(self, size: int):
        if os.path.isdir(FOLDER) and shutil.disk_usage(FOLDER).free < size:  # full, it would end the process
            raise OSError(f"{FOLDER} has no room for {size / 1e6:,.0f} MB")
        self.name = f"tinyllm{secrets.token_hex(8)}"
        self._made = SharedMemory(self.name, create=True, size=size)
        self._made.close()  # this mapping of it; the memory stays
        self.memory = mapped(self.name, size, os.O_RDWR)

    def close(self) -> None:
        """Deletes it. Who has mapped it may go on reading."""
        self._made.unlink()


def mapped(name: str, size: int, flags: int = os.O_RDONLY) -> mmap.mmap:
    """The memory with this name.

    Raises:
        OSError: there is no such segment, or another user owns it.
        ValueError: the name is not valid, or the segment is smaller than asked for.
    """
    from _posixshmem import shm_open

    if not name.isalnum():
        raise ValueError(f"there is no shared memory {name!r}")
    file = shm_open(f"/{name}", flags, mode=0o600)
    try:
        return mmap.mmap(file, size, access=mmap.ACCESS_READ if flags == os.O_RDONLY else mmap.ACCESS_WRITE)
    finally:
        os.close(file)
