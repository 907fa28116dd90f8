"""`pdm run bench-prefill`: tokens a second of a prompt, beside peers on the same weights."""

from ..lab.bench.command import bench_main
from ..lab.bench.contest import measure_prefill


def main(argv: list[str] | None = None) -> None:
    bench_main(
        "prefill", __doc__, lambda *plan, o, progress: measure_prefill(*plan, o.context, progress), argv
    )


if __name__ == "__main__":
    main()
