"""That all processes of a world make the same groups in the same order."""

from sheave import Mesh

from sheave.compat.runtime_errors import Mismatch, described


class Agreement:
    """What the processes of a mesh have agreed about, as one of them."""

    def __init__(self, mesh: Mesh) -> None:
        # A group of its own: what fails there breaks nothing else.
        self._group = mesh.group(range(mesh.world.size), "machin/world")
        self._number = 0

    def agree(self, op: str, ranks: tuple[int, ...], timeout: float) -> int:
        """Waits until all have come with these ranks; the same number everywhere, and a new one each time."""
        size = self._group.size
        own = bytearray((size + 7) // 8)
        for rank in ranks:
            own[rank // 8] |= 1 << rank % 8
        said = [bytearray(len(own)) for _ in range(size)]
        self._group.all_gather(own, out=said, timeout=timeout)
        for other, theirs in enumerate(said):
            if theirs != own:
                members = [rank for rank in range(size) if theirs[rank // 8] >> rank % 8 & 1]
                what = f"rank {other} makes a group of ranks {members}, rank {self._group.rank} of {list(ranks)}"
                raise described(Mismatch, op, what, "all processes make the same groups in the same order")
        self._number += 1
        return self._number
