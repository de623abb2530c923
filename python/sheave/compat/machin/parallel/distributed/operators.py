"""Reduce operations by the names that programs give them."""

from typing import Any

from sheave.compat.runtime_errors import invalid

#: Sheave's names, by torch's.
OPERATORS = {
    "SUM": "sum",
    "PRODUCT": "product",
    "MIN": "min",
    "MAX": "max",
    "BAND": "band",
    "BOR": "bor",
    "BXOR": "bxor",
    "AVG": "avg",
}


def operator(op: Any) -> Any:
    """Sheave's name of a ``torch.distributed.ReduceOp`` or of a name in any case, such as ``"SUM"``.

    Numbers are refused: versions of torch count their operations differently.

    >>> operator("MAX")
    'max'
    """
    # Torch has values of its enumeration, and objects that hold one.
    value = getattr(op, "op", op)
    name = value if isinstance(value, str) else getattr(value, "name", None)
    known = OPERATORS.get(name.upper()) if isinstance(name, str) else None
    if known is None:
        hint = f"give one of torch.distributed.ReduceOp, or a name of {', '.join(OPERATORS)}"
        raise invalid("reduce", f"there is no operation {op!r}", hint)
    return known
