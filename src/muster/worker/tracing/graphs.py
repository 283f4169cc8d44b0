"""Lets a traced model run as torch.compile divides it, and counts what its fused kernels read and write.

Dynamo and AOTAutograd make the graphs of both passes, as Inductor asks them to; PyTorch's own partitioner
(min_cut_rematerialization_partition) decides what is kept in between and what is computed again. Instead of
generating code, each graph then runs operation by operation over tensors without data, and the ledger sees
it.

What Inductor would fuse is a rule: operations other than products and attention that are connected, with no
product between them, are one kernel. It reads each of its inputs once and writes what is used outside it; all
else never lies in memory. A result is written over an input of the same size that nothing reads afterwards
(SchedulerNode.decide_inplace_update): the gradient of the logits over the logits.
"""

from __future__ import annotations

import operator
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from torch._ops import HigherOrderOperator
from torch.fx import Graph, GraphModule, Interpreter, Node
from torch.utils.flop_counter import flop_registry

from muster.core.trace import BACKWARD, FORWARD
from muster.worker.tracing.ledger import ATTENTION, Ledger, touched, unwrapped

aten = torch.ops.aten


@dataclass(frozen=True)
class Kernels:
    """What a graph's operations become. `last`: of a fused operation, the last one of its kernel before that
    has to run; `inside`: those whose result never leaves its kernel; `instead`: of a result that does, what
    its kernel is the last to read, in whose memory it may be written; `moves`: how often kernels other than
    products write and read the result of each other one; `count`: of all kernels."""

    last: Mapping[Node, Node]
    inside: frozenset[Node]
    instead: Mapping[Node, Sequence[Node]]
    moves: Mapping[Node, int]
    count: int


def kernels_of(graph: Graph, donated: Collection[int] = ()) -> Kernels:
    """Divide a graph into kernels: products and attention as they are, all else fused as far as it is
    connected. `donated`: the places of inputs that nothing else holds."""
    bases = _bases(graph)
    placeholders = [node for node in graph.nodes if node.op == "placeholder"]
    held = set(placeholders) - {placeholders[place] for place in donated}
    given = {node: {bases[each] for each in node.all_input_nodes} for node in bases if bases[node] is node}
    users: dict[Node, list[Node]] = {node: [] for node in given}
    for node, inputs in given.items():
        for each in inputs:
            users[each].append(node)
    kernels = _connected(given, _places(given, users))
    moves: Counter[Node] = Counter()
    read: dict[Node, set[Node]] = {}
    for node, kernel in kernels.items():
        read.setdefault(kernel, set()).update(each for each in given[node] if kernels.get(each) is not kernel)
        moves[node] += any(kernels.get(user) is not kernel for user in users[node])
    inside = {node for node in kernels if not moves[node]}
    for nodes in read.values():
        moves.update(nodes)
    products = sum(1 for node in given if _is_product(node))
    over = {
        kernel: [each for each in nodes if each not in held and kernels.get(users[each][-1]) is kernel]
        for kernel, nodes in read.items()
    }
    return Kernels(
        last=_last(kernels, users),
        inside=frozenset(node for node, base in bases.items() if base in inside),
        instead={node: over[kernel] for node, kernel in kernels.items() if node not in inside},
        moves=+moves,
        count=len(read) + products,
    )


def _bases(graph: Graph) -> dict[Node, Node]:
    """Map each node to the one whose memory it shows: itself, but for views and parts of several results."""
    bases: dict[Node, Node] = {}
    for node in graph.nodes:
        view = node.op == "call_function" and (
            node.target is operator.getitem
            or getattr(node.target, "is_view", False)
            or getattr(node.target, "overloadpacket", None) in (aten.reshape, aten._unsafe_view)
        )
        bases[node] = bases[node.all_input_nodes[0]] if view and node.all_input_nodes else node
    return bases


def _is_product(node: Node) -> bool:
    operation, _ = unwrapped(node.target, node.args)
    packet = getattr(operation, "overloadpacket", None)
    return packet in flop_registry or packet in ATTENTION


def _fuses(node: Node) -> bool:
    return node.op == "call_function" and not _is_product(node)


def _places(
    given: Mapping[Node, Collection[Node]], users: Mapping[Node, Collection[Node]]
) -> dict[Node, int]:
    """Count after how many products in a row each node runs. What is fused runs as late as its first user
    asks: it is computed where it is needed rather than kept."""
    early: dict[Node, int] = {}
    for node, inputs in given.items():
        early[node] = max((early[each] + _is_product(each) for each in inputs), default=0)
    late = dict(early)
    for node in reversed(given):
        if _fuses(node):
            asked = [late[user] for user in users[node] if user.op != "output"]
            late[node] = max(early[node], min(asked, default=early[node]))
    return late


def _connected(given: Mapping[Node, Collection[Node]], places: Mapping[Node, int]) -> dict[Node, Node]:
    """Map each node that is fused to its kernel, which one of its nodes stands for."""
    first: dict[Node, Node] = {node: node for node in given if _fuses(node)}

    def root(node: Node) -> Node:
        while first[node] is not node:
            first[node] = first[first[node]]
            node = first[node]
        return node

    for node in first:
        for each in given[node]:
            if each in first and places[each] == places[node]:
                first[root(each)] = root(node)
    return {node: root(node) for node in first}


def _last(kernels: Mapping[Node, Node], users: Mapping[Node, Sequence[Node]]) -> dict[Node, Node]:
    """Find for each fused operation the last one of its kernel before another kernel needs a result of it."""
    order = {node: index for index, node in enumerate(users)}
    needed: dict[Node, int] = {}
    for node, kernel in kernels.items():
        others = (order[user] for user in users[node] if kernels.get(user) is not kernel)
        needed[kernel] = min(needed.get(kernel, len(order)), *others, len(order))
    last = {kernel: node for node, kernel in kernels.items() if order[node] < needed[kernel]}
    return {node: last[kernel] if order[node] < needed[kernel] else node for node, kernel in kernels.items()}


# ----------------------------------------------------------------------------------------------------
# The graphs, run.


def parts_of(graph: Graph) -> dict[Node, str]:
    """Name the operations at which another part of a pass begins: products of the first, the last or another
    block of a stack, or of none, and what comes after them all."""
    products = [node for node in graph.nodes if _is_product(node)]
    blocks = [_block(node) for node in products]
    last: dict[str, int] = {}
    for stack, index in filter(None, blocks):
        last[stack] = max(index, last.get(stack, 0))
    parts: dict[Node, str] = {}
    part = ""
    for node, block in zip(products, blocks, strict=True):
        if block is None:
            here = part if part.endswith("after") else f"{part} after"
        else:
            stack, index = block
            here = f", {stack} {'first' if index == 0 else 'last' if index == last[stack] else 'middle'}"
        if here != part:
            parts[node] = part = here
    if products:
        parts[products[-1].next] = ", end"
    return parts


def _block(node: Node) -> tuple[str, int] | None:
    """Find the stack whose block an operation, or the one that it is the gradient of, belongs to, and the
    block's number."""
    modules = node.meta.get("nn_module_stack") or node.meta.get("fwd_nn_module_stack") or {}
    for path, _ in modules.values():
        stack, _, number = path.rpartition(".")
        if number.isdecimal():
            return stack, int(number)
    return None


class _Run(Interpreter):  # type: ignore[misc]
    """A graph's operations one after the other, in a ledger's account where there is one."""

    def __init__(self, graph: GraphModule, account: Account, name: str, donated: Collection[int]) -> None:
        super().__init__(graph)
        self.account, self.name = account, name
        self.kernels, self.parts = kernels_of(graph.graph, donated), parts_of(graph.graph)
        uses: dict[Node, list[Node]] = {}
        ends: dict[Node, list[Node]] = self.user_to_last_uses  # type: ignore[has-type]
        for user, done in ends.items():  # what a kernel reads is there until it ends
            uses.setdefault(self.kernels.last.get(user, user), []).extend(done)
        self.user_to_last_uses = uses
        self.ended = False  # a fused kernel, by the operation before
        self.backward = name.startswith(BACKWARD)
        if not self.backward:
            account.forward |= {node.name for node in graph.graph.nodes if _is_product(node)}

    def run_node(self, node: Node) -> Any:
        """Run one operation, whose result lies in memory or stays inside its kernel."""
        ledger = self.account.ledger
        if ledger is None:
            return super().run_node(node)
        if node in self.parts:
            ledger.mark(f"{self.name}{self.parts[node]}")
        if self.ended:  # and what it read is gone, where nothing else holds it
            ledger.settle()
        self.ended = self.kernels.last.get(node) is node
        ledger.inside = node in self.kernels.inside
        ledger.repeated = self.backward and (
            node.name in self.account.forward or isinstance(node.target, HigherOrderOperator)
        )
        over = self.kernels.instead.get(node, ())
        ledger.instead_of = [self.env[each] for each in over if each in self.env]
        made = super().run_node(node)
        ledger.instead_of = ()  # which would hold them
        results = made if isinstance(made, tuple | list) else (made,)
        written = sum(touched(each) for each in results if isinstance(each, torch.Tensor))
        ledger.moved += self.kernels.moves.get(node, 0) * written
        return made

    def __call__(self, arguments: list[Any]) -> Any:
        """Run the graph. `arguments`: emptied, so that what is needed no more goes."""
        ledger = self.account.ledger
        if ledger is None:
            return self.boxed_run(arguments)
        ledger.mark(self.name)
        ledger.operations += self.kernels.count
        try:
            return self.boxed_run(arguments)
        finally:
            ledger.settle()
            ledger.inside = ledger.repeated = None
            self.env.clear()  # which would hold the results


class Account:
    """Compiled functions, and the ledger that sees their graphs run; None while they are compiled."""

    def __init__(self) -> None:
        self.ledger: Ledger | None = None
        self.graphs = {FORWARD: 0, BACKWARD: 0}
        self.forward: set[str] = set()  # products of forward graphs: a backward graph keeps their names

    def compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Compile a function as torch.compile does, but for the code that it generates."""
        made: Callable[..., Any] = torch.compile(function, backend=self._backend, dynamic=False)
        return made

    def _backend(self, graph: GraphModule, inputs: list[Any]) -> Any:
        from torch._inductor.compile_fx import compile_fx

        return compile_fx(graph, inputs, inner_compile=self._graph)

    def _graph(self, graph: GraphModule, inputs: Sequence[Any], **about: Any) -> Any:
        from torch._inductor.utils import get_donated_idxs

        direction = BACKWARD if about.get("is_backward") else FORWARD
        self.graphs[direction] += 1
        donated = (get_donated_idxs() or ()) if direction == BACKWARD else ()
        run = _Run(graph, self, f"{direction}: graph {self.graphs[direction]}", donated)
        run._boxed_call = True  # takes its arguments as a list, which it empties
        return run


@contextmanager
def compiling() -> Iterator[Account]:
    """Compile functions inside, and forget them afterwards."""
    dynamo = torch._dynamo
    dynamo.reset()
    # Where code breaks a graph, Dynamo looks through what called it once instead of once for each caller.
    once = {"nested_graph_breaks": True} if hasattr(dynamo.config, "nested_graph_breaks") else {}
    # What was compiled for real and is remembered must not come in the place of these graphs.
    with ExitStack() as stack:
        stack.callback(dynamo.reset)
        stack.enter_context(torch._functorch.config.patch(enable_autograd_cache=False))
        if once:
            stack.enter_context(dynamo.config.patch(once))
        yield Account()


def start_autograd() -> None:
    """Let autograd start its threads, one for each device, before any tensor is without data.

    Where PyTorch is built for CUDA and there is no device, entering FakeTensorMode makes one up
    (_ensureCUDADeviceGuardSet). Autograd would start a thread for it, after which no copy of the process can
    run a backward pass.
    """
    torch.ones(1, requires_grad=True).sum().backward()


@cache
def warm_up() -> None:
    """Compile a trifle, so that what PyTorch makes once is there."""
    with compiling() as account:
        account.compiled(torch.square)(torch.ones(2, requires_grad=True)).sum().backward()
