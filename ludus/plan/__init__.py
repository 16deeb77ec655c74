"""The data an algorithm learns from: views, samplers, feeds and the plan that names them.

`ludus.contract` exports all that an algorithm needs of it.
"""
