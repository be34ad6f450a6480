"""The Markdown table, from committed results alone."""

import json
from pathlib import Path

from eqsat.bench import table
from eqsat.bench.run import main

SAMPLE = Path(__file__).with_name("sample.json")
EXPECTED = (
    "NVIDIA H200, driver CUDA 13000, 580.65.06; spec h200 fedcba987654; numpy 2.4.6, torch 2.11.0; "
    "commit 0123456789ab+; 2025-11-20; median ± half the interquartile range of 30 rounds, "
    "ratio = best peer / ours.\n"
    """
| case | ours ms | best peer ms | ratio | predicted ms | floor ms | error | peers |
|---|---:|---:|---:|---:|---:|---:|---|
| softmax-8192 | 0.0655 ±1% | 0.131 ±0% inductor | 2.00x | 0.0641 | 0.0559 memory | 2e-03 | \
torch 0.253 (2e-03), inductor 0.131 (3e-03) |
| matmul-bf16-1024 (small, warm cache) | WRONG | none | - | 0.0048 | 0.002 contract | not finite | \
 |
| layer-norm | 0.07 ±0% | none | - | 0.07 | 0.0559 memory | 3e-03 | \
torch missing: torch is not installed, inductor WRONG (5e-01) |
| matmul-tf32-4096 | UNSUPPORTED | none | - | - | 0.257 contract | - |  |
"""
)


def test_the_table_of_a_committed_result(capsys):
    assert main(["table", str(SAMPLE)]) == 0
    assert capsys.readouterr().out == EXPECTED


def test_tables_of_several_results_follow_one_another(capsys):
    assert main(["table", str(SAMPLE), str(SAMPLE)]) == 0
    assert capsys.readouterr().out == f"{EXPECTED}\n{EXPECTED}"


def test_the_ratio_is_that_of_the_best_peer_that_was_right():
    first, second, third, _ = json.loads(SAMPLE.read_text())["results"]
    assert table.ratio(first) == 0.131 / 0.0655
    assert table.ratio(second) is None and table.ratio(third) is None


def test_a_file_of_another_schema_is_refused(tmp_path, capsys):
    path = tmp_path / "old.json"
    path.write_text('{"schema": "eqsat-bench/0"}')
    assert main(["table", str(path)]) == 2
    assert "its schema must be eqsat-bench/1" in capsys.readouterr().err
