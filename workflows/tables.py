"""Text tables: aligned for a terminal, piped for Markdown (pure). Of numbers the first column is text."""

from collections.abc import Sequence


def plain(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """Columns padded to their widest cell."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column == 0 else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def aligned(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """As `plain`, with every column to the left: words, not numbers."""
    lines = [header, *rows]
    widths = [max(len(line[column]) for line in lines) for column in range(len(header))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in lines
    )


def markdown(header: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A pipe table."""
    align = ["---", *["---:"] * (len(header) - 1)]
    cells = [[cell.replace("|", "\\|") for cell in line] for line in (header, align, *rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in cells)
