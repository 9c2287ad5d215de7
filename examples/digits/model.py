"""A classifier of handwritten digits whose parameters are one flat array.

The same code trains serially on an ordinary array and in many processes on one
that they share: :func:`step` changes the array in place and knows nothing of it.
"""

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

PIXELS, HIDDEN, CLASSES = 64, 48, 10
SHAPES = ((PIXELS, HIDDEN), (HIDDEN,), (HIDDEN, CLASSES), (CLASSES,))
PARAMETERS = sum(int(np.prod(s)) for s in SHAPES)


def data(seed):
    """Return (x, y, x_test, y_test): 8x8 pictures scaled to 0..1, and their digits."""
    digits = load_digits()
    x = (digits.data / 16).astype(np.float32)
    x, x_test, y, y_test = train_test_split(x, digits.target, test_size=0.25, random_state=seed, stratify=digits.target)
    return x, y, x_test, y_test


def initial(seed):
    """Return the parameters to start from, shape (PARAMETERS,), float32."""
    rng = np.random.default_rng(seed)
    parts = [rng.normal(0, (2 / s[0]) ** 0.5, s) if len(s) == 2 else np.zeros(s) for s in SHAPES]
    return np.concatenate([p.ravel() for p in parts]).astype(np.float32)


def layers(w):
    """Return views of the flat parameters as (w1, b1, w2, b2)."""
    views, at = [], 0
    for shape in SHAPES:
        size = int(np.prod(shape))
        views.append(w[at : at + size].reshape(shape))
        at += size
    return views


def forward(w, x):
    """Return the hidden activations and the class probabilities."""
    w1, b1, w2, b2 = layers(w)
    h = np.maximum(x @ w1 + b1, 0)
    z = h @ w2 + b2
    p = np.exp(z - z.max(axis=1, keepdims=True))
    return h, p / p.sum(axis=1, keepdims=True)


def evaluate(w, x, y):
    """Return the mean cross entropy and the share of right answers."""
    _, p = forward(w, x)
    right = p[np.arange(len(y)), y]
    return float(-np.log(np.maximum(right, 1e-12)).mean()), float((p.argmax(axis=1) == y).mean())


def gradient(w, x, y):
    """Return the gradient of the mean cross entropy, flat like ``w``."""
    h, p = forward(w, x)
    p[np.arange(len(y)), y] -= 1
    p /= len(y)
    dh = (p @ layers(w)[2].T) * (h > 0)
    return np.concatenate([(x.T @ dh).ravel(), dh.sum(axis=0), (h.T @ p).ravel(), p.sum(axis=0)])


def step(w, x, y, rate):
    """Take one step of gradient descent in place."""
    w -= rate * gradient(w, x, y)
