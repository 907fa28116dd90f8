"""`pdm run bench-prefill`: tokens a second of a prompt, beside peers on the same weights."""

from ..lab.bench.command import contest
from ..terminal import command


@command
def main(argv: list[str] | None = None) -> None:
    contest("prefill", __doc__, argv)


if __name__ == "__main__":
    main()
