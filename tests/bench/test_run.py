"""Runs of the command on this machine: records, wrong answers, missing peers, variants."""

import json
import os
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from math import nan

import pytest

from eqsat.bench import peer_functions, run, variants
from eqsat.bench.cases import CASES
from eqsat.bench.host import Host
from eqsat.bench.race import Plan, is_wrong, run_case
from eqsat.bench.run import main
from eqsat.specs import cpu

pytestmark = pytest.mark.usefixtures("shared_search")

BY_NAME = {case.name: case for case in CASES}
QUICK = ["--scale", "tiny", "--rounds", "3"]
RECORD = {
    "case": str, "group": str, "scale": str, "sizes": dict, "inputs": dict, "status": str,
    "tolerance": float, "bytes": int, "work": dict, "floor_ms": float, "floor_bound": str,
    "predicted_ms": float, "kernels": int, "bottlenecks": list, "search": dict, "rotation": dict,
    "checked": str, "contenders": list,
}  # fmt: skip
TIMED = {
    "name": str, "status": str, "error": float, "calls_per_block": int, "median_ms": float,
    "lower_quartile_ms": float, "upper_quartile_ms": float, "rounds_ms": list,
}  # fmt: skip


def has(record, fields):
    return all(isinstance(record.get(name), kind) for name, kind in fields.items())


def test_a_run_from_end_to_end(tmp_path, capsys):
    path = tmp_path / "out.json"
    wanted = ["--cases", "cpu-matmul,cpu-softmax", "--peers", "numpy", "--json", str(path)]
    assert main(["run", *QUICK, *wanted, "--commit", "abc"]) == 0
    found = json.loads(path.read_text())
    assert found["schema"] == run.SCHEMA
    assert found["environment"]["commit"] == "abc"
    assert found["environment"]["spec"]["fingerprint"] == cpu().fingerprint
    assert found["environment"]["device"]["threads"] >= 1
    assert {"numpy", "numba"} <= found["environment"]["device"]["libraries"].keys()
    assert [record["case"] for record in found["results"]] == ["cpu-matmul", "cpu-softmax"]
    for record in found["results"]:
        assert has(record, RECORD) and record["status"] == "ok"
        assert [entry["name"] for entry in record["contenders"]] == ["eqsat", "numpy"]
        for entry in record["contenders"]:
            assert has(entry, TIMED) and len(entry["rounds_ms"]) == 3
            assert 0 < entry["lower_quartile_ms"] <= entry["median_ms"]
            assert entry["error"] <= record["tolerance"]
    assert main(["table", str(path)]) == 0
    assert "| cpu-softmax (tiny, warm cache) |" in capsys.readouterr().out


def test_a_file_that_cannot_be_written_is_told_before_anything_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(run, "_race", None)
    lost = tmp_path / "no" / "out.json"
    assert main(["run", *QUICK, "--cases", "cpu-softmax", "--json", str(lost)]) == 2
    said = capsys.readouterr().err
    assert f"cannot write {lost}: No such file or directory. Give --json a file" in said


def test_what_a_file_holds_stays_until_there_are_results(tmp_path):
    path = tmp_path / "good.json"
    run._check_writable(path)
    assert not path.exists()
    path.write_text("good")
    run._check_writable(path)
    assert path.read_text() == "good"


def test_a_run_at_another_precision(tmp_path):
    path = tmp_path / "out.json"
    wanted = ["--cases", "cpu-matmul", "--peers", "", "--json", str(path)]
    assert main(["run", *QUICK, *wanted, "--precision", "tf32"]) == 0
    found = json.loads(path.read_text())
    assert found["settings"]["precision"] == "tf32"
    (record,) = found["results"]
    assert record["status"] == "ok" and record["tolerance"] == 4e-3
    with pytest.raises(SystemExit):
        main(["run", *QUICK, *wanted, "--precision", "half"])


def wrong(whole, spec, *, change, **options):
    changed = tuple(change(output) for output in whole.outputs)
    return variants.build(replace(whole, outputs=changed), spec, **options)


@pytest.mark.parametrize("change", [lambda y: y + 1.0, lambda y: y * nan], ids=["off", "nan"])
def test_a_wrong_answer_gets_no_time(change, tmp_path, monkeypatch, capsys):
    path = tmp_path / "out.json"
    builder = partial(wrong, change=change)
    monkeypatch.setattr(run, "run_case", partial(run_case, builder=builder))
    assert main(["run", *QUICK, "--cases", "cpu-softmax", "--json", str(path)]) == 1
    (record,) = json.loads(path.read_text())["results"]
    assert record["status"] == "wrong"
    assert not any("median_ms" in entry for entry in record["contenders"])
    assert "cpu-softmax: WRONG, no time: error" in capsys.readouterr().out


def test_a_missing_peer_is_named(monkeypatch):
    monkeypatch.setattr(peer_functions.importlib.util, "find_spec", lambda _: None)
    plan = Plan("tiny", ("torch", "inductor"), rounds=1)
    record = run_case(BY_NAME["cpu-softmax"], plan, cpu(), Host(cpu()))
    assert record["status"] == "ok"
    missing = {e["name"]: e["message"] for e in record["contenders"] if e["status"] == "missing"}
    assert missing == dict.fromkeys(("torch", "inductor"), "torch is not installed")


def test_a_peer_that_is_wrong_gets_no_time(monkeypatch):
    case = BY_NAME["cpu-softmax"]
    graph = case.function
    off = replace(case, function=lambda f, x: graph(f, x) if f.__name__[0] == "G" else x)
    record = run_case(off, Plan("tiny", ("numpy",), rounds=1), cpu(), Host(cpu()))
    entry = record["contenders"][1]
    assert entry["status"] == "wrong" and entry["error"] > record["tolerance"]
    assert "median_ms" not in entry and record["status"] == "ok"


def test_an_option_that_compile_does_not_take_is_said():
    case = replace(BY_NAME["cpu-softmax"], options={"no_such_option": 1})
    record = run_case(case, Plan("tiny", (), rounds=1), cpu(), Host(cpu()))
    assert record["status"] == "unsupported"
    assert record["message"] == "eqsat.compile takes no no_such_option= yet"


def test_a_row_that_fails_does_not_lose_the_others(tmp_path, monkeypatch, capsys):
    def explode(case, *_, **__):
        raise MemoryError("no room")

    path = tmp_path / "out.json"
    builder = partial(run_case, builder=explode)
    monkeypatch.setattr(run, "run_case", builder)
    assert main(["run", *QUICK, "--cases", "cpu-so*,cpu-l*", "--json", str(path)]) == 1
    found = json.loads(path.read_text())["results"]
    assert [record["message"] for record in found] == ["MemoryError: no room"] * 2
    assert "FAILED, no time" in capsys.readouterr().out


def test_after_a_lost_device_no_row_runs(tmp_path, monkeypatch):
    class Lost(Host):
        def release(self):
            raise RuntimeError("an illegal address")

    path = tmp_path / "out.json"
    monkeypatch.setattr(run, "Host", Lost)
    wanted = ["--cases", "cpu-so*,cpu-l*", "--peers", "numpy", "--json", str(path)]
    assert main(["run", *QUICK, *wanted]) == 1
    first, second = json.loads(path.read_text())["results"]
    assert first["status"] == "ok" and second["status"] == "not run"
    assert second["message"] == "the device failed in cpu-softmax: an illegal address"


def test_candidates_and_rules_left_out(monkeypatch):
    some = ("no fusion", "unfused, untiled")
    monkeypatch.setattr(variants, "FAMILIES", {name: variants.FAMILIES[name] for name in some})
    case = BY_NAME["cpu-layer-norm"]
    record = run_case(case, Plan("tiny", (), rounds=1, candidates=2), cpu(), Host(cpu()))
    found = {entry["name"]: entry for entry in record["variants"]}
    assert set(variants.FAMILIES) <= found.keys()
    assert "kernel 0, candidate 2" in found
    for entry in found.values():
        assert entry["status"] == "ok", entry
        assert entry["median_ms"] > 0 and entry["predicted_ms"] > 0 and entry["about"]
    best = record["predicted_ms"]
    assert found["unfused, untiled"]["predicted_ms"] > best
    assert found["unfused, untiled"]["about"] != "1 kernels"


def test_random_candidates_race_the_best_predicted(tmp_path, capsys):
    path = tmp_path / "out.json"
    wanted = ["--cases", "cpu-softmax", "--peers", "", "--json", str(path)]
    some = ["--random", "2", "--best", "2", "--seed", "5"]
    assert main(["run", *QUICK, *wanted, *some]) == 0
    (record,) = json.loads(path.read_text())["results"]
    found = record["random"]
    assert found["seed"] == 5 and len(found["entries"]) == 4
    assert found["best"]["count"] == 2 and found["drawn"]["count"] == 2
    assert all(entry["status"] == "ok" and entry["look_ms"] > 0 for entry in found["entries"])
    times = [found[key]["median_ms"] for key in ("best", "drawn")]
    assert found["ratio"] == min(times) / times[0] <= 1
    shown = capsys.readouterr().out
    assert "random legal candidates" in shown
    assert main(["table", str(path)]) == 0
    assert "| case | best predicted ms | of | best random ms |" in capsys.readouterr().out
    assert main(["run", *QUICK, *wanted, *some, "--tune", "2"]) == 2


def test_a_wrong_random_candidate_is_told(monkeypatch):
    class Wrong(Host):
        def variant(self, name, program, launches, sets):
            made = super().variant(name, program, launches, sets)
            if "drawn" not in name:
                return made
            return replace(made, answer=lambda: [x * nan for x in made.answer()])

    plan = Plan("tiny", (), rounds=1, drawn=1, best=1)
    record = run_case(BY_NAME["cpu-softmax"], plan, cpu(), Wrong(cpu()))
    assert [entry["status"] for entry in record["random"]["entries"]] == ["ok", "wrong"]
    assert record["random"]["drawn"] is None and record["random"]["ratio"] == 1
    assert is_wrong(record)


def test_a_candidate_that_loses_the_device_is_named():
    class Losing(Host):
        lost = False

        def variant(self, name, program, launches, sets):
            if "drawn 1" in name:
                self.lost = True
                raise RuntimeError("an illegal instruction")
            return super().variant(name, program, launches, sets)

        def release(self):
            if self.lost:
                raise RuntimeError("an illegal instruction")

    plan = Plan("tiny", (), rounds=1, drawn=2, best=1)
    record = run_case(BY_NAME["cpu-softmax"], plan, cpu(), Losing(cpu()))
    assert record["status"] == "failed"
    assert "kernel 0, drawn 1 (grid" in record["message"] and "lost the device" in record["message"]


def test_an_unknown_peer_is_refused(capsys):
    assert main(["run", "--peers", "numpy,jax"]) == 2
    assert "no peer jax; the peers are numpy, torch, inductor." in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (("--rounds", "x"), "argument --rounds: 'x' is no whole number; give one of at least 1"),
        (("--rounds", "0"), "argument --rounds: 0 is below 1"),
        (("--threads", "99999"), f"99999 is above {4 * os.cpu_count()}, 4 for each of this mach"),
    ],
)
def test_a_number_out_of_its_range_is_refused(given, message, capsys):
    with pytest.raises(SystemExit) as caught:
        main(["run", *given])
    assert caught.value.code == 2
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("cpu-softmax, cpu-matmu", "matches 'cpu-matmu'. Did you mean cpu-matmul? `eqsat-bench l"),
        ("fusd", "no row or group matches 'fusd'. Did you mean fused?"),
        ("zzz", "no row or group matches 'zzz'. `eqsat-bench list` shows them all."),
    ],
)
def test_a_row_that_there_is_not(given, message, capsys):
    assert main(["run", "--cases", given]) == 2
    assert message in capsys.readouterr().err


def test_rows_for_a_gpu_are_not_begun_elsewhere_in_full(monkeypatch, capsys):
    monkeypatch.setattr(run, "_race", None)
    assert main(["run", "--cases", "cpu-softmax,matmul-bf16-8192"]) == 2
    said = capsys.readouterr().err
    assert "eqsat-bench: matmul-bf16-8192: at the full scale rows for GPUs take hours" in said
    assert "of spec cpu. Add --scale small, or --spec device where there is a GPU." in said


@pytest.mark.skipif(find_spec("cupy") is not None, reason="CuPy is installed")
def test_a_gpu_spec_without_cupy_is_refused(capsys):
    assert main(["run", "--spec", "h200", "--cases", "lora"]) == 2
    assert "a GPU spec runs on a GPU, through CuPy" in capsys.readouterr().err


@pytest.mark.gpu
def test_rows_on_the_gpu(tmp_path):
    path = tmp_path / "out.json"
    wanted = ["--cases", "matmul-bf16-1024,residual-rms-norm", "--spec", "device"]
    some = ["--scale", "small", "--rounds", "3", "--peers", "torch", "--json", str(path)]
    assert main(["run", *wanted, *some]) == 0
    for record in json.loads(path.read_text())["results"]:
        own, torch = record["contenders"]
        assert own["status"] == "ok" and own["median_ms"] > 0
        assert torch["status"] in ("ok", "missing")
        assert record["rotation"]["sets"] > 1
