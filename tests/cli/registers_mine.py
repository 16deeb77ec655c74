"""A module that registers an algorithm when imported."""

from ludus.registry import Entry, register

register(Entry("mine", "ludus.algos.dqn:DQN", "ludus.algos.dqn:Config", "for a test"))
