"""The layout that everything else relies on: packages where they belong, sizes that can be read,
names that stand once, pages that name what exists.
"""

from __future__ import annotations

import ast
import re
import statistics
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
PRODUCT = ("operator", "trainer", "client")
CODE = (*PRODUCT, "devcluster", "demo", "bench", "soak", "tools")
PAGES = ("docs", "examples", "devcluster")
LINE_LENGTH = 100
LONG_LINES = 100
"""Of a module: whoever wants to change what it does must find it."""
LINK = re.compile(r"\]\(([^)\s]+)\)")
NAMED_FILE = re.compile(r"`([a-z_./-]+/[\w.-]+\.(?:py|yaml|sh|toml)|test_\w+\.py)`")
MAP = ROOT / "CONTRIBUTING.md"


def modules(*folders: str) -> Iterator[Path]:
    """Yield the Python files of the repository below `folders`."""
    for folder in folders:
        yield from sorted((ROOT / folder).rglob("*.py"))


def test_folders_that_hold_packages_are_no_packages_themselves() -> None:
    for folder in (*PRODUCT, "tests"):
        assert not (ROOT / folder / "__init__.py").exists(), (
            f"{folder}/__init__.py would shadow a module of that name"
        )
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_the_standard_library_operator_module_is_found_from_the_repository_root() -> None:
    script = "import operator; print(operator.attrgetter('real')(1))"
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.stdout.strip() == "1", done.stderr


def test_no_module_is_a_drawer_for_odds_and_ends() -> None:
    drawers = {"utils", "helpers", "common", "manager", "misc"}
    assert not [path for path in modules(*CODE, "tests") if path.stem in drawers]


def test_every_module_says_what_it_is_for() -> None:
    undocumented = [
        path
        for path in modules(*CODE, "tests")
        if ast.get_docstring(ast.parse(path.read_text())) is None
    ]
    assert not undocumented


def test_what_says_that_it_is_pure_is_in_the_contract_and_the_reverse() -> None:
    """An entry of the contract that is a package holds for all its modules."""
    listed = set(contract("What decides is pure")["source_modules"])
    pure = {module_name(path, folder) for folder in PRODUCT for path in pure_modules(folder)}
    assert listed <= pure
    assert not [name for name in pure if not listed & {name, *ancestors(name)}]


def test_what_says_that_it_is_pure_opens_no_file_and_reads_no_clock() -> None:
    """The contract cannot see it: these need no import, or one whose values are pure."""
    found = [
        f"{path.relative_to(ROOT)}:{call}"
        for path in pure_modules(*PRODUCT)
        for call in impure_calls(path.read_text())
    ]
    assert not found


def test_each_call_that_is_not_pure_is_found() -> None:
    files = ("open(x)", "x.read_text()", "x.write_text(y)")
    for call in (*files, "datetime.now(UTC)", "date.today()", "uuid4()", "uuid.uuid4()"):
        assert list(impure_calls(f"def f(x, y):\n    return {call}")) == [f"2: {call}"]
    assert not list(impure_calls("now, x.now, today(), account.open(now)"))


def test_a_new_room_of_the_trainer_is_closed_to_coordinator_and_agent() -> None:
    layers = contract("Trainer: three programs on top, each room sees only the rooms below it")
    rooms = {room for layer in layers["layers"] for room in layer.split(" | ")}
    walls = contract(
        "Coordinator and agent see protocol, system and the torch-free half of snapshots"
    )
    closed = {name.removeprefix("regroup_trainer.") for name in walls["forbidden_modules"]}
    assert closed == rooms - {"rank", "agent", "coordinator", "protocol", "system", "errors"}


def test_a_file_name_stands_once_in_a_package() -> None:
    """So that a name in a stack trace or a search leads to one place."""
    for folder in CODE:
        names = [path.stem for path in modules(folder) if not path.stem.startswith("__")]
        assert not [name for name in names if names.count(name) > 1]


def test_a_class_name_stands_once_where_code_can_import_it() -> None:
    """Operator and client import the messages of `regroup_trainer.protocol` beside their own."""
    for folder in CODE:
        names = Counter(class_names(folder))
        assert not [name for name, count in names.items() if count > 1]
    protocol = set(class_names("trainer/regroup_trainer/protocol"))
    for folder in ("operator", "client"):
        assert not protocol & set(class_names(folder))


def test_a_room_holds_no_more_than_can_be_looked_over() -> None:
    rooms = Counter(path.parent for path in modules(*PRODUCT) if not path.stem.startswith("__"))
    assert not [str(room) for room, count in rooms.items() if count > 24]


def test_modules_and_functions_stay_short_enough_to_read() -> None:
    lengths = sorted(length for path in modules(*CODE) for length in function_lengths(path))
    assert statistics.median(lengths) <= 10
    assert lengths[int(0.9 * len(lengths))] <= 30
    assert not [path for path in modules(*CODE) if len(path.read_text().splitlines()) > 700]
    long = [
        str(path.relative_to(ROOT))
        for path in modules(*CODE, "tests", "examples")
        if max(function_lengths(path), default=0) > 50
    ]
    assert not long


def test_lines_of_code_and_pages_fit_a_window() -> None:
    """A line that is nothing but an address may be longer."""
    long = [
        f"{file.relative_to(ROOT)}:{number}: {len(line)} characters"
        for file in (*modules(*CODE, "tests", "examples"), *pages())
        for number, line in enumerate(file.read_text().splitlines(), 1)
        if len(line) > LINE_LENGTH and not re.fullmatch(r"\s*(\[.*\]: |<)?https?://\S+", line)
    ]
    assert not long


def test_test_files_share_builders_through_support_alone() -> None:
    shared = re.compile(r"^\s*(?:from|import) tests\.(?!support\b)\S*\btest_", re.MULTILINE)
    assert not [path for path in modules("tests") if shared.search(path.read_text())]


def test_links_of_pages_lead_to_files_and_headings_that_exist() -> None:
    broken = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages()
        for link in LINK.findall(prose(page))
        if not link.startswith(("http://", "https://")) and not leads_somewhere(page, link)
    ]
    assert not broken


def test_files_that_pages_name_exist() -> None:
    """`decide/planner.py` may leave out the folders above, and a test all of them. What an example
    makes is exempt, and the overlay that its reader makes of a page.
    """
    files = repository_files()
    unknown = [
        f"{page.relative_to(ROOT)}: {name}"
        for page in pages()
        if page.relative_to(ROOT).parts[0] != "examples"
        for name in re.findall(NAMED_FILE, prose(page))
        if not name.startswith("overlay/") and not any(file.endswith(f"/{name}") for file in files)
    ]
    assert not unknown


def test_the_map_leads_to_files_and_to_tests_in_the_mirrored_room() -> None:
    rows = re.findall(r"^\| [^*\n]* \| (`.*?) \| (`.*?) \|$", MAP.read_text(), re.MULTILINE)
    assert len(rows) >= 20
    files = repository_files()
    unknown = []
    for start, tests in rows:
        room = start.strip("`. ").rpartition("/")[0].rpartition("/")[2]
        for name in re.findall(r"`([^`]+)`", f"{start} {tests}"):
            path = f"/{name}" if "/" in name else f"/{room}/{name}"
            if sum(file.endswith(path) for file in files) != 1:
                unknown.append(f"{start}: {name}")
    assert not unknown


def test_the_map_names_each_module_of_the_product_that_takes_long_to_read() -> None:
    named = re.findall(r"`([^`]+\.py)`", MAP.read_text())
    unnamed = [
        str(path.relative_to(ROOT))
        for path in modules(*PRODUCT)
        if not path.stem.startswith("__")
        and len(path.read_text().splitlines()) > LONG_LINES
        and not any("/" in name and str(path).endswith(f"/{name}") for name in named)
    ]
    assert not unnamed


def contract(name: str) -> dict[str, Any]:
    """A contract of import-linter, as `pyproject.toml` has it."""
    configuration = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    return next(c for c in configuration["contracts"] if c["name"] == name)


def pure_modules(*folders: str) -> Iterator[Path]:
    """Yield the modules that say that they are pure."""
    for path in modules(*folders):
        if re.search(r"\bPure\b", ast.get_docstring(ast.parse(path.read_text())) or ""):
            yield path


def impure_calls(text: str) -> Iterator[str]:
    """Yield line and text of each call that uses a file or a clock, or draws a name. Methods called
    `open` are left out: the product has some that open no file.
    """
    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Call(
                func=ast.Name(id="open" | "uuid4")
                | ast.Attribute(attr="now" | "read_text" | "today" | "uuid4" | "write_text")
            ):
                yield f"{node.lineno}: {ast.unparse(node)}"


def class_names(folder: str) -> Iterator[str]:
    """Yield the names of all classes below `folder`."""
    for path in modules(folder):
        tree = ast.parse(path.read_text())
        yield from (node.name for node in ast.walk(tree) if isinstance(node, ast.ClassDef))


def module_name(path: Path, folder: str) -> str:
    """Return the name by which a module below `folder` is imported."""
    parts = path.relative_to(ROOT / folder).with_suffix("").parts
    return ".".join(part for part in parts if part != "__init__")


def ancestors(name: str) -> Iterator[str]:
    """Yield the packages that a module is in."""
    while name := name.rpartition(".")[0]:
        yield name


def pages() -> Iterator[Path]:
    """Yield the pages of the repository."""
    yield from sorted(ROOT.glob("*.md"))
    for folder in PAGES:
        yield from sorted((ROOT / folder).rglob("*.md"))


def repository_files() -> set[str]:
    """Return the paths of the repository's files, each with a slash before the first folder."""
    folders = (*CODE, *PAGES, "tests", "charts", "manifests")
    paths = [path for folder in folders for path in (ROOT / folder).rglob("*")]
    return {f"/{path.relative_to(ROOT)}" for path in (*ROOT.iterdir(), *paths)}


def prose(page: Path) -> str:
    """Return the text of a page without its blocks of code and its comments."""
    return re.sub(r"<!--.*?-->|^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)


def leads_somewhere(page: Path, link: str) -> bool:
    """Return whether a link of a page names a file, and a heading of it if it names one."""
    name, _, heading = link.partition("#")
    target = page.parent / name if name else page
    return target.exists() and (not heading or heading in headings(target))


def headings(page: Path) -> set[str]:
    """Return the anchors of the headings of a page, as GitHub spells them."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def function_lengths(path: Path) -> Iterator[int]:
    """Yield the number of lines of each function in a file."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield (node.end_lineno or node.lineno) - node.lineno + 1


def test_the_version_is_the_same_everywhere() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    chart = yaml.safe_load((ROOT / "charts/regroup/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (project, project)


def test_what_is_not_released_has_a_newer_version_than_what_is() -> None:
    """By default, a chart takes the images of its version: its operator must know the settings."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    changelog = (ROOT / "CHANGELOG.md").read_text()
    (newest, *_) = re.findall(r"^## \[([\d.]+)\]", changelog, re.MULTILINE)
    unreleased = changelog.partition("## [Unreleased]\n")[2].partition("\n## ")[0].strip()
    numbers, former = ([int(n) for n in one.split(".")] for one in (project, newest))
    assert numbers > former if unreleased else numbers == former
