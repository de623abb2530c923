"""Bayesian deep learning: mathematics on flat vectors, and algorithms on particles.

Parameters are flat arrays of float32 or float64, numpy's or torch's on the CPU; results are numpy's. Gradients are
those of a *loss*, which descends: of the negative log posterior U = (N / B) * sum of a batch's nll - log prior, for N
data and batches of B. The mathematics is native, and other threads of Python run meanwhile.

| what | where from |
|---|---|
| `mean`, `std`, `median`, `quantile`, `mode`, `classify`, `mean_probabilities`, ... | what members predict together |
| `nll`, `accuracy`, `brier`, `calibration_error`, `reliability`, `gaussian_nll`, `coverage` | how good that is |
| `Svgd` | Liu and Wang 2016 |
| `Swag` | Maddox et al. 2019 |
| `Sgld`, `Sghmc`, `Cyclical`, `Chain` | Welling and Teh 2011; Chen et al. 2014; Zhang et al. 2020 |
| `LaplaceRegression`, `LaplaceClassification` | MacKay 1992; Daxberger et al. 2021 |
| `bootstrap`, `dropout_mask`, `gaussian_head_nll`, `mixture` | Lakshminarayanan et al. 2017; Gal and Ghahramani 2016 |

Algorithms on particles train models of torch, or functions of numpy, on one device or several, in one process or more:

| what | how members differ |
|---|---|
| `Ensemble` | initial weights, bootstrapped data, a `RandomizedPrior` |
| `MultiSwag` | a Gaussian about each of several models |
| `SteinVgd` | particles that are pushed apart |
| `Langevin` | samples of chains |
| `MonteCarloDropout` | masks of dropout |
| `LastLayerLaplace` | a Gaussian of the last layer |

All have `fit(loader, loss, epochs)` and `predict(data, mode=[...])`. `plots` draws what they predict, as SVG.

All randomness is drawn from a `Generator` that is given: the same seed gives the same bits on one machine, whatever
numpy's and torch's own generators do.

>>> import numpy as np, sheave
>>> members = [np.array([[100.0, 0.0]]), np.array([[0.0, 50.0]])]       # logits of two sure members that disagree
>>> sheave.bayes.mean_probabilities(members)
array([[0.5, 0.5]])
"""

from sheave._core_bayes import (
    Chain,
    ClassificationPosterior,
    Cyclical,
    Generator,
    Normal,
    RegressionPosterior,
    Sghmc,
    Sgld,
    Swag,
    accuracy,
    bootstrap,
    brier,
    classify,
    coverage,
    dropout_mask,
    gaussian_head_gradient,
    gaussian_head_nll,
    gaussian_nll,
    log_softmax,
    mean,
    mean_log_probabilities,
    mean_probabilities,
    median,
    mixture,
    mode,
    nll,
    probability_std,
    quantile,
    seed_of,
    std,
)
from sheave.bayes import plots
from sheave.bayes._dropout import MonteCarloDropout
from sheave.bayes._ensemble import Ensemble, RandomizedPrior
from sheave.bayes._langevin import Langevin
from sheave.bayes._laplace import Evidence, LaplaceClassification, LaplaceRegression
from sheave.bayes._last_layer import LastLayerLaplace
from sheave.bayes._losses import gaussian_loss
from sheave.bayes._metrics import Reliability, calibration_error, reliability
from sheave.bayes._multi_swag import MultiSwag
from sheave.bayes._outputs import combine
from sheave.bayes._posterior import Posterior
from sheave.bayes._progress import Report
from sheave.bayes._stein import SteinVgd
from sheave.bayes._svgd import Svgd

__all__ = [
    "Chain",
    "ClassificationPosterior",
    "Cyclical",
    "Ensemble",
    "Evidence",
    "Generator",
    "Langevin",
    "LaplaceClassification",
    "LaplaceRegression",
    "LastLayerLaplace",
    "MonteCarloDropout",
    "MultiSwag",
    "Normal",
    "Posterior",
    "RandomizedPrior",
    "RegressionPosterior",
    "Reliability",
    "Report",
    "Sghmc",
    "Sgld",
    "SteinVgd",
    "Svgd",
    "Swag",
    "accuracy",
    "bootstrap",
    "brier",
    "calibration_error",
    "classify",
    "combine",
    "coverage",
    "dropout_mask",
    "gaussian_head_gradient",
    "gaussian_head_nll",
    "gaussian_loss",
    "gaussian_nll",
    "log_softmax",
    "mean",
    "mean_log_probabilities",
    "mean_probabilities",
    "median",
    "mixture",
    "mode",
    "nll",
    "plots",
    "probability_std",
    "quantile",
    "reliability",
    "seed_of",
    "std",
]
