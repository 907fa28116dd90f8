"""The entry point of the group `torch.backends`: torch calls it at the end of its own import."""

import os
from functools import cache

from . import record


@cache  # beside a real plug-in, whose entry point has the same name, torch calls it twice
def __autoload():
    record.note("import torch", record.environment())
    wish = os.environ.get("PT_HPU_AUTOLOAD")
    lazy = os.environ.get("PT_HPU_LAZY_MODE", "1") == "1"
    if wish == "1" or (wish != "0" and not lazy):
        import habana_frameworks.torch  # noqa: F401
