"""Numbers as text for people: three digits and a unit; a dash for None."""

from __future__ import annotations

import math

NOTHING = "\N{EN DASH}"
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


def seconds_text(seconds: float | None) -> str:
    """``340 µs``, ``12.3 ms``, ``4.5 s``, ``2 min 5 s``, ``3 h 20 min``."""
    if seconds is None:
        return NOTHING
    if seconds >= 3600:
        hours, minutes = divmod(round(seconds / 60), 60)
        return f"{hours} h {minutes} min"
    if seconds >= 100:
        minutes, rest = divmod(round(seconds), 60)
        return f"{minutes} min {rest} s"
    for unit, factor in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= factor:
            return f"{_three(seconds / factor)} {unit}"
    return f"{_three(seconds * 1e6)} µs" if seconds > 0 else "0"


def moment_text(seconds: float) -> str:
    """A time since the job's begin."""
    return f"{seconds:.2f} s" if seconds < 100 else seconds_text(seconds)


def bytes_text(size_bytes: float) -> str:
    """``812 B``, ``4.2 MB``."""
    power = 0
    while size_bytes >= 999.5 and power < len(_UNITS) - 1:
        size_bytes /= 1000
        power += 1
    return f"{_three(size_bytes)} {_UNITS[power]}"


def number_text(value: float | None) -> str:
    """``0.312``, ``1,230``; six digits at most."""
    if value is None:
        return NOTHING
    return f"{value:,.0f}" if 1000 <= abs(value) < 1e9 else f"{value:.4g}"


def rate_text(rate: float | None) -> str:
    """Bytes per second."""
    return NOTHING if rate is None else f"{bytes_text(rate)}/s"


def share_text(share: float | None) -> str:
    """A part of a whole, in percent."""
    if share is None:
        return NOTHING
    return f"{100 * share:.1f} %" if 0 < share < 0.0995 else f"{100 * share:.0f} %"


def _three(value: float) -> str:
    """Three digits, without zeros at the end of a fraction."""
    if value == 0 or not math.isfinite(value):
        return f"{value:g}"
    digits = max(0, 2 - math.floor(math.log10(abs(value))))
    text = f"{value:.{digits}f}"
    return text.rstrip("0").rstrip(".") if "." in text else text
