"""Run mdBook on the book: find the program and a free port, use this Python for the preprocessor."""

import os
import shlex
import shutil
import socket
import subprocess
import sys
import sysconfig
from pathlib import Path

from tiny_llm_engine.machine.repo import BOOK
from tiny_llm_engine.machine.terminal import fail

PORT = 3000


def serve(port: int, in_browser: bool) -> int:
    if not is_free(port):
        another = next(filter(is_free, range(PORT, 65536)))
        fail(f"book: port {port} is taken or forbidden here: `pdm run book serve --port {another}`")
    return mdbook("serve", "--port", str(port), *["--open"] * in_browser)


def is_free(port: int) -> bool:
    """Whether this port is free on localhost, where mdBook serves."""
    family, *_, address = socket.getaddrinfo("localhost", port, type=socket.SOCK_STREAM)[0]
    try:
        socket.create_server(address, family=family).close()
    except OSError:
        return False
    return True


def mdbook(action: str, *options: str) -> int:
    """Run mdBook on the book, with this Python for its preprocessor."""
    program = find_mdbook()
    if program is None:
        print("book: mdbook is missing; `pdm install` brings it", file=sys.stderr)
        return 1
    command = f"{shlex.quote(Path(sys.executable).as_posix())} preprocess.py"
    environment = {**os.environ, "MDBOOK_PREPROCESSOR__COURSE__COMMAND": command}
    try:
        return subprocess.run([program, action, str(BOOK), *options], env=environment).returncode
    except KeyboardInterrupt:
        return 0  # the usual way to end `serve`


def find_mdbook() -> str | None:
    """The mdBook beside this Python, else one on the PATH."""
    return shutil.which("mdbook", path=sysconfig.get_path("scripts")) or shutil.which("mdbook")
