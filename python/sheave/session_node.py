"""A node of a `sheave.session.SocketSession`, other than the controller's:
``python -m sheave.session_node HOST PORT NUM_WORKERS``.

HOST and PORT are where the controller listens, NUM_WORKERS is what all nodes have. The nodes may be started before the
controller. This process is the first of the node's workers, and starts the others; they end with the session. Exit
status: 0 when the session has ended, 1 when it was lost or never came about, 2 for arguments that make no sense.

The secret is that of the file which SHEAVE_SECRET_FILE names, or of this user's.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

__all__ = ["main", "work_on_node"]


def work_on_node(
    host: str,
    port: int,
    num_workers: int,
    node: int | None = None,
    *,
    secret: str | bytes | None = None,
    output: str = "prefix",
) -> None:
    """Be a node of the session that meets at this port of a host, until that ends.

    Nodes without a number come behind those with one, by the names of their hosts.

    >>> import sheave.session_node
    >>> sheave.session_node.work_on_node("localhost", 7000, 0)
    Traceback (most recent call last):
    ...
    sheave.InvalidArgument: begin session: num_workers is 0; expected 1 at least

    Blocks; Ctrl-C ends it. Raises PeerLost if the controller dies, DeadlineExceeded if the session does not come about,
    and Mismatch or NotPermitted if it turns this node away.
    """
    from sheave import _core

    _core._session_work_on_node(host, port, num_workers, node, secret, output)


def main(arguments: Sequence[str] | None = None) -> int:
    """Be a node as the arguments say, those of the command line without them; return the exit status.

    >>> import sheave.session_node
    >>> sheave.session_node.main(["localhost", "0", "2"])
    2
    """
    from sheave import _core

    parser = argparse.ArgumentParser(
        prog="python -m sheave.session_node", description="Be a node of a sheave.session.SocketSession."
    )
    parser.add_argument("host", metavar="HOST", help="the host of the controller")
    parser.add_argument("port", metavar="PORT", type=int, help="the port at which it listens")
    parser.add_argument("num_workers", metavar="NUM_WORKERS", type=int, help="the workers of this node, as of each")
    parser.add_argument("--node", metavar="K", type=int, help="the number of this node; the controller's is 0")
    parser.add_argument("--output", choices=["prefix", "inherit", "quiet"], default="prefix", help="what workers print")
    given = parser.parse_args(arguments)
    if given.node is not None and given.node < 1:
        parser.error(f"argument --node: {given.node}; expected 1 or more, for 0 is the controller's")
    try:
        work_on_node(given.host, given.port, given.num_workers, given.node, output=given.output)
    except _core.SheaveError as error:
        print(f"{parser.prog}: {error}", file=sys.stderr)
        return 2 if isinstance(error, _core.InvalidArgument) else 1
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
