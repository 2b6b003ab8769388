"""tools/cost: what fails, and what is told. The counting itself runs in CI, on the build."""
import importlib.machinery
import importlib.util
import pathlib

import pytest

TOOL = pathlib.Path(__file__).resolve().parents[3] / "tools/cost"
KNOWN = {"yardstick": 16000, "memory": 10000, "lane": 14000}


@pytest.fixture(scope="module")
def cost():
    loader = importlib.machinery.SourceFileLoader("cost", str(TOOL))
    module = importlib.util.module_from_spec(importlib.util.spec_from_loader("cost", loader))
    loader.exec_module(module)
    return module


@pytest.mark.parametrize("memory, good, said", [
    (10000, True, "ok"), (10999, True, "ok"), (11001, False, "OVER"), (8900, True, "lower its figure")])
def test_over_a_tenth_fails(cost, capsys, memory, good, said):
    """A part may cost a tenth more than its figure, and no more; less is told."""
    assert cost.judge({"yardstick": 16000, "memory": memory, "lane": 14000}, KNOWN) == good
    assert said in capsys.readouterr().out.splitlines()[0]


def test_a_worse_compiler_is_not_a_slower_program(cost):
    """Where the yardstick costs more by a half, all may cost more by a half."""
    assert cost.judge({"yardstick": 24000, "memory": 15000}, KNOWN)
    assert not cost.judge({"yardstick": 16000, "memory": 15000}, KNOWN)


def test_there_is_a_figure_for_each_part(cost):
    """The file in the tree has all parts."""
    assert set(cost.figures()) == {"yardstick", *cost.PARTS}
