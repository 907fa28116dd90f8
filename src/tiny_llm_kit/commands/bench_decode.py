"""`pdm run bench-decode`: tokens a second of a batch in decode, beside peers on the same weights."""

from ..lab.bench.command import bench_main
from ..lab.bench.contest import measure_decode


def main(argv: list[str] | None = None) -> None:
    bench_main(
        "decode", __doc__, lambda *plan, o, progress: measure_decode(*plan, o.rows, o.context, progress), argv
    )


if __name__ == "__main__":
    main()
