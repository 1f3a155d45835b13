"""Bytes in GiB, for keys and messages (pure)."""

GIB = 1 << 30


def gib(count: float) -> str:
    """Two decimals, or two digits of what is smaller."""
    amount = count / GIB
    return f"{amount:,.2f}" if amount >= 0.1 or count == 0 else f"{amount:.2g}"
