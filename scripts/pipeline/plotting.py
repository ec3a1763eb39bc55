"""Figures that look alike and are the same bytes each time."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from scripts.pipeline.files import write_atomic

if TYPE_CHECKING:
    from matplotlib.figure import Figure

COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#56B4E9", "#E69F00", "#4D4D4D", "#8C564B")
"""Okabe and Ito's palette, told apart by colour-blind readers; combine it with markers."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "*")

_RC = {
    "figure.figsize": (7.2, 4.2),
    "figure.constrained_layout.use": True,
    "font.size": 9.5,
    "axes.titlesize": 10,
    "axes.labelsize": 9.5,
    "legend.fontsize": 8.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.alpha": 0.25,
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
    "legend.frameon": False,
    "svg.fonttype": "path",
    "svg.hashsalt": "figure",
}


@contextmanager
def style() -> Iterator[None]:
    """The project's look, on a backend that needs no display; draw and save inside it."""
    import matplotlib as mpl

    mpl.use("agg")
    from cycler import cycler

    cycle = cycler(color=COLOURS) + cycler(marker=MARKERS)
    with mpl.rc_context({**_RC, "axes.prop_cycle": cycle}):
        yield


def write_svg(path: Path, figure: "Figure") -> None:
    """Save a figure without dates or random ids, and close it."""
    import matplotlib as mpl
    import matplotlib.pyplot as plt

    buffer = io.BytesIO()
    with mpl.rc_context({key: _RC[key] for key in ("svg.fonttype", "svg.hashsalt")}):
        figure.savefig(buffer, format="svg", metadata={"Date": None})
    plt.close(figure)
    write_atomic(path, buffer.getvalue())
