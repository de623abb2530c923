"""A process group of torch that is sheave's alone.

Collective operations go through torch's dispatcher to the backend, so that profilers, flight recorders and compilers
see them. What the dispatcher would lose is served here: works of point-to-point operations, which tell whether they
have ended and who has sent, and groups that are split off, of which most ranks may be no members.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore

from sheave.torch.backend import SheaveBackend

if TYPE_CHECKING:
    from sheave.torch.work import SheaveWork

__all__ = ["SheaveGroup"]

_CPU = torch.device("cpu")


class SheaveGroup(dist.ProcessGroup):
    """A process group whose only backend is sheave's."""

    def __init__(self, store: Any, backend: SheaveBackend) -> None:
        super().__init__(store, backend.rank(), backend.size())
        self._backend, self._store = backend, store
        kind = dist.ProcessGroup.BackendType.CUSTOM
        self._set_default_backend(kind)
        self._register_backend(_CPU, kind, backend)

    def getBackendName(self) -> str:
        """Return the name of the backend."""
        return "sheave"

    def send(self, tensors: Sequence[torch.Tensor], dst: int, tag: int = 0) -> SheaveWork:
        """Send a tensor to a rank of the group."""
        return self._backend.send(tensors, dst, tag)

    def recv(self, tensors: Sequence[torch.Tensor], src: int, tag: int = 0) -> SheaveWork:
        """Receive a tensor from a rank of the group."""
        return self._backend.recv(tensors, src, tag)

    def recv_anysource(self, tensors: Sequence[torch.Tensor], tag: int = 0) -> SheaveWork:
        """Receive a tensor from any rank; the work's `_source_rank` tells from which."""
        return self._backend.recv_anysource(tensors, tag)

    recvAnysource = recv_anysource

    def gather_single(  # type: ignore[override, unused-ignore]
        self, output: torch.Tensor, input: torch.Tensor, opts: Any
    ) -> SheaveWork | None:
        """Gather the tensors of all ranks, one behind the other, in the output of the root."""
        return self._backend.gather_single(output, input, opts)

    def split_group(
        self,
        new_ranks: Sequence[int],
        timeout: timedelta | None = None,
        opts: Any = None,
        group_name: str | None = None,
        group_desc: str | None = None,
        device_types: Sequence[torch.device] | None = None,
    ) -> SheaveGroup | None:
        """Return the group of some ranks of this one, in their order; None for a rank that is not among them."""
        if self.rank() not in new_ranks:
            return None
        if timeout is None and opts is not None:
            timeout = opts._timeout
        name = group_name or f"{self.group_name}:split:{','.join(map(str, new_ranks))}"
        store = PrefixStore(f"{name}/", self._store)
        made = SheaveGroup(store, self._backend.part(list(new_ranks), name, timeout))
        made._set_group_name(name)  # type: ignore[arg-type, unused-ignore]
        made._set_group_desc(group_desc or f"{self.group_desc}:split")
        return made
