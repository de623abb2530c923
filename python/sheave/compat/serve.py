"""A server or scheduler of a face: ``python -m sheave.compat.serve mxnet``.

Faces start it where the environment asks for the role.
"""

import sys

#: Whether this process serves already, so that importing a face does not make it begin again.
serving = False


def main(name: str) -> None:
    """Serves until the workers are gone."""
    from sheave.compat import serve

    serve.serving = True
    if name != "mxnet":
        raise SystemExit(f"the face {name!r} has no servers")
    from sheave.compat.mxnet import MXNetError
    from sheave.compat.mxnet.kvstore.kvstore_server import KVStoreServer

    try:
        KVStoreServer().run()
    except MXNetError as error:
        raise SystemExit(f"sheave: {error}") from None


if __name__ == "__main__":
    main(sys.argv[1])
