"""The command that counts what a net costs."""

from collections.abc import Callable
from typing import Any, TypeVar

from splitmix.cli.options import Json, Words, parse_size, say, show_json, show_table
from splitmix.compare.costs import account_for, budgets_for, client_table, mix_table, serving_table
from splitmix.core.errors import UserError
from splitmix.core.width import Width, check_multiple, parse_width
from splitmix.nets import find_net
from splitmix.report.tables import Table

Counted = TypeVar("Counted")


def cost(
    net: str,
    /,
    *,
    width: Words = None,
    atom: str = "1/8",
    image: str | None = None,
    method: str | None = None,
    budgets: Words = None,
    batch: int = 32,
    as_json: Json = False,
) -> None:
    """Count what a net costs: to serve each width, and to a client of each budget in one round.

    Examples:

      splitmix cost digit

      splitmix cost preresnet18 --width 1/4 1 --json

      splitmix cost preresnet18 --method sheterofl --budgets 1/8 1/4 1/2 1 --batch 128

    Parameters
    ----------
    net
        A net (see `splitmix nets`), or your own as module:function.
    width
        Words to count; default: 1/8, 1/4, 1/2 and 1, or all that the method serves.
    atom
        Width of one base.
    image
        Size of an image as HEIGHTxWIDTHxCHANNELS; default: the net's own.
    method
        A method (see `splitmix methods`), or its settings as {name="fedavg", width="1/4"}; default: splitmix.
    budgets
        Budgets of the clients: widths, or a name (see `splitmix budgets`); default: 1/8, 1/4, 1/2 and 1.
    batch
        Images in a training batch.
    as_json
        Print JSON: a list of widths, or with --method an object.
    """
    build, base = find_net(net), parse_width(atom)
    widths = [parse_width(text) for text in width or (("1/8", "1/4", "1/2", "1") if method is None else ())]
    for wanted in widths if method is None else ():
        check_multiple(wanted, base)
    clients = budgets_for(" ".join(budgets or ()), base)

    def count(size: tuple[int, ...]) -> tuple[Table, Table]:
        account = account_for(method or "splitmix", build, size, atom=base, budgets=clients, batch=batch)
        served = mix_table(net, build, size, base, widths) if method is None else serving_table(net, account, widths)
        return served, client_table(account, clients)

    served, asked = cost_of(net, build, image, count)
    if as_json:
        rows, about = served.records(), {"net": net, "method": method, "atom": str(base), "batch": batch}
        show_json(rows if method is None else {**about, "widths": rows, "clients": asked.records()})
    else:
        show_table(served)
        say("")
        show_table(asked)


def cost_of(net: str, build: Any, image: str | None, count: Callable[[tuple[int, ...]], Counted]) -> Counted:
    """What is counted on images of a size; what the net itself cannot do is one sentence."""
    try:
        return count(image_size(net, build, image))
    except UserError:
        raise
    except (RuntimeError, ValueError, TypeError, ArithmeticError, IndexError) as error:
        size = f" on images of {image}" if image else ""
        reason = (str(error) or type(error).__name__).splitlines()[0]
        raise UserError(f"the net '{net}' cannot be run{size}: {reason}") from None


def image_size(net: str, build: Any, given: str | None) -> tuple[int, ...]:
    """The size of an image, given or the net's own."""
    if given is not None:
        return parse_size(given)
    own = getattr(build, "image", None) or getattr(build(Width(1)), "image", None)
    if own is None:
        raise UserError(f"the net '{net}' does not say which images it takes; give --image, such as 32x32x3")
    return tuple(own)
