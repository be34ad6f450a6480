"""Benchmarks: cases as rows of a table, run against their peers on the machine at hand.

Takes compiled programs, gives median, spread, predicted cost and floor.
Guarantees: a wrong answer gets no time.
"""
