"""Stein variational gradient descent on flat vectors."""

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
from sheave import _core, optim

__all__ = ["Svgd"]


class Svgd:
    """Stein variational gradient descent (Liu and Wang, NeurIPS 2016, arXiv:1608.04471).

    `n` particles of `d` parameters each move against

    ```text
    u_i = 1/n sum_j [ k(t_j, t_i) g_j - dk(t_j, t_i)/dt_j ]
    ```

    where g_j is the gradient of the *loss* at t_j, the negative log posterior: the first term descends along a mean of
    gradients, the second one pushes particles apart. `kernel` is "rbf", exp(-r**2 / (2 l**2)), or "imq", the inverse
    multiquadric 1 / sqrt(1 + r**2 / l**2). `lengthscale` is l; by default l**2 = median**2 / (2 log(n + 1)) with the
    median of the distances of all pairs, in each step. `optimizer` makes steps of directions: one of `sheave.optim`,
    AdaGrad with a rate of 0.1 by default.

    Particles and gradients are a matrix [n, d], or a list of n flat vectors, of float32 or float64, numpy's or torch's
    on the CPU. They are used where they lie and changed in place, in O(n**2 d) by matrix products. Both must be
    contiguous; they must not share memory. A gradient that is not a number makes that parameter of all particles none.

    >>> import numpy as np, sheave
    >>> particles = np.array([[3.0], [3.5]], np.float32)
    >>> svgd = sheave.bayes.Svgd(optimizer=sheave.optim.Adam(lr=0.1))
    >>> for _ in range(300):
    ...     _ = svgd.step(particles, particles.copy())      # a standard normal posterior: its loss is t**2 / 2
    >>> particles[0, 0] < -0.3, particles[1, 0] > 0.3
    (np.True_, np.True_)
    """

    def __init__(
        self,
        *,
        kernel: Literal["rbf", "imq"] = "rbf",
        lengthscale: float | None = None,
        optimizer: optim.Optimizer | None = None,
    ) -> None:
        self._steps = _core.SvgdSteps(kernel, lengthscale, (optimizer or optim.AdaGrad(lr=0.1))._document())

    @property
    def lengthscale(self) -> float:
        """The length of the kernel in the last call; 0 before the first."""
        return self._steps.lengthscale

    @property
    def steps(self) -> int:
        """How many steps were taken."""
        return self._steps.steps

    def gram(self, particles: Any) -> NDArray[np.float64]:
        """Return the inner products of the particles less their mean: float64 of shape [n, n].

        Those of slices of the parameters add up to those of the whole: each of several owners of a slice computes its
        own, all of them sum the n * n numbers, and each steps its slice with the sum.

        >>> import numpy as np, sheave
        >>> sheave.bayes.Svgd().gram(np.array([[1.0], [3.0]]))
        array([[ 1., -1.],
               [-1.,  1.]])
        """
        return self._steps.gram(particles)

    def directions(self, particles: Any, gradients: Any, *, gram: Any = None) -> float:
        """Turn gradients of the loss into directions, in place; returns the length of the kernel.

        A step goes against them: `particles -= rate * directions`. `gram` is that of the whole particles where these
        are slices of them.
        """
        return self._steps.directions(particles, gradients, gram)

    def step(self, particles: Any, gradients: Any, *, gram: Any = None) -> float:
        """Turn gradients into directions and step the particles along them, both in place.

        Returns the length of the kernel. The optimizer keeps its state of each particle: later steps must have the
        shape of the first.
        """
        return self._steps.step(particles, gradients, gram)
