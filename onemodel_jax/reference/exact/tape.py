"""The run-time tape and its two backward sweeps (SPEC, "Tape and sweeps").

``backward_dense`` skips what no cotangent has reached; ``backward_dense_from`` visits
everything. On a zero-preserving tape they agree, errors included. Shapes are checked
at run time, in a fixed order, each with its own message.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from onemodel_jax.reference.exact.graph import Graph, Idx, eval_ctx
from onemodel_jax.reference.exact.nodes import Args, Env, Node
from onemodel_jax.reference.exact.tensors import Pack, Tensor, Tensors

INVALID_OUTPUT = "autograd: invalid output id"
SEED_SHAPE = "autograd: seed gradient shape mismatch for output"
INVALID_PARENT = "autograd: invalid parent id during backward"
CONTRIBUTION_SHAPE = "autograd: gradient contribution has wrong shape for parent"
WRONG_LENGTH = "autograd: initial dense gradient array has wrong length"
ARRAY_SHAPE = "autograd: gradient array has wrong shape for node"
UPSTREAM_SHAPE = "autograd: upstream gradient shape mismatch"


class TapeError(Exception):
    """A sweep stopped; the message says at which check."""


Contributions = list[tuple[int, Tensor]]


def _no_contributions(cotangent: Tensor) -> Contributions:
    return []


@dataclass(frozen=True)
class TapeNode:
    """A value, and how a cotangent of it becomes contributions to earlier ids.

    ``parents`` is a record for readers; neither sweep looks at it.
    """

    value: Tensor
    backward: Callable[[Tensor], Contributions] = _no_contributions
    requires_grad: bool = True
    parents: tuple[int, ...] = ()
    name: str = "leaf"


Tape = Sequence[TapeNode]


def single_pack(t: Tensors, tape: Tape, output: int, seed: Tensor) -> Pack:
    """The seed at ``output`` and zeros elsewhere; all zeros if there is no such id."""
    pack = [t.zeros(node.value.shape) for node in tape]
    if 0 <= output < len(tape):
        pack[output] = seed
    return pack


def _accepts(tape: Tape, parent: int, grad: Tensor) -> bool:
    """Check one contribution; False if it is to be dropped."""
    if not 0 <= parent < len(tape):
        raise TapeError(INVALID_PARENT)
    if not tape[parent].requires_grad:
        return False
    if grad.shape != tape[parent].value.shape:
        raise TapeError(CONTRIBUTION_SHAPE)
    return True


def backward_dense(
    t: Tensors, tape: Tape, output: int, seed: Tensor
) -> list[Tensor | None]:
    """The skipping sweep: cotangent of every id, None where none arrived.

    Raises:
      TapeError: in this order: the output id, the seed's shape, then what a node's
        backward raises and the checks of each contribution.
    """
    if not 0 <= output < len(tape):
        raise TapeError(INVALID_OUTPUT)
    if seed.shape != tape[output].value.shape:
        raise TapeError(SEED_SHAPE)
    slots: list[Tensor | None] = [None] * len(tape)
    slots[output] = seed
    for i in reversed(range(len(tape))):
        cotangent = slots[i]
        if cotangent is None or not tape[i].requires_grad:
            continue
        for parent, grad in tape[i].backward(cotangent):
            if _accepts(tape, parent, grad):
                old = slots[parent]
                slots[parent] = grad if old is None else t.add(old, grad)
    return slots


def backward_dense_all(t: Tensors, tape: Tape, output: int, seed: Tensor) -> Pack:
    """backward_dense with zeros of the node's shape for None."""
    slots = backward_dense(t, tape, output, seed)
    return [
        t.zeros(node.value.shape) if slot is None else slot
        for node, slot in zip(tape, slots, strict=True)
    ]


def backward_dense_from(t: Tensors, tape: Tape, initial: Args) -> Pack:
    """The total sweep: every node that requires a gradient is visited.

    Raises:
      TapeError: the length; then, node by node from the last, its array's shape, its
        backward's own errors, the checks of each contribution.
    """
    if len(initial) != len(tape):
        raise TapeError(WRONG_LENGTH)
    slots = list(initial)
    for i in reversed(range(len(tape))):
        if not tape[i].requires_grad:
            continue
        if slots[i].shape != tape[i].value.shape:
            raise TapeError(ARRAY_SHAPE)
        for parent, grad in tape[i].backward(slots[i]):
            if _accepts(tape, parent, grad):
                slots[parent] = t.add(slots[parent], grad)
    return slots


def lower_graph_to_tape(graph: Graph, inputs: Args, env: Env) -> list[TapeNode]:
    """One leaf per input, then one tape node per graph node.

    A lowered node contributes to EVERY earlier id, zeros included, in order.
    """
    context = eval_ctx(graph, inputs, env)
    count = len(graph.inputs)
    tape = [TapeNode(value) for value in context[:count]]
    for k, node in enumerate(graph.nodes):
        before = context[: count + k]
        backward = _lowered(node, before, env)
        tape.append(TapeNode(context[count + k], backward, name=node.op.name))
    return tape


def _lowered(
    node: Node, context: Sequence[Tensor], env: Env
) -> Callable[[Tensor], Contributions]:
    def backward(cotangent: Tensor) -> Contributions:
        if cotangent.shape != node.out:
            raise TapeError(UPSTREAM_SHAPE)
        return list(enumerate(node.vjp(context, cotangent, env)))

    return backward


def seed_at(graph: Graph, output: Idx, seed: Tensor) -> Pack:
    """The typed one-hot seed over the context of a graph."""
    return graph.tensors.single(graph.shapes, output.position, seed)
