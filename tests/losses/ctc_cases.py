"""CTC worked by hand: the truth that the loss and both references must give."""

import math

import numpy as np

LN2, LN3 = math.log(2), math.log(3)
THIRD = 1 / 3
UNIFORM = np.zeros((4, 3))
REPEAT = [[THIRD, -2 / 3, THIRD], [-2 / 3, THIRD, THIRD], [THIRD, -2 / 3, THIRD]]

# name: logits (T, 3), labels, loss, gradient (None: exactly zero)
WORKED = {
    "empty target": (
        [[0, LN2, LN3], [0, 0, 0]],
        [],
        math.log(18),
        [[-5 / 6, THIRD, 0.5], [-2 / 3, THIRD, THIRD]],
    ),
    "two labels in two steps": (
        [[0, LN2, LN3], [0, 0, 0]],
        [1, 2],
        2 * LN3,
        [[1 / 6, -2 / 3, 0.5], [THIRD, THIRD, -2 / 3]],
    ),
    "a repeat needs a blank": (UNIFORM[:2], [1, 1], math.inf, None),
    "a repeat that fits": (UNIFORM[:3], [1, 1], 3 * LN3, REPEAT),
    "a repeat and one more do not fit": (UNIFORM[:3], [1, 1, 2], math.inf, None),
    "a repeat and one more fit": (
        UNIFORM,
        [1, 1, 2],
        4 * LN3,
        [*REPEAT, [THIRD, THIRD, -2 / 3]],
    ),
    "the gradient is that of logits": (
        [[0, LN3, -np.inf]],
        [1],
        math.log(4 / 3),
        [[0.25, -0.25, 0]],
    ),
    "no step, no label": (UNIFORM[:0], [], 0.0, None),
    "no step, a label": (UNIFORM[:0], [1], math.inf, None),
}
