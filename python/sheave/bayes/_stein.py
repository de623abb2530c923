"""Stein variational gradient descent on particles, in one process or cut over several."""

from collections.abc import Callable, Iterable
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sheave import _core_bayes as native, optim
from sheave._core import Group, InvalidArgument
from sheave.bayes._batching import Batching, Pairs, Single, of_members
from sheave.bayes._data import count_data, require_repeatable
from sheave.bayes._langevin import require_no_optimizer, write_slopes
from sheave.bayes._posterior import Posterior
from sheave.bayes._progress import Progress
from sheave.bayes._svgd import Svgd
from sheave.particle._particle import Outstanding

__all__ = ["SteinVgd"]


def _gradient(_: Any, model: Any, loss: Any, x: Any, y: Any, data: int, prior: Any, row: NDArray[Any]) -> float:
    """Writes the gradient of the negative log posterior into a row."""
    require_no_optimizer(model)
    value = float(model.step(loss, x, y))
    write = getattr(model, "write_gradient", None)
    if write is not None:
        write(row)
    write_slopes(row if write is not None else model.flat_gradient(), model.flat(), data, prior, row)
    return value


def _assign(_: Any, model: Any, row: NDArray[Any]) -> None:
    model.set_flat(row)


def _batched_gradient(
    batched: Any, _: list[Any], loss: Any, x: Any, y: Any, data: int, prior: Any, rows: Any, slopes: Any
) -> list[float]:
    """Writes the gradients of the negative log posteriors at `rows` into the rows of `slopes`."""
    import torch

    require_no_optimizer(batched.models[0])
    losses = batched.step(loss, x, y).tolist()
    if batched.device.type == "cpu":
        batched.flat_gradient(out=torch.from_numpy(slopes))
    else:
        slopes[...] = batched.flat_gradient().cpu().numpy()
    for row, slope in zip(rows, slopes, strict=True):
        write_slopes(slope, row, data, prior, slope)
    return list(losses)


def _batched_assign(batched: Any, particles: list[Any], rows: NDArray[Any]) -> list[None]:
    batched.set_flat(rows)
    return [None] * len(particles)


class SteinVgd(Posterior):
    """Stein variational gradient descent (Liu and Wang, NeurIPS 2016, arXiv:1608.04471) of models on particles.

    Models move along the gradients of U = N * loss - log prior, averaged by a kernel, and away from each other:
    `sheave.bayes.Svgd` has the formulas, and says what `kernel`, `lengthscale` and `optimizer` are. `loss` is the
    *mean* of negative log likelihoods over a batch, and N the number of data: `fit` scales it. `prior` is a `Normal`,
    or None for none. Models must have no optimizer. Beside the models themselves memory is two numbers for each
    parameter of each particle, and what the optimizer keeps: one for AdaGrad, two for Adam.

    With a `group` of processes, such as `mesh.world`, each of them makes a `SteinVgd` with particles of its own, and
    all call `fit` with the same batches at the same time. Each owns a slice of the parameters of all particles, with
    the state of its optimizer: gradients go to the owners and parameters come back, and the n x n Gram matrix is all
    that is reduced. `predict` gathers the outputs of all members: it too is called by all, with the same data.

    >>> import numpy as np, sheave
    >>> from sheave.particle import FunctionModel
    >>> def gradient(parameters, loss, x, y):
    ...     error = x @ parameters["w"] - y
    ...     return float((error**2).mean() / 2), {"w": x.T @ error / len(x)}
    >>> def make(seed):
    ...     w = np.empty(1)
    ...     sheave.bayes.Generator(seed).fill_normal(w)
    ...     return FunctionModel({"w": w}, lambda parameters, x: x @ parameters["w"], gradient)
    >>> x = np.ones((9, 1))                     # noise and prior of variance 1: the posterior is N(0.9, 0.1)
    >>> with sheave.bayes.SteinVgd(make, 20, optimizer=sheave.optim.Adam(lr=0.1)) as stein:
    ...     _ = stein.fit([(x, np.ones(9))], None, epochs=300)
    ...     particles = np.stack(stein.parameters())
    >>> particles.mean().round(2), bool(0.07 < particles.var() < 0.13)
    (np.float64(0.9), True)
    """

    def __init__(
        self,
        make: Callable[[int], Any],
        members: int,
        *,
        kernel: Literal["rbf", "imq"] = "rbf",
        lengthscale: float | None = None,
        optimizer: optim.Optimizer | None = None,
        prior: native.Normal | None = native.Normal(),
        group: Group | None = None,
        **settings: Any,
    ) -> None:
        if settings.get("nodes") is not None:
            raise InvalidArgument("nodes is given; expected group, which cuts parameters over processes")
        self._svgd = Svgd(kernel=kernel, lengthscale=lengthscale, optimizer=optimizer)
        self.prior = prior
        self._group = group if group is not None and group.size > 1 else None
        self._counts, self._first = [members], 0
        if self._group is not None:
            counts = self._group.all_gather(np.array([members], np.int64))
            self._counts = [int(count) for count in np.ravel(counts)]
            self._first = sum(self._counts[: self._group.rank])
        super().__init__(make, members, **settings)
        first = self.ask("parameters")
        self._rows = np.stack(first)
        self._slopes = np.empty_like(self._rows)
        self._cut = None if self._group is None else _Cut(self._group, self._counts, self._rows)

    def seed_of(self, member: int) -> int:
        """Return the seed of a member of this process; members of all processes are counted together."""
        return native.seed_of(self.seed, self._first + member)

    @property
    def lengthscale(self) -> float:
        """The length of the kernel in the last step; 0 before the first."""
        return self._svgd.lengthscale

    def fit(
        self,
        loader: Iterable[Any],
        loss: Callable[..., Any],
        epochs: int,
        *,
        data: int | None = None,
        batched: bool = False,
        timeout: float | None = None,
        progress: Progress = None,
    ) -> NDArray[np.float64]:
        """Take a step of all particles for each batch, `epochs` times, as `Posterior.fit`.

        `data` is the number N of data; by default what the loader's data set has, or what its batches count together.
        """
        require_repeatable(loader, epochs)
        count = count_data(loader, data)
        if not batched:
            steps = _Single(Single(self.particles, self.ids, timeout))
            return self._stepped(loader, loss, epochs, count, steps, timeout, progress)
        batching = Batching(self.particles, self.ids, timeout)
        with batching.lasting(timeout):
            return self._stepped(loader, loss, epochs, count, _Batched(batching, timeout), timeout, progress)

    def _stepped(
        self,
        loader: Any,
        loss: Any,
        epochs: int,
        count: int,
        steps: "_Single | _Batched",
        timeout: float | None,
        progress: Progress,
    ) -> NDArray[np.float64]:
        def move(x: Any, y: Any) -> list[float]:
            losses = steps.gradients((loss, x, y, count, self.prior), self._rows, self._slopes)
            if self._cut is None:
                self._svgd.step(self._rows, self._slopes)
            else:
                self._cut.step(self._svgd, self._rows, self._slopes)
            steps.assign(self._rows)
            return losses

        def step(pairs: Pairs) -> Outstanding:
            return Outstanding(of_members([move(x, y) for x, y in pairs]), (), None)

        return self._epochs(loader, epochs, progress, timeout, step, lambda epoch: None)

    def _outputs(
        self, batches: list[Any], settings: Any, timeout: float | None = None, batched: bool = False
    ) -> list[NDArray[Any]]:
        own = super()._outputs(batches, settings, timeout, batched)
        if self._group is None:
            return own
        stacked = np.stack(own)
        lengths = [count * stacked[0].size for count in self._counts]
        whole = self._group.all_gather_v(np.ascontiguousarray(stacked).ravel(), lengths)
        return list(np.asarray(whole).reshape(-1, *stacked.shape[1:]))


class _Single:
    """Members that compute gradients and get parameters one by one."""

    def __init__(self, single: Single) -> None:
        self._single = single

    def gradients(self, settings: tuple[Any, ...], _: NDArray[Any], slopes: NDArray[Any]) -> list[float]:
        return self._single.ask_each(_gradient, settings, [(slope,) for slope in slopes])

    def assign(self, rows: NDArray[Any]) -> None:
        self._single.ask_each(_assign, (), [(row,) for row in rows])


class _Batched:
    """Members that do so together."""

    def __init__(self, batching: Batching, timeout: float | None) -> None:
        self._batching, self._timeout = batching, timeout

    def gradients(self, settings: tuple[Any, ...], rows: NDArray[Any], slopes: NDArray[Any]) -> list[float]:
        # Rows of several devices are copies: what is written there is not seen here.
        parts: list[tuple[Any, NDArray[Any]]] = []

        def args(members: Any) -> tuple[Any, ...]:
            parts.append((members, _of(slopes, members)))
            return (*settings, _of(rows, members), parts[-1][1])

        losses = self._batching.ask_each(_batched_gradient, args, self._timeout)
        for members, part in parts:
            if not np.shares_memory(part, slopes):
                slopes[members] = part
        return losses

    def assign(self, rows: NDArray[Any]) -> None:
        self._batching.ask_each(_batched_assign, lambda members: (_of(rows, members),), self._timeout)


def _of(matrix: NDArray[Any], members: NDArray[np.intp]) -> NDArray[Any]:
    """The rows of members: a view where they are all there are."""
    return matrix if len(members) == len(matrix) else matrix[members]


class _Cut:
    """The slice of all particles' parameters that this process owns, and the way of the others to their owners."""

    def __init__(self, group: Group, counts: list[int], rows: NDArray[Any]) -> None:
        self._group, self._counts = group, counts
        dimension, size = rows.shape[1], group.size
        self._bounds = [dimension * place // size for place in range(size + 1)]
        self._width = self._bounds[group.rank + 1] - self._bounds[group.rank]
        if self._width == 0:
            raise InvalidArgument(f"the models have {dimension} parameters; expected one for each of {size} processes")
        self._own = self._to_owners(rows)

    def step(self, svgd: Svgd, rows: NDArray[Any], slopes: NDArray[Any]) -> None:
        """Step the own slice of all particles, and write the rows of the own particles."""
        gradients = self._to_owners(slopes)
        gram = self._group.all_reduce(svgd.gram(self._own))
        svgd.step(self._own, gradients, gram=gram)
        self._from_owners(rows)

    def _lengths(self, count: int) -> list[int]:
        """How many elements each owner has of so many particles."""
        return [count * (end - start) for start, end in zip(self._bounds, self._bounds[1:])]

    def _to_owners(self, rows: NDArray[Any]) -> NDArray[Any]:
        """Of rows of the own particles the columns of each owner go to it: returns all particles' own columns."""
        cuts = [rows[:, start:end].ravel() for start, end in zip(self._bounds, self._bounds[1:])]
        received = [count * self._width for count in self._counts]
        whole = self._group.all_to_all_v(np.concatenate(cuts), self._lengths(len(rows)), received)
        return np.asarray(whole).reshape(sum(self._counts), self._width)

    def _from_owners(self, rows: NDArray[Any]) -> None:
        """The way back."""
        sent = [count * self._width for count in self._counts]
        lengths = self._lengths(len(rows))
        whole = np.asarray(self._group.all_to_all_v(self._own.ravel(), sent, lengths))
        ends = np.cumsum(lengths)
        for part, start, end in zip(np.split(whole, ends[:-1]), self._bounds, self._bounds[1:]):
            rows[:, start:end] = part.reshape(len(rows), end - start)
