"""The process that runs egglog: one JSON request a line in, one JSON answer a line out.

A search can exhaust memory or time, and a panic leaves an e-graph unusable; so it runs here, under
limits of memory and of time on a core. Nothing but text crosses the pipe.
"""

import gc
import itertools
import json
import os
import resource
import signal
import sys
from collections import defaultdict
from typing import Any


def search(request: dict[str, Any]) -> dict[str, Any]:
    """Run the commands and schedules of a request; return constructor rows and statistics.

    Columns map an operation to the values of each argument and to the classes, row by row: classes
    are integers, atoms JSON values.
    """
    from egglog.bindings import EGraph

    egraph = EGraph()
    for line in request["commands"]:
        egraph.run_program(*egraph.parse_program(line))
    fired: dict[str, int] = {}
    changed: list[bool] = []  # whether each schedule ended with something left to do
    for schedule in request["schedules"]:
        for output in egraph.run_program(*egraph.parse_program(schedule)):
            report = output.report
            for name, count in report.num_matches_per_rule.items():
                fired[name] = fired.get(name, 0) + count
            changed.append(any(one.rule_set_report.changed for one in report.iterations[-2:]))
    return {"columns": _columns(egraph, request["read"]), "fired": fired, "changed": changed}


def _columns(egraph: Any, wanted: list[str]) -> dict[str, list[list[Any]]]:
    decode = {
        "i64": egraph.value_to_i64,
        "f64": egraph.value_to_f64,
        "String": egraph.value_to_string,
    }
    classes: dict[Any, int] = defaultdict(itertools.count().__next__)
    found: dict[str, list[list[Any]]] = {}
    functions = egraph.freeze().functions
    for name in wanted:
        function = functions.get(name)
        if function is None:
            continue
        sorts = [*function.input_sorts, function.output_sort]
        rows = [(*row.inputs, row.output) for row in function.rows if not row.subsumed]
        columns = [*zip(*rows, strict=True)] or [()] * len(sorts)
        known = [one for sort, one in zip(sorts, columns, strict=True) if sort not in decode]
        for value in itertools.chain.from_iterable(zip(*known, strict=True)):
            classes[value]  # numbered in the order of rows
        found[name] = [
            [*map(decode.get(sort, classes.__getitem__), one)]
            for sort, one in zip(sorts, columns, strict=True)
        ]
    return found


def main() -> None:
    """Serve requests until standard input ends."""
    limit = int(os.environ["EQSAT_SEARCH_MEMORY_BYTES"])
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))
    signal.signal(signal.SIGPROF, signal.SIG_DFL)  # the parent may ignore it
    gc.disable()  # requests and answers hold no cycles
    for line in sys.stdin:
        try:
            request = json.loads(line)
            signal.setitimer(signal.ITIMER_PROF, request["seconds"])  # its signal ends the process
            answer = search(request)
            signal.setitimer(signal.ITIMER_PROF, 0)
        except BaseException as error:  # a panic of egglog is no Exception
            answer = {"error": f"{type(error).__name__}: {error}"}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()
        if "error" in answer:
            return


if __name__ == "__main__":
    main()
