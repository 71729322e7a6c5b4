"""A page in blocks, written as one HTML file without anything from outside, and as Markdown."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path

__all__ = ["Block", "Figure", "Heading", "Items", "Table", "Text", "to_html", "to_markdown"]


@dataclass(frozen=True)
class Heading:
    """A heading of level 1, 2 or 3."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Text:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Items:
    """A list of sentences."""

    items: Sequence[str]


@dataclass(frozen=True)
class Table:
    """Rows under headings; the first column has names."""

    caption: str
    columns: Sequence[str]
    rows: Sequence[Sequence[str]]


@dataclass(frozen=True)
class Figure:
    """A chart."""

    name: str
    """Of its file beside the Markdown: letters, digits and "-"."""
    caption: str
    svg: str


Block = Heading | Text | Items | Table | Figure

STYLE = """
:root { color-scheme: light dark; }
body { font: 16px/1.5 system-ui, sans-serif; max-width: 46rem; margin: 0 auto; padding: 1rem; }
h1 { font-size: 1.6rem; line-height: 1.2; } h2 { font-size: 1.3rem; margin-top: 2.2rem; }
h3 { font-size: 1.1rem; } code { font-size: .9em; overflow-wrap: anywhere; }
.wide { overflow-x: auto; margin: 1rem 0; }
table { border-collapse: collapse; font-size: .88rem; font-variant-numeric: tabular-nums; }
caption { text-align: left; font-weight: 600; padding-bottom: .4rem; }
th, td { padding: .25rem .6rem; border-bottom: 1px solid #8884; text-align: right; }
th:first-child, td:first-child { text-align: left; min-width: 8rem; }
thead th { border-bottom: 2px solid #888; vertical-align: bottom; }
figure { margin: 1.5rem 0; } figure svg { width: 100%; max-width: 640px; height: auto; }
figcaption { font-size: .9rem; }
"""


def _marked(text: str) -> str:
    """Escaped, with `code` as such."""
    return re.sub(r"`([^`]+)`", r"<code>\1</code>", escape(text, quote=False))


def to_html(title: str, blocks: Sequence[Block]) -> str:
    """The page as one file."""
    body = "\n".join(_html(block) for block in blocks)
    return (
        '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{escape(title)}</title>\n<style>{STYLE}</style>\n</head>\n<body>\n{body}\n"
        "</body>\n</html>\n"
    )


def _html(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_marked(block.text)}</h{block.level}>"
    if isinstance(block, Text):
        return f"<p>{_marked(block.text)}</p>"
    if isinstance(block, Items):
        items = "".join(f"<li>{_marked(item)}</li>" for item in block.items)
        return f"<ul>{items}</ul>"
    if isinstance(block, Figure):
        caption = _marked(block.caption)
        return f"<figure>{block.svg}<figcaption>{caption}</figcaption></figure>"
    head = "".join(f"<th>{_marked(name)}</th>" for name in block.columns)
    rows = "".join(
        "<tr>" + "".join(f"<td>{_marked(cell)}</td>" for cell in row) + "</tr>"
        for row in block.rows
    )
    return (
        f'<div class="wide"><table><caption>{_marked(block.caption)}</caption>'
        f"<thead><tr>{head}</tr></thead><tbody>{rows}</tbody></table></div>"
    )


def to_markdown(blocks: Sequence[Block], folder: Path) -> str:
    """The page as text; its figures are written to `folder` as SVG files."""
    parts = []
    for block in blocks:
        if isinstance(block, Heading):
            parts.append(f"{'#' * block.level} {block.text}")
        elif isinstance(block, Text):
            parts.append(block.text)
        elif isinstance(block, Items):
            parts.append("\n".join(f"- {item}" for item in block.items))
        elif isinstance(block, Figure):
            # A picture file is shown on whatever is behind it: it needs a colour of its own.
            svg = block.svg.replace("currentColor", "#444").replace(
                'role="img"', 'role="img" style="background:#fff"', 1
            )
            (folder / f"{block.name}.svg").write_text(svg + "\n")
            parts.append(f"![{block.caption}]({block.name}.svg)\n\n{block.caption}")
        else:
            rule = ["---", *("--:" for _ in block.columns[1:])]
            lines = [block.columns, rule, *block.rows]
            table = "\n".join(
                "| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |"
                for line in lines
            )
            parts.append(f"**{block.caption}**\n\n{table}")
    return "\n\n".join(parts) + "\n"
