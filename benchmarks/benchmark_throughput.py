"""`pdm run bench-throughput` under the name that serving people type."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # Python adds the script's own folder alone

from benchmarks.throughput import main

if __name__ == "__main__":
    main()
