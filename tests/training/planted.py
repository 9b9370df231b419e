"""Targets that are linear functions of embeddings plus noise, and how much of them is explained."""

from __future__ import annotations

import numpy as np

#: The last head is noise alone.
NOISE_HEAD = -1


def planted_targets(hidden_ND, *, num_planted: int, ceiling: float, seed: int):
    """Centred targets [N, num_planted + 1]; no model explains more of the first than ``ceiling``.

    A head's signal has variance 1, its noise (1 - ceiling) / ceiling, so that signal / (signal +
    noise) = ceiling.
    """
    generator = np.random.default_rng(seed)
    centred_ND = hidden_ND - hidden_ND.mean(axis=0)
    signal_NR = centred_ND @ generator.normal(size=(hidden_ND.shape[1], num_planted))
    signal_NR /= signal_NR.std(axis=0)
    noise_sd = np.sqrt((1 - ceiling) / ceiling)
    planted_NR = signal_NR + noise_sd * generator.normal(size=signal_NR.shape)
    noise_N1 = generator.normal(size=(len(hidden_ND), 1))
    return np.concatenate([planted_NR, noise_N1], axis=1)


def r_squared(target_NR, predicted_NR):
    """1 - squared error / squared deviation from the mean, for each head."""
    error_R = np.square(target_NR - predicted_NR).sum(axis=0)
    return 1 - error_R / np.square(target_NR - target_NR.mean(axis=0)).sum(axis=0)
