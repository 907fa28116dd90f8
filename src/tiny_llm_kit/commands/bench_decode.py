"""`pdm run bench-decode`: tokens a second of a batch in decode, beside peers on the same weights."""

from ..lab.bench.command import contest
from ..terminal import command


@command
def main(argv: list[str] | None = None) -> None:
    contest("decode", __doc__, argv)


if __name__ == "__main__":
    main()
