"""The line that makes a part of a model is found without running it."""

import inspect

import torch
from torch import nn

from lightning_perf.probes.model.made_at import made_at


class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.head = nn.Linear(2, 2)


class Net(Base):
    def __init__(self):
        super().__init__()
        self.table = nn.Embedding(8, 2)
        self.blocks = nn.ModuleList([nn.Linear(2, 2), nn.Sequential(Base())])
        self.register_buffer("counts", torch.ones(2))
        self.add_module("gate", nn.Linear(2, 2))
        for name in ("a", "b"):
            setattr(self, name, nn.Linear(2, 2))
        self.replace()

    def replace(self):
        self.late = nn.Parameter(torch.ones(2))


def line_with(text):
    lines = inspect.getsource(inspect.getmodule(Net)).splitlines()
    return f"test_made_at.py:{1 + next(i for i, line in enumerate(lines) if text in line)}"


def test_line_is_that_which_sets_or_registers_the_part():
    net = Net()
    assert made_at(net, "table") == made_at(net, "table.weight") == line_with("self.table =")
    assert made_at(net, "counts") == line_with('register_buffer("counts"')
    assert made_at(net, "gate") == line_with('add_module("gate"')
    assert made_at(net, "late") == line_with("self.late =")


def test_line_of_an_item_is_that_of_its_container_or_of_its_own_module():
    net = Net()
    assert made_at(net, "blocks.0") == made_at(net, "blocks.1") == line_with("self.blocks =")
    assert made_at(net, "blocks.1.0.head") == made_at(net, "head.weight") == line_with("self.head =")


def test_no_line_is_named_where_none_sets_the_part():
    assert made_at(Net(), "a") == ""
    assert made_at(nn.Sequential(nn.Linear(2, 2)), "0") == ""
    assert made_at(Net(), "nothing.at.all") == ""


class Comparing(type):
    def __eq__(cls, other):
        return cls is other


class Unhashable(nn.Module, metaclass=Comparing):
    def __init__(self):
        super().__init__()
        self.only = nn.Linear(2, 2)


def test_line_is_found_when_the_class_cannot_be_hashed():
    assert made_at(Unhashable(), "only") == line_with("self.only =")
