"""The key-value store: every key names a tensor; workers push gradients to it and pull weights from it.

`KVStore` is the same for a store within one process (`local`, `device`) and for one that is spread over servers
(`dist_sync`, `dist_async`, `dist_ssp`). What a push does to the stored value is said by an updater: it replaces it
(`"assign"`, the default), adds to it (`"sum"`), takes an optimizer's step (`sheave.optim`), or is a function of yours.

>>> import numpy as np, sheave
>>> store = sheave.KVStore("local")
>>> store.init("w", np.zeros(3, np.float32))
>>> store.set_updater("sum")
>>> _ = store.push("w", np.array([1, 2, 3], np.float32))
>>> store.pull("w", np.empty(3, np.float32)).wait()
array([1., 2., 3.], dtype=float32)
"""

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, SupportsIndex, TypeAlias, TypeVar, cast

from sheave._core import (
    InvalidArgument,
    Mesh,
    NotFound,
    Store,
    Tensor,
    Unsupported,
    Work,
    default_mesh,
    init,
    serve,
)

if TYPE_CHECKING:
    from sheave.optim import Optimizer

__all__ = ["KVStore", "run_server"]

Key: TypeAlias = int | str
#: A key, or several.
Keys: TypeAlias = Key | Sequence[Key]
#: Anything with the buffer protocol or DLPack: a numpy array, a torch tensor on the CPU, a `sheave.Tensor`.
Array: TypeAlias = Any
#: An array or a list of arrays for one key; a list of these for several keys.
Arrays: TypeAlias = Any
#: Merges a received sum into a stored value: `updater(key, received, stored)`.
Updater: TypeAlias = Callable[[Any, Tensor, Tensor], object]

_T = TypeVar("_T")
_OWN = ("assign", "sum")


class KVStore:
    """A key-value store of tensors, as one worker of it.

    `kind` is `"local"`, `"device"`, `"dist_sync"`, `"dist_async"` or `"dist_ssp"`, or one of MXNet's other names for
    these. The kinds on servers take a worker's mesh; without one they take the default mesh, which is joined as the
    environment says if there is none. Every worker opens its stores alike and in the same order, and blocks until every
    server serves (`run_server`), for at most `open_timeout` seconds.

    Tensors of `cut_elements`, a million by default, and more are cut over all servers; what a server has of one is cut
    again into slices of `slice_elements`, 2**18 by default, which travel and are merged each for itself. `staleness`, 3
    by default, is how many pushes of a key the slowest worker may be behind one that pulls it in `dist_ssp`. When a
    worker dies, `on_worker_loss="fail"` ends a store that counts workers, and `"shrink"` goes on without it.

    Keys are int or str, which never name the same tensor. Wherever one key is taken, a list of keys is too, with
    a list of values of the same length; one call for many keys is few messages. For one key a value is an array, or a
    list of arrays that are summed in that order, or all filled.

    Arrays are anything with the buffer protocol or DLPack, of any dtype. A push captures them before it returns: they
    may be changed at once. A pull writes into the arrays that it is given, in place, until its work has ended. Shapes
    and dtypes are checked before anything moves.

    Operations return a `Work`. What is wrong with their arguments is raised at once. In a local store everything is
    over when they return, and what an updater raises is raised there. On servers it comes out of the work, and every
    operation ends with `PeerLost` as soon as a server that it needs is gone, or, in a store that counts workers
    (`dist_sync`, `dist_ssp`), a worker. A failure of a work that you have let go of comes out of the next pull that
    ends well, or out of `wait`, `barrier` or `close`. Calls that wait let other threads run. Ctrl-C ends the wait at
    once; what was begun goes on.

    As a context manager it is closed at the end, unless an exception leaves the block: a worker that goes astray must
    not look like one that has finished.

    >>> import numpy as np, sheave
    >>> with sheave.KVStore("local") as store:
    ...     store.init([3, 5], [np.zeros(2), np.ones(2)])
    ...     out = [np.empty(2), np.empty(2)]
    ...     store.pull([3, 5], out).wait()
    [array([0., 0.]), array([1., 1.])]
    """

    def __init__(
        self,
        kind: str = "local",
        mesh: Mesh | None = None,
        *,
        cut_elements: int | None = None,
        slice_elements: int | None = None,
        staleness: int | None = None,
        on_worker_loss: str = "fail",
        open_timeout: float | None = None,
    ) -> None:
        self._store = Store(kind, mesh, cut_elements, slice_elements, staleness, on_worker_loss, open_timeout)
        self._is_local = not self._store.is_distributed

    def __repr__(self) -> str:
        return f"<sheave.KVStore {self.kind}, worker {self.rank} of {self.num_workers}>"

    @property
    def kind(self) -> str:
        """The name of the kind.

        >>> import sheave
        >>> sheave.KVStore("local_update_cpu").kind
        'local'
        """
        return self._store.kind

    @property
    def rank(self) -> int:
        """This worker's rank among the workers; 0 in a local store.

        >>> import sheave
        >>> sheave.KVStore().rank
        0
        """
        return self._store.rank

    @property
    def num_workers(self) -> int:
        """How many workers there are; 1 in a local store. In one that shrinks, how many are left.

        >>> import sheave
        >>> sheave.KVStore().num_workers
        1
        """
        return self._store.num_workers

    # Dense values.

    def init(self, key: Keys, value: Arrays = None) -> None:
        """New keys and their first values, which are copied.

        On servers every worker calls it with the same keys, and it blocks until all have. The values of worker 0 count;
        those of others must have their shapes and dtypes, or be None.

        Raises AlreadyExists for a key that was initialised before, Mismatch for another shape or dtype than worker 0's,
        InvalidArgument where a value is needed and None is given.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.zeros((2, 3)))
        >>> store.init("w", np.zeros((2, 3)))
        Traceback (most recent call last):
        ...
        sheave.AlreadyExists: init: already exists: key "w" was initialised before
        """
        if value is None or (_is_list(key) and _is_list(value) and value and all(one is None for one in value)):
            self._store.init_without_values(_listed(key))
            return
        self._store.init(*_flat(key, value))

    def push(self, key: Keys, value: Arrays, *, priority: int = 0) -> Work[None]:
        """Merge values into the stored ones: the updater is run once per key, on the sum of all values for it.

        In a synchronous store the work ends when all workers have pushed and the sum is merged. Its result is None.
        What has more `priority` overtakes what is queued for a server; such a call waits while more is queued than a
        model has.

        Raises NotFound for a key that was not initialised, Mismatch for another shape or dtype. The work may end with
        what the updater raised, as Remote.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init(7, np.zeros(2))
        >>> store.push(7, [np.array([1.0, 2.0]), np.array([10.0, 20.0])]).wait()
        >>> store.pull(7, np.empty(2)).wait()
        array([11., 22.])
        """
        return self._store.push(*_flat(key, value), priority)

    def pull(self, key: Keys, out: _T, *, priority: int = 0) -> Work[_T]:
        """Copy stored values into arrays, in place. The work's result is `out`.

        It sees everything that this worker has pushed before. In `dist_ssp` it waits while the slowest worker is too
        far behind.

        Raises NotFound for a key that was not initialised, Mismatch for another shape or dtype, InvalidArgument for an
        array that is read-only or has gaps, BufferInUse for arrays that overlap, LimitExceeded for a table of which a
        server has more than 1 GiB (`pull_rows` has rows of it).

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.arange(3))
        >>> out = np.empty(3, int)
        >>> store.pull("w", out).wait() is out
        True
        """
        return self._store.pull(*_flat(key, out), out, priority)

    def pushpull(self, key: Keys, value: Arrays, out: Arrays = None, *, priority: int = 0) -> Work[Any]:
        """Push and then pull, in one message to each server. Without `out` the values themselves are overwritten.

        In a synchronous store without an updater this is an all-reduce of the sum. The work's result is `out`, or
        `value`. Raises what `push` and `pull` raise.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.zeros(2))
        >>> store.set_updater("sum")
        >>> store.pushpull("w", np.ones(2), np.empty(2)).wait()
        array([1., 1.])
        """
        out = value if out is None else out
        return self._store.push_pull(*_flat(key, value), *_flat(key, out), out, priority)

    def broadcast(self, key: Keys, value: Arrays, out: _T, *, priority: int = 0) -> Work[_T]:
        """`init` and then `pull`: all workers begin with the values of worker 0. Blocks until init is done.

        >>> import numpy as np, sheave
        >>> sheave.KVStore().broadcast("w", np.ones(2), np.empty(2)).wait()
        array([1., 1.])
        """
        self.init(key, value)
        return self.pull(key, out, priority=priority)

    # Rows of tables.

    def init_rows(
        self, key: Keys, shape: Any, dtype: Any = "float32", ids: Arrays = None, rows: Arrays = None
    ) -> None:
        """New keys, each a table of this shape, of which only rows that are used need memory or travel.

        `rows`, of shape `(n, *shape[1:])`, are the first values of the rows `ids`, n of int64; all others are zero, and
        rows of one id are summed. Without rows the table is zeros of `dtype`. For a list of keys all are lists. On
        servers every worker calls it with the same keys and shapes, and blocks until all have; the rows of worker 0
        count.

        Raises AlreadyExists, Mismatch for rows of another shape than the table's, InvalidArgument for an id outside it.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init_rows("embedding", (1_000_000, 2), ids=[2], rows=np.array([[1.5, 2.5]], np.float32))
        >>> store.pull_rows("embedding", [2, 7], np.empty((2, 2), np.float32)).wait()
        array([[1.5, 2.5],
               [0. , 0. ]], dtype=float32)
        """
        if not _is_list(key):
            key, shape, dtype, ids, rows = [cast(Key, key)], [shape], [dtype], [ids], [rows]
        count = len(_listed(key))
        shapes = [_shape(one) for one in shape]
        dtypes = dtype if _is_list(dtype) else [dtype] * count
        ids = [None] * count if ids is None else [one if one is None else _ids(one) for one in ids]
        self._store.init_rows(_listed(key), shapes, dtypes, ids, [None] * count if rows is None else list(rows))

    def push_rows(self, key: Keys, ids: Arrays, rows: Arrays, *, priority: int = 0) -> Work[None]:
        """Merge rows into the stored tables. Ids are int64, in any order; rows of one id are summed.

        With `"assign"` all other rows become zero, with anything else they stay as they are. In a synchronous store
        every worker pushes, those without rows too. The work's result is None.

        Raises NotFound for a key that was not initialised, Mismatch for rows of another shape or dtype, InvalidArgument
        for an id that is not in the table.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.array([10.0, 20.0, 30.0]))
        >>> store.set_updater("sum")
        >>> store.push_rows("w", [2, 0, 2], np.array([1.0, 2.0, 3.0])).wait()
        >>> store.pull("w", np.empty(3)).wait()
        array([12., 20., 34.])
        """
        return self._store.push_pull_rows(*_flat_rows(key, ids, rows), [], [], [], None, priority)

    def pull_rows(self, key: Keys, ids: Arrays, out: _T, *, priority: int = 0) -> Work[_T]:
        """Copy the rows with these ids into `out`, in their order and as often as they are given.

        `ids` are int64 of any shape, `out` has the shape `(n, *row)` for n ids, or `(*ids.shape, *row)`. Only distinct
        rows travel. The work's result is `out`.

        Raises what `pull` raises, and InvalidArgument for an id that is not in the table.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.array([10.0, 20.0, 30.0]))
        >>> store.pull_rows("w", np.array([[2, 0], [2, 1]]), np.empty((2, 2))).wait()
        array([[30., 10.],
               [30., 20.]])
        """
        return self._store.push_pull_rows([], [], [], *_flat_rows(key, ids, out), out, priority)

    def push_pull_rows(
        self, key: Keys, ids: Arrays, rows: Arrays, pull_ids: Arrays, out: _T, *, priority: int = 0
    ) -> Work[_T]:
        """`push_rows` and then `pull_rows` of the same keys, in one message to each server. The result is `out`.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.array([10.0, 20.0, 30.0]))
        >>> store.set_updater("sum")
        >>> store.push_pull_rows("w", [1], np.array([5.0]), [1, 0], np.empty(2)).wait()
        array([25., 10.])
        """
        pushed, pulled = _flat_rows(key, ids, rows), _flat_rows(key, pull_ids, out)
        return self._store.push_pull_rows(*pushed, *pulled, out, priority)

    # What pushes do.

    def set_updater(self, updater: "str | Updater | Optimizer") -> None:
        """Say what pushes do from now on. On servers only worker 0's word counts, and it blocks until all have heard.

        `updater` is `"assign"`, `"sum"`, a name that was registered where the values are, an optimizer, or a function
        `updater(key, received, stored)` that writes `stored`. Both are `sheave.Tensor`s, flat, which numpy and torch
        look at without a copy; `received` is read-only. What the function returns does not matter. It must treat every
        element for itself: on servers a large tensor comes in slices, each with its key, and of pushed rows both are
        packed. Do not keep `stored` or views of it: if you do, the store goes on with a copy, and what you keep is a
        picture of that time.

        A function in a local store runs in the thread that pushes, and what it raises comes out of `push`, as `Remote`
        with the original as its cause. What it has written before stays.

        For servers a function is pickled (`sheave.pickling`) and sent to those that allow it
        (`run_server(allow_pickle=True)`). It runs on their callback thread, one call at a time, for as long as it
        takes: meanwhile the server answers everything that does not wait for it, and pulls of other workers find the
        value before. A call costs two switches to other threads and back, 20 to 100 microseconds on a machine with two
        cores and more beside other Python code, for each slice that is merged, and a copy of the slice, where native
        updaters cost nothing but their arithmetic. It cannot use the mesh or a store. What it raises comes out of the
        works of the pushes concerned, as `Remote` with its text and the line that raised it, the value stays as it was,
        and the server goes on. The exception itself, as text with its traceback, is the cause of that: `remote_class`
        and `remote_traceback`.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.array([1.0, 2.0]))
        >>> def halve(key, received, stored):
        ...     weights = stored.numpy()
        ...     weights -= 0.5 * received.numpy()
        >>> store.set_updater(halve)
        >>> _ = store.push("w", np.array([1.0, 1.0]))
        >>> store.pull("w", np.empty(2)).wait()
        array([0.5, 1.5])
        """
        if hasattr(updater, "_document"):
            self.set_optimizer(cast("Optimizer", updater))
        elif isinstance(updater, str):
            self._store.set_updater_named(updater)
        elif callable(updater) and self._is_local:
            self._store.set_updater_function(updater)
        elif callable(updater):
            self._ship(updater)
        else:
            raise Unsupported(f"a {type(updater).__name__} is no updater (hint: give a name or a function)")

    def _ship(self, updater: Updater) -> None:
        """Send a function to the servers, and set it by the name that it gets there."""
        name = getattr(updater, "__qualname__", type(updater).__qualname__)
        if self._store.is_first:
            import hashlib

            from sheave import pickling

            pickled = pickling.dumps(updater)

            name = f"{name} {hashlib.sha256(pickled).hexdigest()[:16]}"
            self._store.ship(name, pickled)
        self._store.set_updater_named(name)

    def register(self, name: str, function: Updater) -> None:
        """Offer a function by name to `set_updater`, in a local store. Servers are given theirs by `run_server`.

        Raises InvalidArgument for `"assign"` and `"sum"`, and on servers.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.register("largest", lambda key, received, stored: np.maximum(received, stored, out=stored.numpy()))
        >>> store.set_updater("largest")
        """
        if name in _OWN:
            raise InvalidArgument(f'the store has an updater "{name}" of its own')
        self._store.register(name, function)

    def set_optimizer(self, optimizer: "Optimizer") -> None:
        """Step the stored values by an optimizer of `sheave.optim` on every push, where they are.

        The same rule with other settings goes on with its states; another rule begins anew. On servers only worker 0's
        word counts. Values are float16, bfloat16, float32 or float64.

        Raises InvalidArgument for a setting without a meaning, Unsupported for LAMB where it cannot be had.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init("w", np.array([1.0, 2.0]))
        >>> store.set_optimizer(sheave.optim.SGD(lr=0.5))
        >>> _ = store.push("w", np.array([1.0, 1.0]))
        >>> store.pull("w", np.empty(2)).wait()
        array([0.5, 1.5])
        """
        if not hasattr(optimizer, "_document"):
            raise Unsupported(f"a {type(optimizer).__name__} is no optimizer (hint: make one of sheave.optim's)")
        self._store.set_optimizer(optimizer._document())

    @property
    def learning_rate(self) -> float:
        """The optimizer's learning rate, which its schedule multiplies. Setting it keeps states and schedule.

        On servers the first one is asked, and only worker 0's word counts. Raises NotFound without an optimizer.

        >>> import sheave
        >>> store = sheave.KVStore()
        >>> store.set_optimizer(sheave.optim.Adam(lr=0.1))
        >>> store.learning_rate = 0.01
        >>> store.learning_rate
        0.01
        """
        return self._store.learning_rate()

    @learning_rate.setter
    def learning_rate(self, learning_rate: float) -> None:
        self._store.set_learning_rate(learning_rate)

    # How values travel.

    def set_gradient_compression(
        self, kind: str, threshold: float | None = None, *, keys: Keys | None = None
    ) -> None:
        """How this worker's float32 gradients travel from now on: `"none"`, `"fp16"`, `"bf16"`, `"2bit"` or `"1bit"`.

        `threshold`, 0.5 by default, is for the last two: 2bit sends +t, -t or 0, 1bit +1 above t and else -1. What they
        leave out is added to the next gradient. With `keys` it is said of these keys alone. Kind `local` has none.

        Raises InvalidArgument for a kind or threshold without a meaning, and in a store of the kind `local`.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore("device")
        >>> store.set_gradient_compression("2bit", 0.5)
        >>> store.init("w", np.zeros(3, np.float32))
        >>> _ = store.push("w", np.array([0.7, 0.3, -0.6], np.float32))
        >>> store.pull("w", np.empty(3, np.float32)).wait()
        array([ 0.5,  0. , -0.5], dtype=float32)
        """
        self._store.set_gradient_compression(kind, threshold, None if keys is None else _listed(keys))

    def set_pull_compression(self, kind: str) -> None:
        """How float32 values travel to this worker from now on: `"none"`, or rounded to `"fp16"` or `"bf16"`.

        In a local store nothing travels. Raises Unsupported for `"1bit"` and `"2bit"`.

        >>> import sheave
        >>> sheave.KVStore().set_pull_compression("bf16")
        """
        self._store.set_pull_compression(kind)

    # Files.

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write all values, the optimizer and its states to a safetensors file. One worker saves.

        The file does not depend on the number of servers. Raises BufferInUse while the store is being updated, Io.

        >>> import numpy as np, sheave, tempfile
        >>> store = sheave.KVStore()
        >>> store.init("w", np.arange(3))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store.save(f"{folder}/store.safetensors")
        ...     _ = store.push("w", np.zeros(3, int))
        ...     store.load(f"{folder}/store.safetensors")
        >>> store.pull("w", np.empty(3, int)).wait()
        array([0, 1, 2])
        """
        self._store.save(path)

    def load(self, path: str | os.PathLike[str]) -> None:
        """Read what `save` has written. One worker loads; the store has the keys of the file, initialised alike.

        Raises NotFound without such a file, InvalidArgument for one that is damaged, Mismatch for other keys, dtypes or
        shapes. Everything is checked before anything changes. See `save` for an example.
        """
        self._store.load(path)

    def save_optimizer_states(self, path: str | os.PathLike[str], dump_optimizer: bool = False) -> None:
        """As `save` without the values, and without the optimizer unless `dump_optimizer`.

        Raises NotFound without an optimizer. See `load_optimizer_states` for an example.
        """
        self._store.save_optimizer_states(path, dump_optimizer)

    def load_optimizer_states(self, path: str | os.PathLike[str]) -> None:
        """As `load`, and leaves the values as they are; the optimizer too, if it was not saved with the states.

        >>> import numpy as np, sheave, tempfile
        >>> store = sheave.KVStore()
        >>> store.init("w", np.zeros(2))
        >>> store.set_optimizer(sheave.optim.SGD(lr=1.0, momentum=0.5))
        >>> _ = store.push("w", np.ones(2))
        >>> with tempfile.TemporaryDirectory() as folder:
        ...     store.save_optimizer_states(f"{folder}/states.safetensors")
        ...     _ = store.push("w", np.ones(2))
        ...     store.load_optimizer_states(f"{folder}/states.safetensors")
        >>> _ = store.push("w", np.zeros(2))
        >>> store.pull("w", np.empty(2)).wait()
        array([-3., -3.])
        """
        self._store.load_optimizer_states(path)

    # The others.

    def send_command_to_servers(self, number: int, body: bytes | str = b"") -> list[bytes]:
        """Send a command to the controller of every server, and return their answers in the order of their ranks.

        Blocks until all have run it. A local store has no servers, and answers nothing. Raises NotFound if a server has
        no controller, Remote with what a controller raised, PeerLost if a server is gone.

        >>> import sheave
        >>> sheave.KVStore().send_command_to_servers(7, "any text")
        []
        """
        return self._store.send_command_to_servers(number, body.encode() if isinstance(body, str) else bytes(body))

    def barrier(self) -> None:
        """Block until every worker has come here. It does not wait for pushes and pulls.

        Raises PeerLost if a worker or a server is gone.

        >>> import sheave
        >>> sheave.KVStore().barrier()
        """
        self._store.barrier()

    def done(self) -> Work[None]:
        """Say that this worker has no more to push, because it has fewer batches than others: they go on without it.

        What it has pushed counts, and it may still pull. The work ends when all workers have come to that point; from
        then on all are waited for again.

        >>> import sheave
        >>> sheave.KVStore().done().wait()
        """
        return self._store.done()

    def wait(self, keys: Keys = ()) -> None:
        """Block until every operation of this worker on these keys has ended; on all keys if there are none.

        Raises the first error of those that had not ended, NotFound for a key that was not initialised.

        >>> import sheave
        >>> sheave.KVStore().wait()
        """
        self._store.wait_for(_listed(keys))

    def delete(self, keys: Keys) -> None:
        """Take keys out of the store; they may be initialised anew, with another shape or dtype.

        On servers every worker calls it with the same keys, and it blocks until all have. Raises NotFound.

        >>> import numpy as np, sheave
        >>> store = sheave.KVStore()
        >>> store.init(1, np.zeros(2))
        >>> store.delete(1)
        >>> store.init(1, np.zeros(3, int))
        """
        self._store.delete(_listed(keys))

    def num_dead_node(self, node_id: int, timeout: float = 60.0) -> int:
        """How many nodes are dead, by the numbers of ps-lite; 0 in a local store.

        1 is the scheduler, 2 all servers, 4 all workers, and sums of these are several groups; 8 + 2r is server r, and
        9 + 2r worker r. A node whose links have closed counts at once, a silent one after `timeout` seconds or the
        mesh's own liveness timeout, whichever is shorter. Raises InvalidArgument for the number of nobody.

        >>> import sheave
        >>> sheave.KVStore().num_dead_node(4)
        0
        """
        return self._store.num_dead_node(node_id, timeout)

    def set_barrier_before_exit(self, flag: bool) -> None:
        """Whether `close` meets the other workers first; it does unless this says otherwise.

        >>> import sheave
        >>> sheave.KVStore().set_barrier_before_exit(False)
        """
        self._store.set_barrier_before_exit(flag)

    def close(self) -> None:
        """End this worker's part: wait for its pushes and pulls, meet the others, and let the servers forget the store.

        Pushes of others wait for it no more from the beginning, so workers may have made different numbers of steps,
        and meet here all the same. Again it does nothing. Raises the first error of what was outstanding; the store is
        closed all the same.

        >>> import sheave
        >>> sheave.KVStore().close()
        """
        self._store.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None, /
    ) -> None:
        if kind is None:
            self.close()


def run_server(
    mesh: Mesh | None = None,
    *,
    functions: Mapping[str, Updater] | None = None,
    controller: Callable[[int, bytes], bytes | str | None] | None = None,
    allow_pickle: bool = False,
) -> None:
    """Run a node that is no worker until all workers are gone. Blocks, and answers Ctrl-C.

    A server holds and updates its part of every store on servers. `functions` are updaters of yours, which workers set
    by name, as `KVStore.set_updater` has them. `controller(number, body)` is called with each command that workers
    send, one at a time; what it returns is the answer: bytes, a text, or None for b"". With `allow_pickle` workers may
    send functions of theirs: a pickle is a program that runs here. `SHEAVE_PICKLE=never` forbids it all the same. All
    of these run on one thread of Python's, one at a time, so that each waits for the others. A scheduler waits.

    Without a mesh the default one is taken, which is joined as the environment says if there is none, and left again at
    the end; a mesh that was there before is its owner's to leave.

    Raises InvalidArgument on a worker and in a job of plain ranks, which has no servers, and PeerLost that names a
    worker that died, if an open store could not bear it.

    >>> import sheave
    >>> sheave.run_server  # doctest: +ELLIPSIS
    <function run_server at ...>
    """
    for name in functions or {}:
        if name in _OWN:
            raise InvalidArgument(f'the store has an updater "{name}" of its own')
    unpickle = None
    if allow_pickle:
        from sheave import pickling

        unpickle = pickling.loads
    own = None
    if mesh is None:
        try:
            mesh = default_mesh()
        except NotFound:
            mesh = own = init()
    serve(mesh, list((functions or {}).items()), controller, unpickle)
    if own is not None:
        own.leave()


def _is_list(given: Any) -> bool:
    return isinstance(given, list | tuple)


def _listed(keys: Any) -> list[Key]:
    return list(keys) if _is_list(keys) else [keys]


def _flat(keys: Any, values: Any) -> tuple[list[Key], list[Array]]:
    """Keys and arrays in two lists of one length; a key is there once for each of its arrays."""
    if not _is_list(keys):
        return ([keys] * len(values), list(values)) if _is_list(values) else ([keys], [values])
    _check_length(keys, values)
    if not any(_is_list(value) for value in values):
        return list(keys), list(values)
    pairs = [(key, array) for key, value in zip(keys, values) for array in (value if _is_list(value) else [value])]
    return [key for key, _ in pairs], [array for _, array in pairs]


def _flat_rows(keys: Any, ids: Any, rows: Any) -> tuple[list[Key], list[Array], list[Array]]:
    if not _is_list(keys):
        return [keys], [_ids(ids)], [rows]
    _check_length(keys, ids)
    _check_length(keys, rows)
    return list(keys), [_ids(one) for one in ids], list(rows)


def _check_length(keys: Any, values: Any) -> None:
    if not _is_list(values):
        raise InvalidArgument(f"a list of {len(keys)} keys needs a list of values, not a {type(values).__name__}")
    if len(keys) != len(values):
        raise InvalidArgument(f"{len(keys)} keys and {len(values)} values were given")


def _ids(given: Any) -> Array:
    """Ids as they are, unless they are written out as a list."""
    if not _is_list(given) and not isinstance(given, range):
        return given
    import numpy as np

    ids = np.array(given)
    if ids.size > 0 and ids.dtype.kind not in "iu":
        raise InvalidArgument(f"ids that numpy makes {ids.dtype} of; expected integers")
    return ids.astype(np.int64)


def _shape(given: SupportsIndex | Iterable[SupportsIndex]) -> list[int]:
    return [given.__index__()] if isinstance(given, SupportsIndex) else [one.__index__() for one in given]
