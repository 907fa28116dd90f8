"""The functions that `backend_mlx` and `backend_torch` both have, as a type: nothing is imported when the code runs.

A module is not a type, so a class holds the names. Torch's signatures stand for both.
"""

from importlib import import_module
from typing import TYPE_CHECKING, cast

if TYPE_CHECKING:
    from ..backends import backend_torch

    class Backend:
        """`backend_mlx` or `backend_torch`, whose arrays are those of its library."""

        DTYPES = backend_torch.DTYPES
        PRODUCT_DTYPES = backend_torch.PRODUCT_DTYPES
        argmax = staticmethod(backend_torch.argmax)
        as_float32 = staticmethod(backend_torch.as_float32)
        concatenate = staticmethod(backend_torch.concatenate)
        default_dtype = staticmethod(backend_torch.default_dtype)
        dequantize = staticmethod(backend_torch.dequantize)
        device_memory = staticmethod(backend_torch.device_memory)
        devices = staticmethod(backend_torch.devices)
        evaluate = staticmethod(backend_torch.evaluate)
        extremes = staticmethod(backend_torch.extremes)
        from_stored = staticmethod(backend_torch.from_stored)
        inference = staticmethod(backend_torch.inference)
        keep_compiled = staticmethod(backend_torch.keep_compiled)
        launch = staticmethod(backend_torch.launch)
        largest = staticmethod(backend_torch.largest)
        like = staticmethod(backend_torch.like)
        materialize = staticmethod(backend_torch.materialize)
        most_probable = staticmethod(backend_torch.most_probable)
        open_safetensors = staticmethod(backend_torch.open_safetensors)
        peak_bytes = staticmethod(backend_torch.peak_bytes)
        pick_device = staticmethod(backend_torch.pick_device)
        place = staticmethod(backend_torch.place)
        prepare = staticmethod(backend_torch.prepare)
        product_machine = staticmethod(backend_torch.product_machine)
        product_speed = staticmethod(backend_torch.product_speed)
        put = staticmethod(backend_torch.put)
        random_normal = staticmethod(backend_torch.random_normal)
        read_bandwidth = staticmethod(backend_torch.read_bandwidth)
        release_memory = staticmethod(backend_torch.release_memory)
        score_tokens = staticmethod(backend_torch.score_tokens)
        seed = staticmethod(backend_torch.seed)
        set_threads = staticmethod(backend_torch.set_threads)
        start_read = staticmethod(backend_torch.start_read)
        spread = staticmethod(backend_torch.spread)
        synchronize = staticmethod(backend_torch.synchronize)
        take = staticmethod(backend_torch.take)
        to_array = staticmethod(backend_torch.to_array)
        to_numpy = staticmethod(backend_torch.to_numpy)
        threads_compute = staticmethod(backend_torch.threads_compute)
        trace = staticmethod(backend_torch.trace)
        where = staticmethod(backend_torch.where)

else:
    Backend = object


def load_backend(name: str) -> Backend:
    """`backend_mlx` or `backend_torch`. On a Gaudi, resolve the solution first: `hpu.py` must precede torch."""
    return cast(Backend, import_module(f"..backends.backend_{name}", __package__))
