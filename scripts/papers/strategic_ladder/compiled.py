"""The compiled loops of the solver: a sweep is an interpolation and a running maximum.

Each function runs over a batch of ladders, one after the other, so that a ladder's values stay in
the cache until it has converged. `loops()` compiles at the first use, which takes seconds.
"""

from functools import cache
from types import SimpleNamespace

import numpy as np

TIE = 1e-8
"""Two options whose values differ by less (times 1 + |value|) are alike: the agent is indifferent,
and takes the one with less gaming, then the higher level."""


@cache
def loops() -> SimpleNamespace:
    """The functions `iterate`, `decide` and `follow`, compiled."""
    import numba

    jit = numba.njit(nogil=True, error_model="numpy")

    @jit
    def place(grid, x):
        """Index and weight of x between grid nodes: value = v[i] + w (v[i+1] - v[i]); clamped."""
        last = len(grid) - 1
        if x <= grid[0]:
            return 0, 0.0
        if x >= grid[last]:
            return last - 1, 1.0
        low, high = 0, last
        while high - low > 1:
            middle = (low + high) // 2
            if grid[middle] <= x:
                low = middle
            else:
                high = middle
        width = grid[low + 1] - grid[low]
        return low, (x - grid[low]) / width if width > 0 else 0.0

    @jit
    def continuation(out, values, rewards, beta, index, weight):
        """out[l, n]: reward of level l and the discounted value of what follows y = grid[n]."""
        for level in range(out.shape[0]):
            for n in range(out.shape[1]):
                i = index[level, n]
                low = values[level, i]
                follows = low + weight[level, n] * (values[level, i + 1] - low)
                out[level, n] = rewards[level] + beta * follows

    @jit
    def successors(grid, gamma, delta, levels):
        """Where gamma grid + delta (l' - 1) lies on the grid, by new level [L, K]."""
        count = len(grid)
        index = np.empty((levels, count), dtype=np.int32)
        weight = np.empty((levels, count))
        for level in range(levels):
            i = 0
            for n in range(count):
                x = gamma * grid[n] + delta * level
                while i < count - 2 and grid[i + 1] <= x:
                    i += 1
                width = grid[i + 1] - grid[i]
                share = (x - grid[i]) / width if width > 0 else 0.0
                index[level, n] = i
                weight[level, n] = min(max(share, 0.0), 1.0)
        return index, weight

    @jit
    def sweep(values, ahead, grid, thresholds, honest_cost, gaming_cost):
        """One Bellman update in place; returns the largest change."""
        levels, count = ahead.shape
        change = 0.0
        for level in range(levels):
            own = thresholds[level]
            has_next = level + 1 < levels
            following = thresholds[level + 1] if has_next else np.inf
            best = -np.inf
            for n in range(count - 1, -1, -1):
                y = grid[n]
                value = -np.inf
                if has_next:
                    value = ahead[level + 1, n] - gaming_cost * max(following - y, 0.0)
                if y < following:
                    stay = ahead[level, n] - gaming_cost * max(own - y, 0.0)
                    value = max(value, stay)
                    if y < own:
                        value = max(value, ahead[level - 1, n])
                best = max(best, value - honest_cost * y)
                new = best + honest_cost * y
                change = max(change, abs(new - values[level, n]))
                values[level, n] = new
        return change

    @jit
    def iterate(
        values, grids, thresholds, rewards, levels, beta, gamma, delta, honest, gaming, goal, most
    ):
        """Value iteration of every ladder in place; returns sweeps, first and last change [B]."""
        batch, count = grids.shape
        sweeps = np.zeros(batch, dtype=np.int64)
        first, last = np.zeros(batch), np.zeros(batch)
        for b in range(batch):
            size = levels[b]
            index, weight = successors(grids[b], gamma[b], delta[b], size)
            ahead = np.empty((size, count))
            own = values[b, :size]
            for _ in range(most):
                continuation(ahead, own, rewards[b], beta[b], index, weight)
                change = sweep(own, ahead, grids[b], thresholds[b], honest[b], gaming[b])
                if sweeps[b] == 0:
                    first[b] = change
                sweeps[b] += 1
                last[b] = change
                if change < goal:
                    break
        return sweeps, first, last

    @jit
    def choose(y, level, levels, thresholds, ahead_down, ahead_stay, ahead_up, gaming_cost):
        """Best move (-1, 0, 1) at an attribute y after effort, its value and its gaming."""
        own = thresholds[level]
        following = thresholds[level + 1] if level + 1 < levels else np.inf
        best, move, gamed = -np.inf, 0, 0.0
        if level + 1 < levels:
            gamed = max(following - y, 0.0)
            best, move = ahead_up - gaming_cost * gamed, 1
        if y < following:
            need = max(own - y, 0.0)
            value = ahead_stay - gaming_cost * need
            slack = TIE * (1.0 + abs(value))
            if value > best + slack or (value >= best - slack and need < gamed):
                best, move, gamed = value, 0, need
            if y < own:
                slack = TIE * (1.0 + abs(ahead_down))
                if ahead_down > best + slack or (ahead_down >= best - slack and gamed > 0.0):
                    best, move, gamed = ahead_down, -1, 0.0
        return best, move, gamed

    @jit
    def decide(values, grids, thresholds, rewards, levels, beta, gamma, delta, honest, gaming):
        """Greedy policy on the nodes.

        Returns target [B, L, K] (node that the attribute is raised to), move and gaming there, and
        surplus: the value of that choice plus honest_cost times nothing yet spent, W(y) - c+ y.
        """
        batch, count = grids.shape
        shape = values.shape
        target = np.zeros(shape, dtype=np.int32)
        move = np.zeros(shape, dtype=np.int8)
        gamed = np.zeros(shape)
        surplus = np.zeros(shape)
        for b in range(batch):
            size = levels[b]
            index, weight = successors(grids[b], gamma[b], delta[b], size)
            ahead = np.empty((size, count))
            continuation(ahead, values[b, :size], rewards[b], beta[b], index, weight)
            for level in range(size):
                top = -np.inf  # the true maximum, so that ties cannot drift
                kept, kept_gaming, kept_move, kept_at = -np.inf, 0.0, 0, 0
                for n in range(count - 1, -1, -1):
                    y = grids[b, n]
                    down = ahead[max(level - 1, 0), n]
                    up = ahead[min(level + 1, size - 1), n]
                    value, way, need = choose(
                        y, level, size, thresholds[b], down, ahead[level, n], up, gaming[b]
                    )
                    net = value - honest[b] * y
                    top = max(top, net)
                    slack = TIE * (1.0 + abs(value))
                    if net > kept + slack:
                        better = True
                    elif net < top - slack:
                        better = False
                    else:  # alike: less gaming, then the higher level, then less effort
                        better = need < kept_gaming - 1e-12 or (
                            need < kept_gaming + 1e-12 and way >= kept_move
                        )
                    if better:
                        kept, kept_gaming, kept_move, kept_at = net, need, way, n
                    target[b, level, n] = kept_at
                    move[b, level, n] = kept_move
                    gamed[b, level, n] = kept_gaming
                    surplus[b, level, n] = kept
        return target, move, gamed, surplus

    @jit
    def follow(
        values, target, move, gamed, surplus, grids, thresholds, rewards, levels, beta, gamma,
        delta, honest, gaming, start_level, start_x, steps,
    ):  # fmt: skip
        """Optimal paths from given starts [B, S]; attributes are continuous, not on the grid.

        Returns after-effort attribute, effort, gaming and new level, each [B, S, steps].
        """
        batch, starts = start_x.shape
        shape = (batch, starts, steps)
        reached, effort, cheat = np.zeros(shape), np.zeros(shape), np.zeros(shape)
        level_at = np.zeros(shape, dtype=np.int32)
        for b in range(batch):
            grid, size = grids[b], levels[b]
            for s in range(starts):
                x, level = start_x[b, s], start_level[b, s]
                ahead = np.empty(3)
                for t in range(steps):
                    for way in range(3):
                        new = min(max(level + way - 1, 0), size - 1)
                        i, w = place(grid, gamma[b] * x + delta[b] * new)
                        low = values[b, new, i]
                        high = values[b, new, i + 1]
                        ahead[way] = rewards[b, new] + beta[b] * (low + w * (high - low))
                    value, way, need = choose(
                        x, level, size, thresholds[b], ahead[0], ahead[1], ahead[2], gaming[b]
                    )
                    y = x
                    after = np.searchsorted(grid, x, side="right")
                    if after < len(grid):
                        net = surplus[b, level, after] + honest[b] * x
                        other = gamed[b, level, after]
                        slack = TIE * (1.0 + abs(value))
                        if net > value + slack or (net >= value - slack and other < need - 1e-12):
                            y = grid[target[b, level, after]]
                            way, need = move[b, level, after], other
                    level += way
                    reached[b, s, t] = y
                    effort[b, s, t] = y - x
                    cheat[b, s, t] = need
                    level_at[b, s, t] = level
                    x = gamma[b] * y + delta[b] * level
        return reached, effort, cheat, level_at

    return SimpleNamespace(iterate=iterate, decide=decide, follow=follow)
