"""HTML as text, in which everything that comes from a job is escaped, and numbers for people."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from html import escape

__all__ = [
    "NOTHING",
    "Markup",
    "bar",
    "bytes_text",
    "code",
    "counted",
    "details",
    "joined",
    "moment_text",
    "plain",
    "rate_text",
    "seconds_text",
    "share_text",
    "table",
    "tag",
]

NOTHING = "\N{EN DASH}"  # where nothing is known
_UNITS = ("B", "kB", "MB", "GB", "TB", "PB")


class Markup(str):
    """Text that is HTML already."""

    __slots__ = ()


def plain(text: object) -> Markup:
    """Text as it is; ``Markup`` stays what it is."""
    return text if isinstance(text, Markup) else Markup(escape(str(text)))


def joined(parts: Iterable[object], between: str = "") -> Markup:
    """All of them, one after the other."""
    return Markup(between.join(map(plain, parts)))


def tag(name: str, *content: object, **attributes: object) -> Markup:
    """An element; ``class_`` stands for ``class``, ``_`` in names for ``-``. None is left out."""
    words = [
        f' {key.rstrip("_").replace("_", "-")}="{escape(str(value))}"'
        for key, value in attributes.items()
        if value is not None
    ]
    return Markup(f"<{name}{''.join(words)}>{joined(content)}</{name}>")


def code(text: object) -> Markup:
    """A word of a program."""
    return tag("code", text)


def details(summary: object, *content: object) -> Markup:
    """What is shown when somebody asks for it."""
    return tag("details", tag("summary", summary), *content)


def bar(share: float) -> Markup:
    """A bar of that part of the cell's width, for those who see it."""
    width = f"width:{100 * min(max(share, 0.005), 1.0) if share > 0 else 0:.1f}%"
    inner = tag("span", class_="fill", style=width)
    return tag("span", inner, class_="bar", aria_hidden="true")


def table(
    caption: str, heads: Sequence[object], rows: Iterable[Sequence[object]], *, numbers: bool = True
) -> Markup:
    """A table that scrolls by itself where it is too wide; the first cell of a row names it.

    ``numbers``: all cells but the first of a row are aligned to the right.
    """
    head = tag("tr", *(tag("th", text, scope="col") for text in heads))
    body = (
        tag("tr", tag("th", first, scope="row"), *(tag("td", cell) for cell in rest))
        for first, *rest in rows
    )
    whole = tag(
        "table",
        tag("caption", caption, class_="unseen"),
        tag("thead", head),
        tag("tbody", joined(body, "\n")),
        class_="numbers" if numbers else None,
    )
    return tag("div", whole, class_="scroll", tabindex="0", role="region", aria_label=caption)


def counted(count: int, what: str) -> str:
    """``1 rank``, ``2 ranks``."""
    return f"{count:,} {what}" if count == 1 else f"{count:,} {what}s"


def seconds_text(seconds: float | None) -> str:
    """``340 us``, ``12.3 ms``, ``4.5 s``, ``2 min 5 s``, ``3 h 20 min``."""
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
    """When something was, since the beginning."""
    return f"{seconds:.2f} s" if seconds < 100 else seconds_text(seconds)


def bytes_text(size_bytes: float | None) -> str:
    """``812 B``, ``4.2 MB``."""
    if size_bytes is None:
        return NOTHING
    power = 0
    while size_bytes >= 999.5 and power < len(_UNITS) - 1:
        size_bytes /= 1000
        power += 1
    return f"{_three(size_bytes)} {_UNITS[power]}"


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
