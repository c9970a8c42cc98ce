"""Adam and AdamW in float64 NumPy, from arXiv 1412.6980 (end of section 2) and 1711.05101."""

import numpy as np


class NumpyAdam:
    """`step` takes the gradients of one step and returns the new values, both dicts by name."""

    def __init__(
        self, values, learning_rate=1e-3, beta_1=0.9, beta_2=0.999, epsilon=1e-7, weight_decay=0.0
    ):
        self.values = {name: np.asarray(v, "float64") for name, v in values.items()}
        self.m = {name: np.zeros_like(v) for name, v in self.values.items()}
        self.v = {name: np.zeros_like(v) for name, v in self.values.items()}
        self.learning_rate, self.weight_decay = learning_rate, weight_decay
        self.beta_1, self.beta_2, self.epsilon = beta_1, beta_2, epsilon
        self.iterations = 0

    def step(self, gradients):
        self.iterations += 1
        t = self.iterations
        correction = np.sqrt(1 - self.beta_2**t) / (1 - self.beta_1**t)
        for name, gradient in gradients.items():
            gradient = np.asarray(gradient, "float64")
            self.m[name] += (1 - self.beta_1) * (gradient - self.m[name])
            self.v[name] += (1 - self.beta_2) * (gradient**2 - self.v[name])
            decayed = self.values[name] * (1 - self.learning_rate * self.weight_decay)
            update = self.m[name] * correction / (np.sqrt(self.v[name]) + self.epsilon)
            self.values[name] = decayed - self.learning_rate * update
        return self.values
