"""The house keeps its own rules: sizes, names, doors, one owner for each top-level package."""

from __future__ import annotations

import ast
import importlib.metadata
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.parameters import PROFILES
from rstar2.profiles import profile_names

ROOT = Path(__file__).parents[2]
ROOMS = ("flows", "tasks", "infra", "data_catalog", "rstar2")
MAX_FILE_LINES = 350
MAX_FUNCTION_LINES = 80
BANNED_FILES = {"utils", "util", "common", "base", "manager", "managers", "helpers", "misc"}
ENVIRONMENT_DOORS = {
    "infra/settings.py",
    "infra/sandbox/zygote.py",  # only empties it, so that a snippet sees none of it
}


def sources(*folders: str) -> Iterator[tuple[str, ast.Module]]:
    for folder in folders:
        for path in sorted((ROOT / folder).rglob("*.py")):
            yield path.relative_to(ROOT).as_posix(), ast.parse(path.read_text(), str(path))


def functions(tree: ast.Module) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def test_no_file_is_longer_than_350_lines() -> None:
    long = [
        f"{path.relative_to(ROOT)}: {num_lines}"
        for folder in (*ROOMS, "tests", "benchmarks")
        for path in sorted((ROOT / folder).rglob("*.py"))
        if (num_lines := len(path.read_text().splitlines())) > MAX_FILE_LINES
    ]
    assert not long, f"over {MAX_FILE_LINES} lines, split them by what they do: {long}"


def test_no_function_is_longer_than_80_lines() -> None:
    long = [
        f"{name}:{function.lineno} {function.name}: {function.end_lineno - function.lineno + 1}"
        for name, tree in sources(*ROOMS, "tests", "benchmarks")
        for function in functions(tree)
        if function.end_lineno and function.end_lineno - function.lineno + 1 > MAX_FUNCTION_LINES
    ]
    assert not long, f"over {MAX_FUNCTION_LINES} lines: {long}"


def test_no_file_is_named_after_a_pattern() -> None:
    named = [name for name, _ in sources(*ROOMS, "tests", "benchmarks") if _stems(name)]
    assert not named, f"name the thing that is in it: {named}"


def _stems(name: str) -> set[str]:
    return {part.removesuffix(".py") for part in name.split("/")} & BANNED_FILES


def test_every_module_says_what_it_is() -> None:
    silent = [name for name, tree in sources(*ROOMS, "benchmarks") if not ast.get_docstring(tree)]
    assert not silent, f"modules without a docstring: {silent}"


def test_no_function_passes_keywords_through() -> None:
    through = [
        f"{name}:{function.lineno} {function.name}"
        for name, tree in sources(*ROOMS)
        for function in functions(tree)
        if function.args.kwarg and function.args.kwarg.arg in _forwarded(function)
    ]
    assert not through, f"name the arguments instead of handing ** on: {through}"


def _forwarded(function: ast.AST) -> set[str]:
    """Names that a call inside unpacks as keywords."""
    calls = (node for node in ast.walk(function) if isinstance(node, ast.Call))
    keywords = (keyword for call in calls for keyword in call.keywords if keyword.arg is None)
    return {keyword.value.id for keyword in keywords if isinstance(keyword.value, ast.Name)}


def test_the_environment_has_one_door() -> None:
    readers = {
        name
        for name, tree in sources(*ROOMS)
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr in {"environ", "getenv", "putenv"}
    }
    assert readers <= ENVIRONMENT_DOORS, "read it in infra/settings.py"


@pytest.mark.parametrize("folder", ["flows", "tasks", "infra", "data_catalog", "benchmarks"])
def test_no_file_shadows_a_module_when_its_folder_is_first_on_the_path(folder: str) -> None:
    taken = _names_of_others()
    files = {path.stem for path in (ROOT / folder).glob("*.py")} - {"__init__", "__main__"}
    assert not files & taken


def test_no_file_at_the_top_shadows_a_module() -> None:
    taken = _names_of_others()
    tops = {path.stem for path in [*ROOT.glob("*.py"), *(ROOT / "tests").glob("*.py")]}
    assert not tops & taken
    assert not {path.name for path in ROOT.iterdir() if path.is_dir()} & set(
        sys.stdlib_module_names
    )


def _names_of_others() -> set[str]:
    owners = importlib.metadata.packages_distributions()
    return {*sys.stdlib_module_names, *(n for n, by in owners.items() if {*by} - {"rstar2"})}


@pytest.mark.parametrize("room", ROOMS)
def test_no_other_distribution_owns_a_room(room: str) -> None:
    """A second owner would overwrite our files at install, and delete them when it is removed."""
    owners = set(importlib.metadata.packages_distributions().get(room, ["rstar2"]))
    assert owners == {"rstar2"}, f"uninstall {owners - {'rstar2'}}: it ships a package {room!r}"


def test_tests_are_no_packages() -> None:
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_tests_replace_nothing_of_ours() -> None:
    mocking = [
        name
        for name, tree in sources("tests")
        for node in ast.walk(tree)
        if isinstance(node, ast.ImportFrom | ast.Import)
        and any("mock" in alias.name for alias in node.names)
    ]
    assert not mocking, f"use the real part: {mocking}"


def test_the_deployment_offers_the_profiles_that_ship() -> None:
    assert sorted(PROFILES) == profile_names()
