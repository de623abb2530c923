"""Operations of a session that move tensors among its workers, as methods of `Session`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal, cast

from sheave import session as ground
from sheave.compat.tvm.runtime.device import Device
from sheave.compat.tvm.runtime.disco.drefs import DPackedFunc, DRef
from sheave.compat.tvm.runtime.errors import InternalError, raising
from sheave.compat.tvm.runtime.values import to_sheave

if TYPE_CHECKING:
    from sheave.compat.tvm.runtime.disco.session import Session

__all__ = ["BACKENDS", "OPERATORS", "Collectives"]

BACKENDS = ("sheave", "mpi", "gloo")
"""Names of what moves tensors of hosts: all mean the same here."""

OPERATORS = ("sum", "prod", "min", "max", "avg")
"""Reductions, each at its number."""


class Collectives:
    """The part of a session that moves tensors, and what it names functions of Disco's own by.

    Operations are commands: they return at once, and what fails is raised by the next wait. Tensors are flat: what goes
    into a tensor has its dtype and its number of elements, and is written there in place. With ``in_group`` each group
    has an operation of its own, whose first worker is the first of the group; without it is one of all workers.
    """

    _session: ground.Session

    def __init__(self) -> None:
        # Registers, and nothing that holds the session: it ends when nobody has it any more.
        self._cache: dict[str, ground.Register] = {}
        self._ccl: str | None = None

    def _get_cached_method(self, name: str) -> DPackedFunc:
        """A function that is named once."""
        found = self._cache.get(name)
        if found is None:
            found = self._cache[name] = self._session.function(name)
        return DPackedFunc(found, self._own())

    def _own(self) -> Session:
        return cast("Session", self)

    def _workers_per_node(self) -> int:
        return self._session.workers

    def _made(self, register: ground.Register, target: DRef | None) -> DRef:
        return DRef(register, self._own()) if target is None else target

    def init_ccl(self, ccl: str, *device_ids: int) -> None:
        """Says what moves tensors: `sheave`, which `mpi` and `gloo` are other names of.

        Device ids, one for each worker of a node, mean nothing there. Operations work without this too.
        """
        if ccl in ("nccl", "rccl"):
            raise ValueError(
                f"Cannot initialize CCL, because sheave moves tensors of hosts and not by {ccl}; "
                f"expected one of {', '.join(BACKENDS)}"
            )
        if ccl not in BACKENDS:
            raise AssertionError(f"Unsupported CCL backend: {ccl}; expected one of {', '.join(BACKENDS)}")
        workers = self._workers_per_node()
        if device_ids and len(device_ids) < workers:
            raise ValueError(f"{len(device_ids)} device ids; expected one for each of {workers} workers")
        if self._ccl is not None:
            raise InternalError(f"the session has been told before what moves its tensors: {self._ccl}")
        self._ccl = ccl

    @raising
    def empty(
        self,
        shape: Any,
        dtype: str,
        device: Device | None = None,
        worker0_only: bool = False,
        in_group: bool = True,
    ) -> DRef:
        """Makes a tensor on all workers, or on the first alone, or the first of each group; the others hold None."""
        if device is not None and not device.exist:
            raise ValueError(f"a tensor on {device}; expected cpu, for sheave's workers have tensors of hosts")
        placement: Literal["all", "leaders", "first"] = "all"
        if worker0_only:
            placement = "leaders" if in_group else "first"
        return DRef(self._session.empty([int(extent) for extent in shape], dtype, placement=placement), self._own())

    @raising
    def copy_from_worker_0(self, host_array: Any, remote_array: DRef) -> None:
        """Copies what worker 0 has into an array. Read that after a `sync_worker_0`."""
        self._session.copy_from_first(to_sheave(host_array), remote_array._register)

    @raising
    def copy_to_worker_0(self, host_array: Any, remote_array: DRef | None = None) -> DRef:
        """Copies an array to worker 0: into what that has, or into a tensor which the others have not.

        The array is captured before this returns.
        """
        return self._made(self._session.copy_to_first(to_sheave(host_array), _register(remote_array)), remote_array)

    @raising
    def broadcast(self, src: Any, dst: DRef | None = None, in_group: bool = True) -> DRef:
        """Sends an array to all workers. Each has it in `dst`, or in a tensor of the same shape.

        With several groups and `in_group` it goes to the first worker of each, and from there on.
        """
        return self._made(self._session.broadcast(to_sheave(src), _register(dst), scope=_scope(in_group)), dst)

    @raising
    def broadcast_from_worker0(self, src: Any, dst: DRef | None = None, in_group: bool = True) -> DRef:
        """Sends what the first workers have in `src` to the others. It may be an array of the controller's too."""
        if not isinstance(src, DRef):
            return self.broadcast(src, dst, in_group)
        made = self._session.broadcast_from_first(src._register, _register(dst), scope=_scope(in_group))
        return self._made(made, dst)

    @raising
    def scatter(self, src: Any, dst: DRef | None = None, in_group: bool = True) -> DRef:
        """Sends each worker its row of an array. It has that in `dst`, or in a tensor of the row's shape.

        There is one row for each worker, or, with several groups and `in_group`, for each of a group: row i goes to the
        i-th of each.
        """
        array = to_sheave(src)
        receivers = self._session.workers // (self._session.groups if in_group else 1)
        if not array.shape or array.shape[0] != receivers:
            whom = "worker of a group" if in_group and self._session.groups > 1 else "worker"
            shape = tuple(array.shape)
            raise AssertionError(f"an array of shape {shape}; expected {receivers} rows, one for each {whom}")
        return self._made(self._session.scatter(array, _register(dst), scope=_scope(in_group)), dst)

    @raising
    def scatter_from_worker0(self, from_array: Any, to_array: DRef | None = None, in_group: bool = True) -> DRef:
        """Sends each worker its part of what the first has, in the order of the elements, whose number it divides.

        `from_array` may be an array of the controller's too.
        """
        if not isinstance(from_array, DRef):
            return self.scatter(from_array, to_array, in_group)
        made = self._session.scatter_from_first(from_array._register, _register(to_array), scope=_scope(in_group))
        return self._made(made, to_array)

    @raising
    def gather_to_worker0(self, from_array: DRef, to_array: DRef | None = None, in_group: bool = True) -> DRef:
        """Sends what all workers have to the first, one behind the other."""
        made = self._session.gather_to_first(from_array._register, _register(to_array), scope=_scope(in_group))
        return self._made(made, to_array)

    @raising
    def allreduce(self, src: DRef, dst: DRef | None = None, op: str = "sum", in_group: bool = True) -> DRef:
        """Reduces what the workers have in `src`, element by element, by `sum`, `prod`, `min`, `max` or `avg`.

        Each has the result in `dst`, which may be `src`. Integers wrap around, and their average is cut off towards
        zero.
        """
        if op not in OPERATORS:
            raise ValueError(f"Unsupported reduce op: {op}. Available ops are: {', '.join(OPERATORS)}")
        operator = cast("Literal['sum', 'prod', 'min', 'max', 'avg']", op)
        made = self._session.all_reduce(src._register, _register(dst), operator, scope=_scope(in_group))
        return self._made(made, dst)

    @raising
    def allgather(self, src: DRef, dst: DRef | None = None, in_group: bool = True) -> DRef:
        """Sends what each worker has in `src` to all, one behind the other."""
        made = self._session.all_gather(src._register, _register(dst), scope=_scope(in_group))
        return self._made(made, dst)


def _register(dref: DRef | None) -> ground.Register | None:
    return None if dref is None else dref._register


def _scope(in_group: bool) -> Literal["group", "world"]:
    return "group" if in_group else "world"
