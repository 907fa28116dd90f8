"""Measures in a process of its own, for a screen: MLX makes one group of ranks per process."""

import json
import subprocess
import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any

from tiny_llm_engine.solutions.port import Port


def in_own_process(measure: Callable[[Port], Any], b: Port) -> Any:
    """What a function of a module returns for the same port, by way of JSON.

    Raises:
        RuntimeError: it has failed; the last line of its errors.
    """
    solution = b.solution.__name__.partition(".")[0]
    where = [measure.__module__, measure.__name__, solution, b.name, b.device]
    line = [sys.executable, "-m", __name__, *where]
    done = subprocess.run(line, capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        raise RuntimeError((done.stderr.strip() or f"exit code {done.returncode}").splitlines()[-1])
    return json.loads(done.stdout.splitlines()[-1])


def main() -> None:
    module, name, *where = sys.argv[1:]
    print(json.dumps(getattr(import_module(module), name)(Port(*where))))


if __name__ == "__main__":
    main()
