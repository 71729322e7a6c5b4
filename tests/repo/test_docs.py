"""The documents name what exists: functions, links, states, transitions, and examples that run."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from itertools import product
from pathlib import Path

import pytest

from dblp import wire
from dblp.proto.states import (
    RECEIVER_HARMLESS,
    RECEIVER_TRANSITIONS,
    SENDER_HARMLESS,
    SENDER_TRANSITIONS,
    ReceiverInput,
    ReceiverState,
    SenderInput,
    SenderState,
)

ROOT = Path(__file__).parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/*.md")])
ARCHITECTURE = ROOT / "docs" / "ARCHITECTURE.md"

REFERENCE = re.compile(r"`([\w./]+\.(?:py|pyi|pyx|pxd|pxi|h|c)):([\w.]+)`")
"""`dblp/proto/sender.py:Sender.begin`."""

LINK = re.compile(r"(?<!!)\[[^\]\n]+\]\(([^()\s]+(?:\([^()\s]*\))?)\)")
IMAGE = re.compile(r"!\[[^\]\n]*\]\(([^()\s]+)\)")
FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
HEADING = re.compile(r"^#{1,6} +(.+?) *$", re.MULTILINE)
EDGE = re.compile(r"^ *(\w+) --> (\w+): (\w+)$", re.MULTILINE)
TABLES = {
    "sender": (SenderState, SenderInput, SENDER_TRANSITIONS, SENDER_HARMLESS),
    "receiver": (ReceiverState, ReceiverInput, RECEIVER_TRANSITIONS, RECEIVER_HARMLESS),
}


def by_name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


# --- references to code ---------------------------------------------------------------------------


@cache
def names_in(path: Path) -> frozenset[str]:
    """Qualified names of classes, functions, constants and attributes that a module defines."""
    return frozenset(_names(ast.parse(text_of(path)).body, ""))


def _names(body: list[ast.stmt], prefix: str) -> Iterator[str]:
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + node.name
            if isinstance(node, ast.ClassDef):
                yield from _names(node.body, f"{prefix}{node.name}.")
        elif isinstance(node, ast.Assign):
            yield from (prefix + t.id for t in node.targets if isinstance(t, ast.Name))
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            yield prefix + node.target.id


def is_defined(path: Path, name: str) -> bool:
    if path.suffix in (".py", ".pyi"):
        return name in names_in(path)
    # C and Cython: a definition starts a line or follows a type, and is more than a mention.
    leaf = re.escape(name.rpartition(".")[2])
    pattern = rf"^[^#/\n]*\b{leaf}\b *(?:\(|=|$)|^ *(?:cdef )?(?:class|struct) {leaf}\b"
    return re.search(pattern, text_of(path), re.MULTILINE) is not None


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_every_function_that_is_named_exists(path: Path) -> None:
    wrong = [
        f"{file}:{name}"
        for file, name in REFERENCE.findall(text_of(path))
        if not (ROOT / file).is_file() or not is_defined(ROOT / file, name)
    ]
    assert not wrong


def test_the_paper_page_refers_to_code_at_all() -> None:
    """The pattern above finds what the page is written in."""
    assert len(REFERENCE.findall(text_of(ROOT / "docs" / "PAPER.md"))) > 50


@pytest.mark.parametrize(
    ("file", "name", "exists"),
    [
        ("dblp/proto/sender.py", "Sender.begin", True),
        ("dblp/proto/sender.py", "Sender.nothing", False),
        ("dblp/proto/sender.py", "begin", False),
        ("dblp/wire.py", "HEADER", True),
        ("dblp/csrc/receive.pxi", "inspect", True),
        ("dblp/csrc/receive.pxi", "nothing", False),
    ],
)
def test_the_check_of_names(file: str, name: str, exists: bool) -> None:
    assert is_defined(ROOT / file, name) is exists


# --- links ----------------------------------------------------------------------------------------


@cache
def anchors_in(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in HEADING.findall(FENCE.sub("", text_of(path))):
        plain = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
        anchor = re.sub(r"[^\w\- ]", "", plain).replace(" ", "-")
        number = 0
        while (anchor if not number else f"{anchor}-{number}") in found:
            number += 1
        found.add(anchor if not number else f"{anchor}-{number}")
    return frozenset(found)


@pytest.mark.parametrize("path", DOCUMENTS, ids=by_name)
def test_internal_links_resolve(path: Path) -> None:
    text = FENCE.sub("", text_of(path))
    wrong = []
    for link in (*LINK.findall(text), *IMAGE.findall(text)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = link.partition("#")
        target = (path.parent / file).resolve() if file else path
        if not target.exists() or (anchor and anchor not in anchors_in(target)):
            wrong.append(link)
    assert not wrong


# --- the state machines ---------------------------------------------------------------------------


def section_of(text: str, title: str) -> str:
    """The text below a heading, up to the next one of any level."""
    found = re.search(rf"^#+ {title}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    assert found is not None, title
    return found[1]


@pytest.mark.parametrize("side", TABLES)
def test_the_diagram_is_the_transition_table(side: str) -> None:
    states, _, transitions, _ = TABLES[side]
    section = section_of(text_of(ARCHITECTURE), f"The {side}")
    drawn = {(start, input_, end) for start, end, input_ in EDGE.findall(section)}
    assert drawn == {(s.name, i.name, end.name) for (s, i), end in transitions.items()}
    assert {state.name for state in states} <= {name for a, _, b in drawn for name in (a, b)}


@pytest.mark.parametrize("side", TABLES)
def test_the_table_has_every_pair(side: str) -> None:
    """Rows are inputs, columns are states: a state, "·" for harmless, or "—" for impossible."""
    states, inputs, transitions, harmless = TABLES[side]
    section = section_of(text_of(ARCHITECTURE), f"The {side}")
    rows = [
        [cell.strip().strip("`") for cell in line.strip("|").split("|")]
        for line in section.splitlines()
        if line.startswith("|") and not line.startswith("|--")
    ]
    columns, *lines = rows
    cells = {
        (columns[place], line[0]): line[place] for line in lines for place in range(1, len(columns))
    }
    expected = {}
    for state, input_ in product(states, inputs):
        following = transitions.get((state, input_))
        quiet = "·" if (state, input_) in harmless else "—"
        expected[state.name, input_.name] = following.name if following else quiet
    assert cells == expected


# --- the wire format ------------------------------------------------------------------------------


def test_the_wire_page_has_every_frame_with_its_fields() -> None:
    text = text_of(ROOT / "docs" / "WIRE.md")
    for frame in wire.Frame.__subclasses__():
        tag = frame.__struct_config__.tag
        found = re.search(
            rf"^### {frame.__name__} — `{tag}`.*?\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL
        )
        assert found is not None, frame.__name__
        cells = re.findall(r"^\| ([\w, ]+?) \|", found[1], re.MULTILINE)
        named = [name.strip() for cell in cells for name in cell.split(",")]
        assert [name for name in named if name != "Field"] == list(frame.__struct_fields__)


# --- the examples ---------------------------------------------------------------------------------


def test_the_example_of_the_readme_is_the_file() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", text_of(ROOT / "README.md"), re.M | re.S)
    assert text_of(ROOT / "examples" / "loopback.py") in blocks
