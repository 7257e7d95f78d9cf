#!/usr/bin/env python3
"""Prints the orders that sampler_test.cpp expects, from the descriptions in trireme/data/permutation.h and
trireme/base/random.h alone."""
WORD = (1 << 64) - 1
GOLDEN = 0x9E3779B97F4A7C15


def mix(z):
    z = ((z ^ (z >> 30)) * 0xBF58476D1CE4E5B9) & WORD
    z = ((z ^ (z >> 27)) * 0x94D049BB133111EB) & WORD
    return z ^ (z >> 31)


def key_of(name):
    hashed = 0xCBF29CE484222325
    for letter in name.encode():
        hashed = ((hashed ^ letter) * 0x100000001B3) & WORD
    return hashed


class Random:
    def __init__(self, seed, *keys):
        self.state = mix((seed + GOLDEN) & WORD)
        for key in keys:
            self.state = mix(self.state ^ mix((key + GOLDEN) & WORD))

    def bits(self):
        self.state = (self.state + GOLDEN) & WORD
        return mix(self.state)


def permutation(size, random):
    bits = max(2, (size - 1).bit_length())
    left_bits, right_bits = bits // 2, bits - bits // 2
    keys = [random.bits() for _ in range(32 if size < 256 else 8)]

    def once(number):
        left, right = number >> right_bits, number & ((1 << right_bits) - 1)
        sizes = [left_bits, right_bits]
        for key in keys:
            left, right = right, left ^ (mix(right ^ key) >> (64 - sizes[0]))
            sizes.reverse()
        return left << right_bits | right

    def at(place):
        number = once(place)
        while number >= size:
            number = once(number)
        return number

    return at


for size, places in ((10, range(10)), (60000, (0, 1, 2, 59999))):
    order = permutation(size, Random(42, key_of("sample order"), 1, 0))
    print([order(place) for place in places])
