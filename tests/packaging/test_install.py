"""Every way to install eqsat resolves its packages, and `import eqsat` stays light.

Installs go into fresh folders with this interpreter, from a copy of the source tree, offline.
"""

import json
import os
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("eqsat", "graph", "rules", "codegen", "specs", "bench")
# Takes away an editable install that this interpreter has, lest it answer for another.
ALONE = """
import sys
sys.meta_path[:] = [finder for finder in sys.meta_path if "__editable___eqsat" not in str(finder)]
for name in [name for name in sys.modules if name.startswith("__editable___eqsat")]:
    del sys.modules[name]
"""
HEAVY = ("egglog", "numba", "scipy", "cupy", "networkx", "rich", "numpy", "sqlite3", "torch")
# Prints where eqsat and its packages come from, as JSON.
WHERE = """
import importlib, json
names = ["eqsat", *("eqsat." + name for name in ("graph", "rules", "codegen", "specs", "bench"))]
print(json.dumps({name: importlib.import_module(name).__file__ for name in names}))
"""


def python(code: str, cwd: Path, path: Path | None = None) -> str:
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    if path is not None:
        environment["PYTHONPATH"] = str(path)
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return done.stdout


def pip(*arguments: object) -> None:
    options = ["--quiet", "--no-deps", "--no-index", "--disable-pip-version-check"]
    command = [sys.executable, "-m", "pip", *map(str, arguments), *options]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


@pytest.fixture(scope="module")
def clone(tmp_path_factory):
    """A copy of what a clone holds, so that building leaves nothing in the source tree."""
    clone = tmp_path_factory.mktemp("clone")
    ignore = shutil.ignore_patterns("__pycache__")
    for name in PACKAGES:
        shutil.copytree(ROOT / name, clone / name, ignore=ignore)
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, clone)
    return clone


@pytest.fixture(scope="module")
def wheel(clone, tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    pip("wheel", "--no-build-isolation", "--wheel-dir", folder, clone)
    (wheel,) = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    target = tmp_path_factory.mktemp("installed")
    pip("install", "--target", target, wheel)
    return target


def source_files(clone: Path) -> set[str]:
    """What the clone's packages hold, under the names they are to be installed as."""
    return {
        (
            path.relative_to(clone) if name == "eqsat" else "eqsat" / path.relative_to(clone)
        ).as_posix()
        for name in PACKAGES
        for path in (clone / name).rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_the_wheel_holds_every_file_and_one_package(wheel, clone):
    names = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    assert names == source_files(clone)


def test_a_wheel_works_from_another_folder(installed, tmp_path):
    where = json.loads(python(WHERE, tmp_path, installed))
    assert all(Path(file).is_relative_to(installed / "eqsat") for file in where.values()), where


def test_a_plain_install_works_inside_the_clone(installed, clone):
    """There the clone's eqsat/ hides the installed one, and must find its siblings."""
    where = json.loads(python(WHERE, clone, installed))
    assert Path(where["eqsat"]) == clone / "eqsat" / "__init__.py"
    assert Path(where["eqsat.graph"]) == clone / "graph" / "__init__.py"
    assert all(Path(file).is_relative_to(clone) for file in where.values()), where


@pytest.mark.parametrize("mode", ["lenient", "strict"])
def test_an_editable_install_works_from_another_folder(clone, tmp_path, mode):
    target = tmp_path / "target"
    mode_option = ["--config-settings", f"editable_mode={mode}"]
    pip("install", "--no-build-isolation", *mode_option, "--target", target, "--editable", clone)
    # Reads the .pth file there, as an interpreter does at its start.
    site = f"import site; sys.path.insert(0, {str(target)!r}); site.addsitedir(sys.path[0])"
    where = json.loads(python(f"{ALONE}\n{site}\n{WHERE}", tmp_path))
    files = {name: Path(file).resolve() for name, file in where.items()}
    assert files["eqsat"] == clone / "eqsat" / "__init__.py"
    assert files["eqsat.graph"] == clone / "graph" / "__init__.py"
    assert all(file.is_relative_to(clone) for file in files.values()), where


def test_the_version_is_the_distribution_s(wheel):
    version = python("import eqsat; print(eqsat.__version__)", ROOT).strip()
    assert wheel.name.startswith(f"eqsat-{version}-")


def test_the_import_is_light():
    loaded = python("import eqsat, sys; print(*sys.modules)", ROOT).split()
    assert not set(HEAVY) & set(loaded)
    assert [name for name in loaded if name.startswith("eqsat")] == ["eqsat"]
