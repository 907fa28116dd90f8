"""What the plug-in was asked, in order: `calls` is a list of [name, arguments], ready for JSON."""

import os

calls: list[list] = []
waits: list[str] = []  # where the host waited for the device
blocking: list[str] = []  # calls of torch that copied from the host and waited for it


def note(name: str, *arguments) -> None:
    calls.append([name, [_describe(argument) for argument in arguments]])


def environment() -> dict[str, str]:
    """The variables that the plug-in reads, as they are now."""
    return {name: value for name, value in os.environ.items() if name.startswith(("PT_HPU_", "FUSER_"))}


def _describe(argument):
    """A tensor as its type, place and shape, an enumeration as its name; anything else as it is."""
    if hasattr(argument, "shape"):
        return f"{str(argument.dtype)[6:]} {argument.device.type} {list(argument.shape)}"
    return getattr(argument, "name", argument)
