"""Rewrite rules as data: what equals what, and what a kernel may become.

Takes the engine's terms and a spec's operations, gives named rules for the engine to run.
Guarantees: each rule states its equation, its guard, and whether rounding changes.
"""
