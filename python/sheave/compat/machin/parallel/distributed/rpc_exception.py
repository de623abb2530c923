"""The exception of machin's calls."""

import traceback


class RpcException(Exception):
    """The text of an exception that was raised elsewhere, with its traceback; or just a text."""

    def __init__(self, msg: str | BaseException) -> None:
        if isinstance(msg, BaseException):
            msg = "".join(traceback.format_exception(msg))
        super().__init__(msg)
