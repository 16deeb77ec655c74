"""Slow truths: each equation as its paper writes it, Python loops over lists of floats.

Nothing here imports ludus (a test checks it). An episode end is treated in the most naive way
there is: the stream is cut into separate pieces and the paper's equation is applied to each.
"""
