"""The notebook's stored outputs are what its cells print."""

import contextlib
import io
import json

from tests.support import ROOT


def test_the_notebook_prints_what_it_shows():
    notebook = json.loads((ROOT / "notebooks" / "exact_vjp.ipynb").read_text())
    names = {"__name__": "__main__"}
    cells = [c for c in notebook["cells"] if c["cell_type"] == "code"]
    assert len(cells) == 5
    for cell in cells:
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            exec("".join(cell["source"]), names)
        stored = "".join(t for o in cell["outputs"] for t in o.get("text", []))
        assert printed.getvalue() == stored
