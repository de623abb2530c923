"""StepMesh's module ``fserver_lib`` over `sheave.exchange`: attention and expert servers of one model, on any machine.

``import sheave.compat.fserver_lib as f`` in a program of one's own, or ``python -m sheave.compat fserver_lib
script.py`` for one that says ``import fserver_lib`` (see `sheave.compat`). A job is as many processes as its ``DMLC_*``
variables say, or is started whole: ``sheave launch -n 2 -s 2 -- python -m sheave.compat fserver_lib script.py``. The
scheduler calls `init` and `stop`; workers and servers do this::

    import fserver_lib as f

    f.init()
    if role == "worker":
        handler = f.push_pull([x], [0], [y], [1])   # x goes to every server, y is filled by the server
        f.wait(handler)
    elif role == "server":
        for handler, tensors, keys in f.get_batch():   # one of every worker, by rank
            f.respond([tensors[0] * 2], handler)
    f.stop()

Tensors are on the CPU: torch's, numpy's, or anything with the buffer protocol or DLPack. `get_batch` gives torch
tensors if the program has imported torch, else numpy arrays, or a `sheave.Tensor` where numpy does not know the dtype.
Nothing is compiled and no RDMA is needed: processes of one host share memory, others talk TCP.

What differs from StepMesh, on purpose:

- Answers arrive over every transport, TCP among them. All eight numbers of `fetch_trace` are filled, the same for each
  tensor of a request; of several servers they are those of the last to answer, or of `server`.
- A peer that dies is an error within a second for all who need it, and names it; a worker or server that has called
  `stop` is waited for no more. Where StepMesh waits for ever or ends the process, there is an error.
- Every error is a RuntimeError, and of sheave's class: a timeout of `wait` is a TimeoutError and a
  `sheave.DeadlineExceeded` too. It has ``peer``, ``op``, ``seq``, ``elapsed`` and ``hint``.
- Every wait lets other threads run and ends at Ctrl-C. `init`, `stop`, `barrier` and `get_batch` take a ``timeout`` in
  seconds as the last argument. The time of `wait` counts from its call.
- What does not fit is refused before it moves: keys that are there twice, pulls that the servers cannot share evenly,
  answers of another dtype or size, unknown handlers, a second answer. `respond` keeps its tensors until they are sent.
- `respond_vec` answers with rows that follow each other, as StepMesh's documentation has it. With
  ``STEPMESH_RESPOND_VEC=row0`` every answer begins at row 0, as StepMesh's code does. Both are the same for one worker.
- A registered buffer may be larger than what lands there, dtype and shape are those of each push, and registering
  holds for pushes that arrive later, even if the key was used before. A place is registered once. A push waits until
  the request that lies in its place is answered; its tensors are slices of the registered tensor itself, which the
  next push overwrites. So answer from other memory, or give requests in flight keys of their own.
- Any shape may follow any other under one key. Non-contiguous pushes are packed; pulls must be contiguous.
- Handlers of requests that were waited for are forgotten, so nothing grows. At most 64 requests are in flight; one more
  waits until the oldest is answered. Traces are known of the last 64.
- A process without ``STEPMESH_GPU`` or ``DMLC_NODE_RANK`` is given a rank. There is no role ``joint``.
- ``need_event`` means nothing on the CPU. CUDA tensors are refused; ``STEPMESH_BACKEND``, in either spelling, is CPU.
"""

from collections.abc import Sequence
from typing import Any

from sheave._core import get_nanosecond

from sheave.compat.fserver_lib.job import Job as _Job
from sheave.compat.fserver_lib.server import ServerDataBatch

__all__ = [
    "ServerDataBatch",
    "barrier",
    "fetch_trace",
    "get_all_handlers",
    "get_batch",
    "get_nanosecond",
    "init",
    "push_pull",
    "register_recv_buffer",
    "respond",
    "respond_vec",
    "stop",
    "wait",
]

_job = _Job()

_CUDA_ONLY = ("SimpleNotify", "map_pinned_tensor", "seq_add_one", "wait_flag", "write_flag")


def init(timeout: float | None = None) -> None:
    """Join the job that the environment describes, as what it says. Once in a process.

    Blocks until all are there; `timeout` is in seconds, 60 by default. The error says who is missing.
    """
    _job.init(timeout)


def stop(timeout: float | None = None) -> None:
    """Wait until all have called this, and leave.

    Raises PeerLost that names a process that died; this one has left all the same. After a timeout it may be called
    again.
    """
    _job.stop(timeout)


def barrier(
    include_server: bool,
    include_client: bool | None = None,
    instance_barrier: bool = True,
    timeout: float | None = None,
    *,
    include_worker: bool | None = None,
) -> None:
    """Wait for all servers, workers, or both, among which the caller must be; `include_worker` is `include_client`.

    Without `instance_barrier`, only for those whose index in their group is the caller's.
    """
    if (include_client is None) == (include_worker is None):
        raise TypeError("barrier() takes include_client or include_worker")
    workers = include_worker if include_client is None else include_client
    _job.barrier(include_server, bool(workers), instance_barrier, timeout)


def push_pull(
    push_tensors: Sequence[Any],
    push_keys: Sequence[int],
    pull_tensors: Sequence[Any],
    pull_keys: Sequence[int],
    need_event: bool = True,
) -> int:
    """Send tensors to every server, and name those that the answers go to: first all of server 0, and so on.

    Returns a handler at once. What is pushed must not change, and what is pulled not be looked at, before `wait`.
    """
    return _job.worker("push_pull").push_pull(push_tensors, push_keys, pull_tensors, pull_keys)


def wait(handler: int, timeout_ms: int = 10000) -> None:
    """Wait until all servers have answered a request. After a timeout it goes on, and can be waited for again."""
    _job.worker("wait").wait(handler, timeout_ms)


def get_all_handlers(handler: int) -> list[int]:
    """A request's handler and those of its other tensors, pushes before pulls; before `wait` only."""
    return _job.worker("get_all_handlers").get_all_handlers(handler)


def fetch_trace(handler: int, server: int | None = None) -> list[int]:
    """The eight points in time of a request, in nanoseconds: the call and its sending; the arrival at the server, its
    taking, the answer, the answer's sending; the answer's arrival, and the end of `wait`.

    The four in the middle are of the server's clock. Of several servers they are those of the last to answer.
    """
    return _job.worker("fetch_trace").fetch_trace(handler, server)


def get_batch(timeout: float | None = None) -> list[ServerDataBatch]:
    """Wait for a request of every worker, and take the oldest of each, in the order of their ranks.

    Tensors are valid until the request is answered. Raises Closed when workers have stopped, PeerLost when one died.
    """
    return _job.server("get_batch").get_batch(timeout)


def respond(tensors: Sequence[Any], handler: int, need_event: bool = False) -> None:
    """Answer a request: one tensor for each pull. Returns at once; the tensors must not change before they are sent."""
    _job.server("respond").respond(tensors, handler)


def respond_vec(ret_buffer: Any, tensors_vec: Sequence[Any], handler_vec: Sequence[int]) -> None:
    """Answer requests of one pull each with rows of one tensor that follow each other: as many as each tensor has."""
    _job.server("respond_vec").respond_vec(ret_buffer, tensors_vec, handler_vec)


def register_recv_buffer(tensor: Any, worker_ranks: Sequence[int], push_keys: Sequence[int]) -> None:
    """Let pushes land in equal parts of a tensor: the first of `worker_ranks[0]` under `push_keys[0]`, and so on.

    What `get_batch` gives then are slices of this tensor.
    """
    _job.server("register_recv_buffer").register_recv_buffer(tensor, worker_ranks, push_keys)


def __getattr__(name: str) -> Any:
    if name in _CUDA_ONLY:
        hint = "it needs a GPU build; on the CPU call wait() or get_batch()"
        raise AttributeError(f"fserver_lib.{name} is for CUDA streams; hint: {hint}", name=name, obj=None)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
