"""The public face: names load on first use, and come from where they are defined."""

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import eqsat
import eqsat.graph

STUB = Path(eqsat.__file__).with_suffix(".pyi")


@pytest.mark.parametrize("name", sorted(eqsat._PUBLIC))
def test_a_public_name_comes_from_its_module(name):
    assert getattr(eqsat, name) is getattr(importlib.import_module(eqsat._PUBLIC[name]), name)
    assert name in vars(eqsat), "and is kept"


def test_every_name_of_the_graph_is_public():
    assert {"input", "constant", "matmul"} <= set(eqsat.graph.__all__)
    for name in eqsat.graph.__all__:
        assert getattr(eqsat, name) is getattr(eqsat.graph, name), name
    assert not set(eqsat.graph.__all__) & set(eqsat._PUBLIC)


def test_dir_lists_what_can_be_had():
    assert set(dir(eqsat)) == {"__version__", *eqsat._PUBLIC, *eqsat.graph.__all__}


def test_packages_and_modules_are_attributes():
    assert eqsat.specs.__name__ == "eqsat.specs"
    assert eqsat.settings.__name__ == "eqsat.settings"


@pytest.mark.parametrize("name", ["nothing_like_this", "tests", "docs", "_private", "__all__"])
def test_an_unknown_name_is_an_attribute_error(name):
    with pytest.raises(AttributeError, match=f"module 'eqsat' has no attribute '{name}'"):
        getattr(eqsat, name)


def test_a_misspelt_name_gets_a_hint():
    with pytest.raises(AttributeError, match=r"no attribute 'matmull'; did you mean 'matmul'\?"):
        eqsat.matmull  # noqa: B018


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("cumsum", "write eqsat.cumulative_sum"),
        ("cat", "write eqsat.concat"),
        ("amax", "write eqsat.max"),
        ("norm", "write eqsat.sqrt(eqsat.sum(x * x))"),
        ("relu6", "write eqsat.clip(x, 0, 6)"),
        ("unsqueeze", "write eqsat.expand_dims"),
        ("topk", "write eqsat.top_k"),
        ("scatter", "write eqsat.scatter_add"),
        ("float", "write eqsat.float32"),
        ("pi", "write math.pi"),
        ("cumsun", "did you mean eqsat.cumulative_sum?"),
        ("expanddims", "did you mean 'expand_dims'?"),
    ],
)
def test_a_name_of_another_library_gets_what_to_write(name, hint):
    with pytest.raises(AttributeError) as caught:
        getattr(eqsat, name)
    assert str(caught.value) == f"module 'eqsat' has no attribute {name!r}; {hint}"


def test_a_name_like_no_other_gets_no_hint():
    with pytest.raises(AttributeError, match=r"no attribute 'linalg'$"):
        eqsat.linalg  # noqa: B018


def test_public_names_win_over_modules_whatever_is_imported_first():
    for order in ("import eqsat; eqsat.split; import eqsat.driver", "import eqsat.driver, eqsat"):
        code = f"{order}; print(callable(eqsat.split), callable(eqsat.round))"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
        assert done.stdout.split() == ["True", "True"], done.stderr


def test_the_stub_lists_the_same_names():
    imports = [
        node for node in ast.parse(STUB.read_text()).body if isinstance(node, ast.ImportFrom)
    ]
    names = {alias.name: node.module for node in imports for alias in node.names}
    assert names == {"*": "eqsat.graph", **eqsat._PUBLIC}
