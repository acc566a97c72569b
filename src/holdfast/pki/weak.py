"""RSA moduli that can be factored: small divisors, primes too close to each other, and the ROCA generator.

Each test takes microseconds and none needs a list of keys. What they miss is a matter for the list of blocked keys.
"""

from __future__ import annotations

from functools import cache
from math import gcd, isqrt, prod
from typing import Final

FERMAT_ROUNDS: Final = 100  # primes that differ in more than their lower half survive this, and any number of rounds
_SMALL: Final = 752  # as far as Boulder and Go look
_ROCA_PRIMES: Final = 167  # the primorial of Infineon's generator for the smallest keys; larger ones contain it
_ROCA_GENERATOR: Final = 65537


def _primes(limit: int) -> list[int]:
    return [n for n in range(2, limit + 1) if all(n % d for d in range(2, isqrt(n) + 1))]


@cache
def _small_primes() -> int:
    return prod(_primes(_SMALL))


@cache
def _roca_residues() -> tuple[tuple[int, frozenset[int]], ...]:
    """For each prime, the powers of 65537; primes of which it generates every residue say nothing."""
    residues = ((p, frozenset(pow(_ROCA_GENERATOR, n, p) for n in range(p - 1))) for p in _primes(_ROCA_PRIMES))
    return tuple((p, powers) for p, powers in residues if len(powers) < p - 1)


def has_small_divisor(modulus: int) -> bool:
    return gcd(modulus, _small_primes()) != 1


def is_roca(modulus: int) -> bool:
    """CVE-2017-15361: both primes are k·M + 65537^a mod M, so N is a power of 65537 modulo each prime of M.

    A random modulus passes for one with a chance below 2^-27 (Nemec, Sys, Svenda et al., CCS 2017, §4.1).
    """
    return all(modulus % p in powers for p, powers in _roca_residues())


def has_close_primes(modulus: int, rounds: int = FERMAT_ROUNDS) -> bool:
    """Fermat's factoring: N = a² - b² with a just above √N if p and q are close (CVE-2022-26320)."""
    a = isqrt(modulus - 1) + 1
    b_squared = a * a - modulus
    for _ in range(rounds):
        if _may_be_square(b_squared) and isqrt(b_squared) ** 2 == b_squared:
            return True
        b_squared += 2 * a + 1
        a += 1
    return False


def _may_be_square(number: int) -> bool:
    """Squares end in one of 12 ways of 64: this spares most of the square roots."""
    return number & 63 in {0, 1, 4, 9, 16, 17, 25, 33, 36, 41, 49, 57}
