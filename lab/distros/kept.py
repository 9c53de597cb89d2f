"""What a node was told to be, written down beside it, so that a kept node is used again as that cell alone.

Its version can be asked of what runs there, the gates that it was told cannot: metrics list defaults beside them.
"""

from __future__ import annotations

import json

from lab.atomic import replace_whole
from lab.distros.gates import with_dependents
from lab.model import GATED, Cell, UsageError
from lab.providers.contract import Node

RECORD = "cell.json"
"""In the node's folder on the controller."""


def remember(node: Node, cell: Cell) -> None:
    """Write down the cell that is installed on a node now, before anything of it starts."""
    node.folder.mkdir(parents=True, exist_ok=True)
    replace_whole(node.folder / RECORD, (json.dumps(cell.as_json(), sort_keys=True) + "\n").encode())


def require_same(node: Node, cell: Cell) -> None:
    """UsageError when a node was told other gates than this cell's, is of another distribution, or has no record.

    Its version is not looked at: what runs there says that.
    """
    try:
        was = Cell.from_json(json.loads((node.folder / RECORD).read_text()))
    except (OSError, ValueError, LookupError, TypeError, UsageError) as error:
        raise UsageError(
            f"node {node.id} cannot be used again: which gates it was told is not written down beside it, as labs "
            f"before this one did not; `lab down {node.id}` removes it, and without --node the run makes a new one"
        ) from error
    if was.distro != cell.distro:
        raise UsageError(f"node {node.id} runs {was.name}: use it with --distro {was.distro}")
    if _told(was) != _told(cell):
        words = " ".join(f"--gate {gate}" for gate in sorted(was.gates, key=str))
        raise UsageError(
            f"node {node.id} runs {was.version} with {_listed(was)}; asked for was {cell.version} with "
            f"{_listed(cell)}: {f'give {words}' if words else 'leave out --gate'}, or leave out --node for a new one"
        )


def _told(cell: Cell) -> dict[str, dict[str, bool]]:
    """What each component is told, whatever words it took."""
    gates = with_dependents(cell).gates
    return {
        component: {gate.name: gate.enabled for gate in gates if gate.component in (None, component)}
        for component in GATED
    }


def _listed(cell: Cell) -> str:
    named = sorted(str(gate) for gate in cell.gates)
    return f"the gates {', '.join(named)}" if len(named) > 1 else f"the gate {named[0]}" if named else "no gate set"
