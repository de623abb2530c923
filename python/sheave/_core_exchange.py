"""The classes of `sheave._core` that exchanges have: this module is there for their stubs."""

from sheave._core import ExchangeRegistration, ExchangeRequest, ExchangeServer, ExchangeWorker

__all__ = ["ExchangeRegistration", "ExchangeRequest", "ExchangeServer", "ExchangeWorker"]
