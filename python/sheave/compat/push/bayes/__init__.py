"""PusH's Bayesian deep learning: `ensemble`, `swag`, `stein_vgd` and `mc_dropout`.

Signatures, messages and shapes are PusH's; the mathematics is that of `sheave.bayes`.

What differs from PusH, on purpose:

- Particles begin with weights of their own, with `random_seed` and without; a `bootstrap` is drawn for each of them.
- Predictions are made in evaluation, without graphs, and leave the particles as they were.
- No default is shared by calls: a state that is not given is a new one.
"""
