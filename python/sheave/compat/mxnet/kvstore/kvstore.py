"""The store: `sheave.KVStore` with MXNet's manners."""

import atexit
import contextlib
import itertools
import os
import sys
import warnings
import weakref
from typing import Any

import numpy as np
import sheave

from sheave.compat.mxnet._pending import Pending, track
from sheave.compat.mxnet._replacing import replaced
from sheave.compat.mxnet.base import MXNetError, as_list, translated
from sheave.compat.mxnet.kvstore.agreement import agree
from sheave.compat.mxnet.kvstore.base import KVStoreBase
from sheave.compat.mxnet.kvstore.keys import Key, Pairs, grouped, pairs
from sheave.compat.mxnet.kvstore.places import Places, RowPulls
from sheave.compat.mxnet.kvstore.updating import LocalUpdater, ServerOptimizer, ServerUpdater
from sheave.compat.mxnet.ndarray.array import NDArray
from sheave.compat.mxnet.ndarray.operators import add_n
from sheave.compat.mxnet.ndarray.sparse import RowSparseNDArray
from sheave.compat.mxnet.optimizer.native import native_optimizer
from sheave.compat.mxnet.optimizer.optimizer import Optimizer
from sheave.compat.mxnet.optimizer.updater import Updater, get_updater

__all__ = ["KVStore", "create"]

#: The names that there are, and what sheave calls them.
KINDS = {
    "local": "local",
    "local_update_cpu": "local",
    "local_allreduce_cpu": "local",
    "device": "device",
    "local_allreduce_device": "device",
    "dist": "dist_sync",
    "dist_sync": "dist_sync",
    "dist_device_sync": "dist_sync",
    "dist_sync_device": "dist_sync",
    "dist_async": "dist_async",
    "dist_async_device": "dist_async",
    "dist_device_async": "dist_async",
    "dist_ssp": "dist_ssp",
}

#: Stores that have not been closed, in the order in which they were created, which is the same on all workers.
_open: "weakref.WeakValueDictionary[int, KVStore]" = weakref.WeakValueDictionary()
_numbers = itertools.count()
_dist_numbers = itertools.count()


class KVStore(KVStoreBase):
    """Arrays by key. `create` makes one.

    Operations on data return at once where others must be waited for; whoever reads an array that is pulled into waits,
    and is told of what went wrong, pushes to that key included.

    >>> import sheave.compat.mxnet as mx
    >>> store = mx.kv.create("local")
    >>> store.init("weight", mx.nd.ones((2, 3)))
    >>> store.set_optimizer(mx.optimizer.create("sgd", learning_rate=0.5))
    >>> store.push("weight", [mx.nd.ones((2, 3), mx.gpu(0)), mx.nd.ones((2, 3), mx.gpu(1))])
    >>> weight = mx.nd.empty((2, 3))
    >>> store.pull("weight", out=weight)
    >>> weight[0].asnumpy().tolist()
    [0.0, 0.0, 0.0]
    """

    def __init__(self, name: str = "local") -> None:
        self._closed = True
        self._type = name
        kind = KINDS[name]
        self._is_dist = kind.startswith("dist")
        bound = os.environ.get("MXNET_KVSTORE_BIGARRAY_BOUND") if self._is_dist else None
        with translated():
            self._store = sheave.KVStore(kind, cut_elements=int(bound)) if bound else sheave.KVStore(kind)
        self._closed = False
        self._shapes: dict[Key, tuple[int, ...]] = {}
        self._dtypes: dict[Key, np.dtype[Any]] = {}
        self._sparse: set[Key] = set()
        self._pushed: dict[Key, list[Pending]] = {}
        self._skipped: set[Key] = set()
        self._optimizer: Optimizer | None = None
        self._native: Any = None
        self._updater: Any = None
        self._local_updater: LocalUpdater | None = None
        # Whether it is an optimizer in Python with states.
        self._keeps_states = False
        # Where workers do not wait for each other they must agree on when the updater was set, and how often.
        self._agrees = self._is_dist and kind != "dist_sync" and self._store.num_workers > 1
        self._number, self._settings = next(_dist_numbers) if self._is_dist else 0, 0
        _open[next(_numbers)] = self

    # Data.

    def init(self, key: Any, value: Any) -> None:
        """New keys and their first values, which are copied. On servers worker 0's count; blocks until all workers
        have called it."""
        groups = self._checked(pairs(key, value))
        for one, arrays in groups.items():
            if len(arrays) > 1 or one in self._shapes:
                raise MXNetError(f"duplicate init of key {one!r}")
        dense = {one: arrays[0] for one, arrays in groups.items() if not isinstance(arrays[0], RowSparseNDArray)}
        tables = [(one, array) for one, (array,) in groups.items() if isinstance(array, RowSparseNDArray)]
        with translated():
            if dense:
                self._store.init(list(dense), [np.ascontiguousarray(array._data) for array in dense.values()])
            if tables:
                ids, rows = zip(*(array._rows() for _, array in tables), strict=True)
                shapes, dtypes = [array.shape for _, array in tables], [array._raw.dtype for _, array in tables]
                self._store.init_rows([one for one, _ in tables], shapes, dtypes, list(ids), list(rows))
        for one, (array,) in groups.items():
            self._shapes[one], self._dtypes[one] = array.shape, array._raw.dtype
        self._sparse |= {one for one, _ in tables}

    def push(self, key: Any, value: Any, priority: int = 0) -> None:
        """Merges the sum of the values that are given for a key into the stored one. They are captured before it
        returns."""
        self._push(self._known(pairs(key, value)), priority)

    def pull(self, key: Any, out: Any = None, priority: int = 0, ignore_sparse: bool = True) -> None:
        """Copies stored values into arrays. Row-sparse arrays are left as they are unless `ignore_sparse` is False."""
        assert out is not None, "pull needs an array to pull into"
        groups = self._known(pairs(key, out))
        places = Places()
        for one, arrays in groups.items():
            if ignore_sparse:
                arrays = self._without_sparse(one, arrays)
            if arrays:
                places.add(one, self._shapes[one], self._dtypes[one], arrays)
        if places.keys:
            with translated():
                work = self._store.pull(places.keys, places.targets, priority=priority)
            self._finish([work], places, set(places.keys))

    def pushpull(self, key: Any, value: Any, out: Any = None, priority: int = 0) -> None:
        """Pushes, and pulls into `out`, or into the values themselves. In one message where all is dense."""
        pushed = self._known(pairs(key, value))
        pulled = self._known(pairs(key, value if out is None else out))
        arrays_of = [*pushed.values(), *pulled.values()]
        if set(pushed) != set(pulled) or any(array.stype != "default" for arrays in arrays_of for array in arrays):
            self._push(pushed, priority)
            self.pull(key, value if out is None else out, priority)
            return
        places = Places()
        for one, arrays in pulled.items():
            places.add(one, self._shapes[one], self._dtypes[one], arrays)
        values = [[np.ascontiguousarray(array._data) for array in arrays] for arrays in pushed.values()]
        self._refresh()
        with translated():
            work = self._store.pushpull(list(pushed), values, places.targets, priority=priority)
        self._finish([work], places, set(places.keys))

    def broadcast(self, key: Any, value: Any, out: Any, priority: int = 0) -> None:
        """`init`, and then `pull`."""
        self.init(key, value)
        self.pull(key, out, priority)

    def row_sparse_pull(self, key: Any, out: Any = None, priority: int = 0, row_ids: Any = None) -> None:
        """Makes row-sparse arrays hold the rows with these ids, which may come in any order and several times. One
        array of ids serves all outputs of a key, else there is one for each."""
        assert out is not None, "row_sparse_pull needs an array to pull into"
        assert row_ids is not None, "row_sparse_pull needs row ids"
        places = pairs(key, out)
        self._known(places)
        given = as_list(row_ids)
        if len(given) == 1 and isinstance(given[0], NDArray):
            given = given * len(places)
        else:
            given = [ids for _, ids in pairs(key, row_ids)]
        assert len(places) == len(given), f"{len(places)} outputs and {len(given)} arrays of row ids"
        pulls = RowPulls()
        for (one, array), ids in zip(places, given, strict=True):
            if not isinstance(array, RowSparseNDArray) or ids.stype != "default" or one not in self._sparse:
                raise MXNetError(f"row_sparse_pull of key {one!r} needs a row_sparse value and output, and dense ids")
            if array.shape != self._shapes[one]:
                raise MXNetError(f"key {one!r} holds shape {self._shapes[one]}, not {array.shape}")
            pulls.add(one, ids, self._shapes[one], self._dtypes[one], array)
        with translated():
            work = self._store.pull_rows(pulls.keys, pulls.ids, pulls.buffers, priority=priority)
        self._finish([work], pulls, set(pulls.keys))

    # What pushes do.

    def set_optimizer(self, optimizer: Optimizer) -> None:
        """Lets pushes take steps of an optimizer: natively where sheave has the rule, else in Python. With other
        settings of the same rule, native states go on."""
        native = native_optimizer(optimizer)
        if native is None and not self._is_dist:
            self._set_updater(get_updater(optimizer))
        else:
            with translated():
                self._store.set_updater(native or ServerOptimizer(optimizer))
            self._agree()
            self._updater = self._local_updater = None
        self._optimizer, self._native = optimizer, native
        self._keeps_states = native is None and type(optimizer).create_state is not Optimizer.create_state

    def _set_updater(self, updater: Any) -> None:
        """Lets pushes call `updater(key, received, stored)`, which changes `stored` in place. Text keys come as bytes.
        On servers arrays are flat, large ones come in slices, and pushed rows are packed."""
        if not callable(updater):
            raise MXNetError("an updater is a function of a key and two arrays")
        local = None if self._is_dist else LocalUpdater(updater, self._shapes)
        with translated():
            self._store.set_updater(local or ServerUpdater(updater))
        self._agree()
        self._updater, self._local_updater, self._native, self._keeps_states = updater, local, None, False

    def set_gradient_compression(self, compression_params: dict[str, Any]) -> None:
        """Compresses float32 gradients on their way: ``{"type": "2bit" or "1bit", "threshold": 0.5}``."""
        if "device" not in self._type and not self._is_dist:
            raise Exception("Gradient compression is not supported for this type of kvstore")
        if "type" not in compression_params:
            raise MXNetError("the parameters of gradient compression need a type")
        threshold = float(compression_params.get("threshold", 0.5))
        with translated():
            self._store.set_gradient_compression(compression_params["type"], threshold)

    @staticmethod
    def is_capable(capability: str) -> bool:
        """True for the optimizer; raises `ValueError` for what is no capability."""
        if capability.lower() == KVStoreBase.OPTIMIZER:
            return True
        raise ValueError(f"Unknown capability: {capability}")

    def save_optimizer_states(self, fname: str, dump_optimizer: bool = False) -> None:
        """Writes the optimizer's states: natively as a safetensors file, those of an updater in Python as a pickle.
        Should that fail, what was there stays."""
        if isinstance(self._updater, Updater):
            with replaced(fname) as file:
                file.write(self._updater.get_states(dump_optimizer))
            return
        assert self._native is not None, "Cannot save states without an optimizer of sheave's or of this process"
        with translated():
            self._store.save_optimizer_states(fname, dump_optimizer)

    def load_optimizer_states(self, fname: str) -> None:
        """Reads what `save_optimizer_states` has written. A pickle must come from nobody else."""
        if isinstance(self._updater, Updater):
            with open(fname, "rb") as file:
                self._updater.set_states(file.read())
            return
        assert self._native is not None, "Cannot load states without an optimizer of sheave's or of this process"
        with translated():
            self._store.load_optimizer_states(fname)

    # The job.

    @property
    def type(self) -> str:
        """The name that it was created by, in lower case."""
        return self._type

    @property
    def rank(self) -> int:
        """This worker's number; 0 in a store of this process."""
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are; 1 in a store of this process."""
        return self._store.num_workers

    @property
    def handle(self) -> sheave.KVStore:
        """sheave's own store."""
        return self._store

    def _barrier(self) -> None:
        """Meets all other workers."""
        with translated():
            self._store.barrier()

    def _send_command_to_servers(self, head: int, body: str | bytes) -> list[bytes]:
        """Sends a command to the controller of every server; returns their answers."""
        with translated():
            return self._store.send_command_to_servers(head, body.encode() if isinstance(body, str) else body)

    def get_num_dead_node(self, node_id: int, timeout: float = 60) -> int:
        """How many of some nodes are dead: 1 the scheduler, 2 servers, 4 workers, or sums of these."""
        with translated():
            return self._store.num_dead_node(node_id, timeout)

    def _set_barrier_before_exit(self, flag: bool) -> None:
        """Whether closing meets the other workers."""
        with translated():
            self._store.set_barrier_before_exit(flag)

    def close(self) -> None:
        """Leaves the job: others' pushes wait for this worker no more, and this one waits until they close too. It
        happens by itself at the end of the program, unless an exception has ended it: a worker that goes astray must
        not look like one that has finished."""
        if not self._closed:
            self._closed = True
            with translated():
                try:
                    if self._is_dist:
                        self._store.done()
                finally:
                    self._store.close()

    def __del__(self) -> None:
        if not self._closed and not sys.is_finalizing():
            with contextlib.suppress(Exception):
                self.close()

    # Within.

    def _checked(self, flat: Pairs) -> dict[Key, list[NDArray]]:
        """By key; all keys of a store are of one type."""
        if flat and self._shapes and type(flat[0][0]) is not type(next(iter(self._shapes))):
            raise MXNetError("Mixed key types are not allowed")
        return grouped(flat)

    def _known(self, flat: Pairs) -> dict[Key, list[NDArray]]:
        groups = self._checked(flat)
        for one in groups:
            if one not in self._shapes:
                raise MXNetError(f"key {one!r} has not been inited")
        return groups

    def _push(self, groups: dict[Key, list[NDArray]], priority: int) -> None:
        self._refresh()
        dense, rows = {}, {}
        for one, arrays in groups.items():
            if not all(isinstance(array, RowSparseNDArray) for array in arrays):
                dense[one] = [np.ascontiguousarray(array._data) for array in arrays]
            elif self._local_updater is not None:
                # The updater sees the whole; it is told which rows have come.
                total = add_n(*(NDArray(array._data) for array in arrays))
                ids = [array._rows()[0] for array in arrays if isinstance(array, RowSparseNDArray)]
                self._local_updater.ids[one] = np.unique(np.concatenate(ids))
                dense[one] = [total._raw]
            elif self._is_dist and self._keeps_states:
                raise MXNetError("rows cannot be pushed to an optimizer in Python that keeps states; push them dense")
            else:
                rows[one] = [array._rows() for array in arrays if isinstance(array, RowSparseNDArray)]
        try:
            with translated():
                if dense:
                    work = self._store.push(list(dense), list(dense.values()), priority=priority)
                    self._remember(work, list(dense))
                if rows:
                    flat = [(one, *pair) for one, pairs_of in rows.items() for pair in pairs_of]
                    keys, ids, values = (list(column) for column in zip(*flat, strict=True))
                    self._remember(self._store.push_rows(keys, ids, values, priority=priority), list(rows))
        finally:
            if self._local_updater is not None:
                self._local_updater.ids.clear()

    def _remember(self, work: Any, keys: list[Key]) -> None:
        """Lets the next pulls of these keys tell what becomes of a push."""
        pending = Pending([work])
        if not self._is_dist:
            pending.result()
        if pending.ended_well():
            return
        for one in keys:
            waiting = [earlier for earlier in self._pushed.get(one, []) if not earlier.ended_well()]
            self._pushed[one] = [*waiting, pending]
        track(pending)

    def _finish(self, works: list[Any], places: Places | RowPulls, keys: set[Key]) -> None:
        earlier = [work for one in keys for work in self._pushed.pop(one, [])]
        pending = places.follow([*earlier, *works])
        if not self._is_dist:
            pending.result()
        if not pending.ended_well():
            # Whether it has failed already or will later, readers are told.
            places.attach(pending)
            track(pending)

    def _agree(self) -> None:
        if self._agrees:
            self._settings += 1
            agree(self._store, self._number, self._settings)

    def _refresh(self) -> None:
        """What the program has changed of the optimizer since holds from now on, as it does where it runs in Python."""
        if self._native is None or self._is_dist or self._optimizer is None:
            return
        native = native_optimizer(self._optimizer)
        if native != self._native and native is not None:
            with translated():
                self._store.set_optimizer(native)
            self._native = native

    def _without_sparse(self, key: Key, arrays: list[NDArray]) -> list[NDArray]:
        dense = [array for array in arrays if array.stype == "default"]
        if len(dense) < len(arrays) and key not in self._skipped:
            self._skipped.add(key)
            hint = "use row_sparse_pull, or ignore_sparse=False"
            warnings.warn(f"pull of key {key!r} leaves its sparse outputs as they are; {hint}", stacklevel=3)
        return dense


def create(name: str = "local") -> KVStoreBase:
    """A store by the name of its kind, in letters of either case.

    `local`, `local_update_cpu`, `local_allreduce_cpu`, `device`, `local_allreduce_device` within this process;
    `dist_sync`, `dist_async`, `dist_device_sync`, `dist_ssp` and their other names on servers; `horovod` and `byteps`
    by collective operations; or the name of a class that was registered with `KVStoreBase.register`. Raises
    `MXNetError` for any other name.

    >>> import sheave.compat.mxnet as mx
    >>> mx.kv.create("Local_Update_CPU").type
    'local_update_cpu'
    """
    if not isinstance(name, str):
        raise TypeError("name must be a string")
    name = name.lower()
    if name in KVStoreBase.kv_registry:
        return KVStoreBase.kv_registry[name]()
    if name not in KINDS:
        known = ", ".join([*KINDS, *sorted(KVStoreBase.kv_registry)])
        raise MXNetError(f"there is no kind of store {name!r}; hint: kinds are {known}")
    return KVStore(name)


@atexit.register
def _leave() -> None:
    # An interactive session goes on after an exception.
    if hasattr(sys, "ps1") or not hasattr(sys, "last_value"):
        for _, store in sorted(_open.items()):
            store.close()
