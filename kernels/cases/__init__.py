"""One module per operation, named like it: its shapes, builds and benchmark (`OPERATION`)."""

import pkgutil

from kernels.operation import Operation


def operations() -> list[Operation]:
    """Every operation that has a module here, by name.

    Found at run time, so that adding one touches no list. Tests, inspection and benchmark alone use
    this; papers import operations by name, which is what the tracking of their code follows.
    """
    names = sorted(module.name for module in pkgutil.iter_modules(__path__))
    return [pkgutil.resolve_name(f"{__name__}.{name}:OPERATION") for name in names]
