"""Every section of SPEC.md that code or tests cite exists."""

import re

from support import ROOT

CITATION = re.compile(r'SPEC,\s+"([^"]+)"')


def test_every_cited_section_exists():
    text = (ROOT / "onemodel_jax" / "SPEC.md").read_text()
    sections = set(re.findall(r"^#+ (.+)$", text, re.MULTILINE))
    cited = set()
    for folder in ("onemodel_jax", "tests"):
        for path in (ROOT / folder).rglob("*.py"):
            if path.name != "test_spec.py":
                cited |= set(CITATION.findall(path.read_text()))
    assert len(cited) > 20
    assert cited <= sections, cited - sections


def test_no_section_name_occurs_twice():
    text = (ROOT / "onemodel_jax" / "SPEC.md").read_text()
    sections = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    assert len(sections) == len(set(sections))
