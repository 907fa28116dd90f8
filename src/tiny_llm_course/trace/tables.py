"""Tables of figures for terminals."""

from rich.table import Table


def figures_table(first: str, *headings: str, no_wrap: bool = False) -> Table:
    """An empty table: a column of names, and columns of figures; with `no_wrap` a name breaks before a figure does."""
    table = Table(first, box=None, pad_edge=False)
    for heading in headings:
        table.add_column(heading, justify="right", no_wrap=no_wrap)
    return table
