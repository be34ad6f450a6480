"""The Python code of the README and of the guides runs, block after block in one namespace; what
the README links to is there.
"""

import re
from pathlib import Path

import pytest

from eqsat.bench.run import main

ROOT = Path(__file__).resolve().parent.parent
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language, text=TEXT):
    """(line of the first statement, source) of each fenced block of a language."""
    for match in re.finditer(rf"^```{language}\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        yield text.count("\n", 0, match.start(1)), match[1]


@pytest.mark.parametrize(
    ("name", "least"), [("README.md", 6), ("docs/carries.md", 1), ("docs/specs.md", 3)]
)
def test_the_python_blocks_run_in_order(name, least, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = list(blocks("python", (ROOT / name).read_text(encoding="utf-8")))
    assert len(found) >= least
    namespace = {"__name__": "readme"}
    for line, source in found:
        padded = "\n" * line + source  # so that a traceback shows the file's own lines
        exec(compile(padded, str(ROOT / name), "exec"), namespace)


def test_the_two_commands_head_it():
    _, first = next(blocks("sh"))
    assert re.findall(r"^make \w+", first, re.MULTILINE) == ["make demo", "make test"]
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    assert all(re.search(rf"^{name}:", makefile, re.MULTILINE) for name in ("demo", "test"))


@pytest.mark.parametrize("target", sorted(set(re.findall(r"\]\((?!https?:)([^)#]+)\)", TEXT))))
def test_links_lead_to_files(target):
    assert (ROOT / target).exists()


def test_the_results_are_those_of_the_committed_runs(capsys):
    shown = TEXT.split("<!-- results -->\n")[1].split("<!-- end of results -->")[0]
    results = ROOT / "bench" / "results"
    every = (
        *("cpu", "cpu-avx2", "cpu-xeon"),
        *("h200", "h200-turned", "h200-more", "h200-scan", "h200-attention", "h200-gradients"),
    )
    names = tuple(f"{name}.json" for name in every)
    files = [str(results / name) for name in names]
    assert main(["table", *files]) == 0
    assert capsys.readouterr().out == shown
