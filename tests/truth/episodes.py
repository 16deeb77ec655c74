"""Cut one column of rows into the pieces between episode ends; dummy rows belong to none."""


def pieces(last, mask):
    """(start, stop) of each run of real rows; V[stop] is the value to bootstrap from."""
    found, start = [], None
    for t in range(len(last)):
        if not mask[t]:
            if start is not None:
                found.append((start, t))
            start = None
            continue
        if start is None:
            start = t
        if last[t]:
            found.append((start, t + 1))
            start = None
    if start is not None:
        found.append((start, len(last)))
    return found


def by_piece(truth, last, mask, rows, states):
    """Apply `truth(*rows, *states)` to each piece; None where a row belongs to no piece.

    `rows` are lists of length T, `states` of length T+1; a piece of n rows gets n and n+1 of them.
    """
    result = [None] * len(last)
    for start, stop in pieces(last, mask):
        part = truth(*(x[start:stop] for x in rows), *(x[start : stop + 1] for x in states))
        result[start:stop] = part
    return result
