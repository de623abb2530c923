"""Small classes that machin's own programs and tests use: `Object`.

    point = Object({"x": 1})
    point.y = 2
    assert point.x + point["y"] == 3 and point.z is None
"""

from collections.abc import Iterable
from typing import Any

__all__ = ["Object"]


class Object:
    """Something whose attributes are the items of a dictionary, `data`. What is not there is None.

    Those named in `const_attrs` cannot be set. Calling it calls `call`, which may be set or overridden.
    """

    data: dict[Any, Any]
    const_attrs: frozenset[Any]

    def __init__(self, data: dict[Any, Any] | None = None, const_attrs: Iterable[Any] | None = None) -> None:
        self.__dict__.update(data={} if data is None else data, const_attrs=frozenset(const_attrs or ()))

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """What a call does: nothing, until it is set or overridden."""

    def attr(self, item: Any, value: Any = None, change: bool = False) -> Any:
        """The item of this name, or None; set to `value` first if it is to `change`."""
        if change:
            self.data[item] = value
        return self.data.get(item)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.call(*args, **kwargs)

    def __getattr__(self, item: str) -> Any:
        # Pickle and copy ask for special methods, and for what is not set yet.
        if item in ("data", "const_attrs") or (item.startswith("__") and item.endswith("__")):
            raise AttributeError(f"an Object has no {item}")
        return self.attr(item)

    def __getitem__(self, item: Any) -> Any:
        return self.attr(item)

    def __setattr__(self, key: str, value: Any) -> None:
        if key == "data" and not isinstance(value, dict):
            raise ValueError(f"data must be a dict, and is a {type(value).__name__}")
        if key in ("data", "call"):
            self.__dict__[key] = value
        elif key in self.const_attrs:
            raise RuntimeError(f"{key} is const")
        elif hasattr(type(self), key) or key in self.__dict__:
            raise RuntimeError(f"{key} is an Object's own; expected data, call, or a name of an item")
        else:
            self.attr(key, value, change=True)

    def __setitem__(self, key: Any, value: Any) -> None:
        if isinstance(key, str):
            setattr(self, key, value)
        else:
            self.attr(key, value, change=True)
