"""What judges, stores and shows runs keeps nothing in modules: several runs in one process know nothing of each other.

Inside a rank, and in the services, the process is the session, and modules may hold what is the process's: those rooms
are not looked at here.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

import msmemscope

PACKAGE = Path(msmemscope.__file__).parent
ROOMS = (
    *("aggregate", "analysis", "cli", "export", "folds", "imports", "integrations"),
    *("options", "query", "report", "selftest", "tables", "wire"),
)
CACHES = {"cache", "lru_cache"}
FILLED_LATER = {"ContextVar", "WeakKeyDictionary", "WeakValueDictionary", "defaultdict", "local"}
EMPTY = {"Counter", "OrderedDict", "deque", "dict", "list", "set"}  # without arguments
LEGITIMATE = {
    "analysis/frames.py: _is_library_code": "of the text it is given alone",
    "analysis/frames.py: _is_library_file": "of the text it is given alone",
    "analysis/frames.py: is_tool_file": "of the text it is given alone",
    "analysis/options.py: _manual": "the source of a class, which does not change while it is loaded",
    "analysis/registry.py: _known": "the packages that this process can import",
    "folds/messages.py: _empty": "arrays without rows, which nobody can change",
    "options/declared.py: later": "a default, which its type lets nobody change",
    "options/declared.py: native": "a default, which its type lets nobody change",
    "selftest/case.py: _cases": "declarations, which importing their modules fills",
}


def name_of(node: ast.expr) -> str:
    """`set`, also of `set()`, `set[int]()` and `collections.set`."""
    if isinstance(node, ast.Call):
        return name_of(node.func)
    if isinstance(node, ast.Subscript):
        return name_of(node.value)
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def begins_empty(value: ast.expr | None) -> bool:
    if isinstance(value, ast.Call):
        return name_of(value) in FILLED_LATER or (name_of(value) in EMPTY and not value.args)
    return (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.List) and not value.elts)


def kept(tree: ast.Module) -> Iterator[str]:
    """Names of what a module and its classes keep: containers that begin empty, what functions assign, and what caches
    remember."""
    classes = (node for node in ast.walk(tree) if isinstance(node, ast.ClassDef))
    for node in (*tree.body, *(one for each in classes for one in each.body)):
        if isinstance(node, ast.Assign) and begins_empty(node.value):
            yield name_of(node.targets[0])
        elif isinstance(node, ast.AnnAssign) and begins_empty(node.value):
            yield name_of(node.target)
        elif isinstance(node, ast.FunctionDef) and any(name_of(one) in CACHES for one in node.decorator_list):
            yield node.name
    for inner in ast.walk(tree):
        if isinstance(inner, ast.Global):
            yield from inner.names


def test_no_module_of_these_rooms_remembers_a_run() -> None:
    found = {
        f"{path.relative_to(PACKAGE)}: {name}"
        for room in ROOMS
        for path in (PACKAGE / room).rglob("*.py")
        for name in kept(ast.parse(path.read_text()))
    }
    assert found == LEGITIMATE.keys()


@pytest.mark.parametrize(
    "text",
    [
        "x: set[int] = set()",
        "x = {}",
        "x: list[str] = []",
        "x = defaultdict(list)",
        "x: ContextVar[int] = ContextVar('x', default=0)",
        "def f():\n    global x\n    x = 1",
        "@cache\ndef x(): ...",
        "class A:\n    x: ClassVar[set[int]] = set()",
        "class A:\n    @cache\n    def x(self): ...",
        "@functools.lru_cache(maxsize=9)\ndef x(): ...",
    ],
)
def test_what_a_module_keeps_is_seen(text: str) -> None:
    assert list(kept(ast.parse(text))) == ["x"]
