"""Operands whose product is exact in float32 and TF32, and the exact check of a product.

The operands are small integers, so every product and sum is exact, in whatever order it is summed:
the host's check demands equality, not closeness.
"""

import array
import operator
import random


def operand(numpy, n, seed):
    return numpy.random.RandomState(seed).randint(-8, 9, size=(n, n)).astype(numpy.float32)


def small_operand(numpy, n, seed):
    """Make an operand of -1, 0 and 1: sums of 1024 products stay below 256, and bfloat16 has every
    integer up to that.

    They scatter around 0 by 30, so that one in 10**17 would be larger.
    """
    return numpy.sign(operand(numpy, n, seed))


def wrong_rows(numpy, a, b, c, rounds=2):
    """Rows of `c` that are not those of `a @ b`: Freivalds' check in exact integers.

    A wrong row passes with a chance of at most 2**-20 in each round.
    """
    if c.shape != (a.shape[0], b.shape[1]):
        return a.shape[0]
    # No element of a product is as large as 2**40; one of 2**63 is no integer of 64 bits either.
    whole = numpy.isfinite(c) & (c == numpy.rint(c)) & (abs(c) < 2.0**40)
    bad = ~whole.all(axis=1)
    a, b, c = [m.astype(numpy.int64) for m in (a, b, numpy.where(whole, c, 0))]
    for _ in range(rounds):
        r = numpy.random.RandomState(random.randrange(1 << 31)).randint(1, 1 << 20, b.shape[1])
        bad |= a.dot(b.dot(r)) != c.dot(r)
    return int(bad.sum())


class ExactProduct:
    """Square operands of small integers, and the same check of their product without numpy.

    The operands' share of it is computed once (one second for n = 2048), each product costs half
    a second more. A wrong row passes with a chance of at most 2**-30.
    """

    SMALL = bytes((byte % 17 - 8) & 0xFF for byte in range(256))

    def __init__(self, n):
        self.n = n
        self.a, self.b = [self._random(n * n) for _ in "ab"]
        self.vector = [random.randrange(1, 1 << 30) for _ in range(n)]
        self.expected = self._times(self.a, self._times(self.b, self.vector))
        self.operands = [array.array("f", matrix) for matrix in (self.a, self.b)]
        # The first product that was found right, to compare others with.
        self.right = None

    def _random(self, length):
        raw = random.getrandbits(8 * length).to_bytes(length, "little")
        return array.array("b", raw.translate(self.SMALL))

    def _times(self, matrix, vector):
        n = self.n
        return [sum(map(operator.mul, matrix[at : at + n], vector)) for at in range(0, n * n, n)]

    def confirm(self, c):
        """The same as `wrong_rows`; a right product is kept."""
        wrong = self.wrong_rows(c)
        if not wrong:
            self.right = c
        return wrong

    def wrong_rows(self, c):
        """Rows of `c`, an array of n * n floats, that are not those of the product."""
        if len(c) != self.n**2:
            return self.n
        return sum(
            self._wrong(c[row * self.n : (row + 1) * self.n], self.expected[row])
            for row in range(self.n)
        )

    def _wrong(self, row, expected):
        try:
            whole = list(map(int, row))
        except (ValueError, OverflowError):  # no number, or none that ends
            return True
        return whole != row.tolist() or sum(map(operator.mul, whole, self.vector)) != expected
