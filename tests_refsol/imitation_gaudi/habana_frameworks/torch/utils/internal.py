"""Which mode the plug-in runs in: asked once, at its import."""

import os
from functools import cache


@cache
def is_lazy() -> bool:
    return os.environ.get("PT_HPU_LAZY_MODE", "1") != "0"
