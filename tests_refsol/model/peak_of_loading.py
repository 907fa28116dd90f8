"""Prints the bytes of anonymous memory that loading a checkpoint adds at its highest. Run as a process of its own.

Anonymous memory is what the process itself holds; pages of the mapped file can be dropped at any time. A thread samples
it every millisecond, as a peak is over when loading ends. Linux with glibc only.
"""

import ctypes
import sys
import threading
import time

from tiny_llm_engine.loading import load_checkpoint
from tiny_llm_engine.models.quantization import WeightQuantizer
from tiny_llm_engine.solutions.port import Port

M_MMAP_THRESHOLD = -3


def anonymous() -> int:
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith("RssAnon"))


def sample(samples: list[int], done: threading.Event) -> None:
    while not done.is_set():
        samples.append(anonymous())
        time.sleep(0.001)


def main(folder: str, backend: str, dtype: str, *bits: str) -> None:
    # Otherwise glibc keeps freed arrays for later, and what is held depends on the order of many small steps.
    ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1_000_000)
    port = Port("ref", backend, "cpu")
    quantizer = WeightQuantizer(port, int(bits[0])) if bits else None
    samples, done = [anonymous()], threading.Event()
    sampler = threading.Thread(target=sample, args=(samples, done))
    sampler.start()
    checkpoint = load_checkpoint(folder, backend, device="cpu", dtype=dtype, quantizer=quantizer)
    samples.append(anonymous())
    done.set()
    sampler.join()
    print(max(samples) - samples[0])
    del checkpoint


if __name__ == "__main__":
    main(*sys.argv[1:])
