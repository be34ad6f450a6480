"""How a program as written became the program as run: traces, found anew and then checked.

A second, instrumented search finds the steps; `replay` checks them without an e-graph; `render`
shows them as text, JSON or HTML. `eqsat-explain` is `command`.
"""
