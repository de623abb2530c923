"""What the other nodes of a `SocketSession` run: ``python -m tvm.exec.disco_remote_socket_session HOST PORT WORKERS``.

They have the functions that TVM's tests of Disco call.
"""

import sys

from sheave import session_node
from sheave.compat.tvm.exec import disco_worker

__all__ = ["disco_worker", "main"]


def main() -> int:
    """Be the node that the arguments say; return the exit status."""
    if len(sys.argv) != 4:
        print("Usage: <server_host> <server_port> <num_workers>")
        return 0
    return session_node.main(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
