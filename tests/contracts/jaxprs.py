"""The equations of traced programs."""

import jax


def equations(jaxpr, times=1):
    """Yields every equation, also of inner programs, with the number of times that loops of a known length run it."""
    inside = lambda x: hasattr(x, "eqns") or hasattr(x, "jaxpr")
    for equation in jaxpr.eqns:
        yield equation, times
        repeated = times * equation.params["length"] if equation.primitive.name == "scan" else times
        for inner in filter(inside, jax.tree.leaves(equation.params, is_leaf=inside)):
            yield from equations(getattr(inner, "jaxpr", inner), repeated)
