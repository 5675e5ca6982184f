"""Add clipping, noise, masks and a privacy ledger to the train function of a user's ClientApp."""

import json
from collections.abc import Collection, Mapping
from copy import copy
from dataclasses import dataclass
from pathlib import Path
from traceback import extract_tb
from typing import TYPE_CHECKING, Any

import numpy as np
from flwr.app import Array, ArrayRecord, ConfigRecord, Context, Message, RecordDict
from flwr.clientapp import ClientApp

from client_app.relay import GUARD_KEY
from gdpfed.clients.messages import ASK, BEGIN, CARRY, END, JOIN, OFFER, STAGES, one_line
from gdpfed.errors import LearningError, not_known
from gdpfed.federation.node.stand_ins import StandInError, Vector, all_settings
from gdpfed.flower.client_fn import asked_to_fit, fitted_arrays, is_of_client_fn

if TYPE_CHECKING:
    from gdpfed.clients.order import TrainingOrder
    from gdpfed.flower.arrays import Layout

ARRAYS, CONFIG = "arrays", "config"
"""The records of a message to an app's train function, by the names that Flower's strategies use."""
SERVER_ROUND = "server-round"
WHOLE_UPDATE = "train.default"
"""Under which Flower keeps the function of ``@app.train()``."""
FLOWERS = ("train", "evaluate", "query")
"""Flower's types of messages; an app may have functions for more, as in ``query.status``."""
OUR_FOLDER = str(Path(__file__).parents[1])
OURS = frozenset({f"query.{name}" for name in (JOIN, ASK, CARRY, OFFER, BEGIN, END)})
OURS |= {f"train.{stage}" for stage in STAGES}


def private_client(
    app: ClientApp, *, public: Collection[str] = (), own_settings: Collection[str] = ()
) -> ClientApp:
    """Wrap a user's ClientApp, so that its train function works in a run with a privacy plan.

    Its ``@app.train()`` is called as under Flower's FedAvg: the message has the records ``arrays`` and
    ``config``, and its answer has the trained arrays under the same names. Of an app that is made of a
    ``client_fn`` the client's ``fit`` is called, with the arrays in their order. What leaves is their
    difference, weighed, clipped, noised and masked, and nothing else: metrics in the answer are dropped, and
    where the function fails, the client's contribution is zero and its noise is that of any other, so that a
    failure tells the server nothing. Who the client is, what it may spend and where its ledger lies, its node
    says (``partition-id``, ``epsilon``, ``ledger``), as any node of a run does.

    Args:
        app: with a function for ``train``, or a ``client_fn``; its mods stay around it.
        public: message types, such as ``evaluate``, whose answers leave as the app gives them, outside of any
            charge. All others are refused.
        own_settings: of the node's ``--node-config``, which the app reads and a node of a run does not know.

    Raises LearningError: something is said to be public that the plan answers for, or that Flower does not
    have; own settings that a node knows, which would be kept from it; or `app` is not a ClientApp, is wrapped
    already or has no train function.
    """
    if not isinstance(app, ClientApp):
        raise LearningError(f"app is a {type(app).__name__}: give the ClientApp that has your train function")
    if isinstance(app, PrivateClientApp):
        raise LearningError("app is what private_client has returned: wrap your ClientApp once")
    _refuse_without_train(app)
    if isinstance(public, str):
        raise LearningError(f"public={public!r} is a text: give a list, as in public=['evaluate']")
    for kind in public:
        if kind.partition(".")[0] not in FLOWERS:
            raise LearningError(not_known(f"public={kind}", FLOWERS[1:]))
    if bad := sorted((OURS | {"train", WHOLE_UPDATE}).intersection(public)):
        raise LearningError(
            f"public={bad[0]}: this answer is charged to budgets, so it is not public: leave it out"
        )
    if isinstance(own_settings, str):
        raise LearningError(
            f"own_settings={own_settings!r} is a text: give a list, as in own_settings=['dataset-path']"
        )
    if bad := sorted(all_settings().keys() & set(own_settings)):
        raise LearningError(
            f"own_settings={bad[0]} is a setting of the node itself, which would then ignore it: leave it "
            "out; the app can read it anyway"
        )
    return PrivateClientApp(app, frozenset(public), frozenset(own_settings))


def _refuse_without_train(app: ClientApp) -> None:
    """Raise LearningError for an app with neither a train function nor a ``client_fn``."""
    # An app whose own code selects its functions is taken to have one for train.
    functions = getattr(app, "_registered_funcs", None)
    plain = type(app).__call__ is ClientApp.__call__ and not is_of_client_fn(app)
    if plain and functions is not None and WHOLE_UPDATE not in functions:
        raise LearningError(
            "app has no train function: give it one by @app.train(), above the line with private_client(app)"
        )


class PrivateClientApp(ClientApp):
    """A node's ClientApp in a run with a privacy plan; it trains with the user's own function."""

    def __init__(self, app: ClientApp, public: frozenset[str], own_settings: frozenset[str]) -> None:
        super().__init__()
        self._app, self._public, self._own_settings = app, public, own_settings

    def __call__(self, message: Message, context: Context) -> Message:
        """Answer a message from the server on behalf of this node.

        Raises StandInError: one that no run under a plan sends, or a node with a guard.
        """
        kind = message.metadata.message_type
        if kind in self._public:
            return self._app(message, context)
        if kind not in OURS:
            public = "" if kind == "train" else ", or name it in public= if all that it tells is public"
            raise StandInError(
                f"{one_line(kind)} is asked of a private client, and the answer would be charged to no "
                f"budget: use the strategy gdpfed.flower.GDPFed{public}"
            )
        if GUARD_KEY in context.node_config:
            raise StandInError(
                f"{GUARD_KEY} keeps a node's data from the code that a run sends, and this app's train "
                "function is such code: start the node without it, or train a model of gdpfed's own"
            )
        from client_app.carried import training_by
        from client_app.node_app import app as node_app

        settings = {key: value for key, value in context.node_config.items() if key not in self._own_settings}
        node = copy(context)
        node.node_config = settings
        with training_by(OwnFunction(self._app, message, copy(context))):
            return node_app(message, node)


@dataclass(frozen=True)
class OwnFunction:
    """The train function of a user's app, which computes updates in place of the node's own training.

    `app`: has the function. `message`: of the stage that asks, whose sender it is shown. `context`: the
    node's, as the app knows it.
    """

    app: ClientApp
    message: Message
    context: Context

    def check(self, order: "TrainingOrder") -> None:
        """Raise StandInError unless the server asks to train the app's own model and describes its arrays."""
        _asked_of(order)

    def change(self, run: str, order: "TrainingOrder", theta: Vector) -> Vector:
        """Call the app's train function; return the model update, shape (d,).

        Raises LearningError: the function fails, for which zeros are sent under the noise of any other.
        """
        import torch

        layout, told = _asked_of(order)
        device = torch.get_default_device()
        try:
            arrays = self._trained(layout, theta, {**told, SERVER_ROUND: order.round_index + 1})
            return (layout.vector(arrays) - theta).astype(np.float32)
        except (Exception, SystemExit) as error:
            # In which line the user's code failed, if it was not other code.
            frames = [
                each for each in extract_tb(error.__traceback__) if not each.filename.startswith(OUR_FOLDER)
            ]
            own = [each for each in frames if "site-packages" not in each.filename] or frames
            place = f" in {own[-1].filename}, line {own[-1].lineno}" if own else ""
            said = f"{place} ({type(error).__name__}: {one_line(error)})"
            raise LearningError(f"the app's train function failed{said}: correct it") from error
        finally:
            # What comes after, such as the noise, is computed where it would be without the app.
            torch.set_default_device(None if device.type == "cpu" else device)

    def end(self, run: str) -> None:
        """Do nothing when a run ends, since the app's function keeps nothing open."""

    def _trained(self, layout: "Layout", theta: Vector, told: Mapping[str, Any]) -> dict[str, Any]:
        arrays, by_client_fn = layout.arrays_of(theta), is_of_client_fn(self.app)
        asked = copy(self.message)
        asked.__dict__["_metadata"] = copy(self.message.metadata)
        asked.metadata.message_type = "train"
        if by_client_fn:
            asked.content = asked_to_fit(arrays, told)
        else:
            record = ArrayRecord({name: Array(each) for name, each in arrays.items()})
            asked.content = RecordDict({ARRAYS: record, CONFIG: ConfigRecord(dict(told))})
        answer: object = self.app(asked, self.context)
        if not isinstance(answer, Message):
            raise LearningError(f"it returned {answer!r:.60}: return a Message")
        if answer.has_error():
            raise LearningError(answer.error.reason)
        if by_client_fn:
            return fitted_arrays(answer.content, [*arrays])
        records = list(answer.content.array_records.values())
        if len(records) != 1:
            raise LearningError(f"its answer has {len(records)} records of arrays: give one")
        return {name: each.numpy() for name, each in records[0].items()}


def _asked_of(order: "TrainingOrder") -> "tuple[Layout, dict[str, Any]]":
    """Return the names, types and shapes of the arrays to train, and the settings for the app's function."""
    from gdpfed.flower.arrays import MODEL, Layout

    if order.task.model != MODEL:
        raise StandInError(
            f"the server's model is {one_line(order.task.model)}, and this client trains its app's own: use "
            "the strategy gdpfed.flower.GDPFed"
        )
    options = dict(order.task.model_options)
    try:
        told = json.loads(str(options.get("told")))
        ConfigRecord(told)
        return Layout.from_json(str(options.get("layout"))), told
    except (ValueError, TypeError, LearningError) as error:
        raise StandInError(f"the server does not say what is trained: {one_line(error)}") from None
