"""Reports one port from a separate process, as one line of JSON.

The process is separate because a broken array library may end it, because two speeds of one library need two,
and because neither library should be imported where the other is used.
"""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from importlib import import_module

# Imported when they are used: the doctor answers where nothing is installed yet.
LIBRARY = "tiny_llm_extensions.kernels.native.library"
ROWS, WIDTH = 256, 1024  # a prefill of 256 tokens through one square weight
SECONDS = 0.3
LONGEST = 120  # seconds until the process gives up


def ask(backend: str, **environment: str) -> dict:
    """Ask a fresh process about a port.

    Raises:
        RuntimeError: the process failed; the message is the last line that it printed.
    """
    command = [sys.executable, "-m", __name__, backend]
    done = subprocess.run(command, env=os.environ | environment, capture_output=True, text=True)
    if done.returncode:
        lines = done.stderr.strip().splitlines() or [f"its process ended with {done.returncode}"]
        raise RuntimeError(lines[-1])
    return json.loads(done.stdout.splitlines()[-1])


def answer(backend: str) -> dict:
    """The port's device and type, its CPU products, MLX's float32 speed on the CPU and torch's view of a Gaudi."""
    from tiny_llm_engine.machine.blas import preload
    from tiny_llm_engine.solutions.port import Port
    from tiny_llm_engine.solutions.solution import ANY
    from tiny_llm_extensions.profiling import product_choice, quantized_choice

    loaded = preload() if backend == "mlx" else None  # before the port imports mlx, which asks for it as well
    port, on_cpu = Port(ANY, backend), Port(ANY, backend, "cpu", "bfloat16")
    report = {"device": port.device, "dtype": port.float_dtype}
    report |= {"products": _measured(product_choice.report, on_cpu), "kernels": kernels_in_words()}
    if backend == "mlx":
        return report | {"blas": loaded, "gflops": speed(Port(ANY, backend, "cpu"))}
    from tiny_llm_engine.arrays.torch import hpu  # after the port, like torch itself
    from tiny_llm_extensions.gaudi import hpu_self_check

    errors = hpu_self_check.self_check() if hpu.available() else []
    quantized = "; ".join(_measured(quantized_choice.report, on_cpu, bits) for bits in (4, 8))
    card = vars(hpu.detect()) | {"errors": errors}
    return report | {"hpu": card, "quantized_products": quantized}


def _measured(report: Callable[..., str], *arguments: object) -> str:
    """A report that runs a solution's layers: in a copy without the reference they may be blank."""
    try:
        return report(*arguments)
    except NotImplementedError as blank:
        return f"not measured: {blank}"


def kernels_in_words() -> str:
    """Whether the kernels in C++ run on this machine, and why not."""
    if (why := why_no_kernels()) is not None:
        return f"no kernels in C++: {why}"
    return f"kernels in C++ by {import_module(LIBRARY).compiler()}"


def why_no_kernels() -> str | None:
    """Why the kernels in C++ do not run on this machine; None if they do."""
    from tiny_llm_engine.solutions.solution import ANY

    import_module(native := f"{ANY}.native")
    library = import_module(LIBRARY)
    try:
        library.library("product.cpp", native)
    except library.NativeError as error:
        return str(error)
    return None


def speed(port) -> float:
    """GFLOP/s of a float32 matrix product of 256 rows: the best of a few in 0.3 seconds."""
    import numpy as np  # here: the doctor imports this file where nothing is installed yet

    x, w = (port.array(np.ones((rows, WIDTH), np.float32)) for rows in (ROWS, WIDTH))
    best, end = float("inf"), time.perf_counter() + SECONDS
    while time.perf_counter() < end or best == float("inf"):
        start = time.perf_counter()
        port.numpy(x @ w.T)
        best = min(best, time.perf_counter() - start)
    return 2 * ROWS * WIDTH * WIDTH / best / 1e9


if __name__ == "__main__":
    if hasattr(signal, "alarm"):  # here and not in `ask`: this process ends a compiler that it has started
        signal.signal(signal.SIGALRM, lambda *_: sys.exit(f"it was not done after {LONGEST} s"))
        signal.alarm(LONGEST)
    print(json.dumps(answer(sys.argv[1])))
