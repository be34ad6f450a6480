"""How many blocks of a cluster may compute a tile together."""

import math

from eqsat.specs import ParallelProcessingUnit
from eqsat.terms.algebra import SCANS, SCATTERS
from eqsat.terms.form import SUBSTITUTED, Form

CLUSTER = "cluster"  # the group of a spec whose blocks write to each other's shared memory
COUNTS = (2, 4, 8, 16)
PAIR = 2  # blocks on processors side by side, of which no device has an odd one
LEAST_BYTES = 4  # of a value in registers
REGISTER_SHARE = 8  # a row of more than this part of a processor's registers is long


def clusters(form: Form, spec: ParallelProcessingUnit) -> tuple[int, ...]:
    """Powers of two up to what a cluster holds, for rows that take much of the registers of one
    processor; none for products, scans and scatters, which a block does by itself.
    """
    found = [group for group in spec.parallel_groups if group.name == CLUSTER]
    if not found or not form.reduced:
        return ()
    points = math.prod(form.extents[name] for name in form.reduced)
    long = points * LEAST_BYTES * REGISTER_SHARE > spec.memory("registers").size_bytes
    alone = {*SUBSTITUTED, *SCANS, *SCATTERS}
    if not long or any(term.op in alone or form.contraction(term) for term in form.terms):
        return ()
    return tuple(count for count in COUNTS if count <= found[0].size)


def sharers(spec: ParallelProcessingUnit) -> tuple[int, ...]:
    """How many blocks may copy factors for each other; none where a spec has no clusters. Of more
    than two together not all processors have room (`count` of the spec's group).
    """
    return (PAIR,) if any(group.name == CLUSTER for group in spec.parallel_groups) else ()
