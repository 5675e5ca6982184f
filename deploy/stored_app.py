"""Build and sign the Flower app of this source tree, and store a signed app in a SuperLink's database.

A bundle that ``flwr run`` submits comes to nodes without signatures: a SuperLink keeps those of apps alone
that it fetches from Flower's hub. A run of an app that it has stored, named by the bundle's hash, brings the
signatures that are stored with it. So `store_app` writes the app into the SuperLink's database, by the tables
as Flower itself describes them, and `SuperLinkClient.start_stored` names it. Whoever submits the same bundle
by ``flwr run`` would have its signatures written over by none: a trigger in the database keeps them.
"""

import json
import time
from contextlib import suppress
from hashlib import sha256
from pathlib import Path
from tempfile import TemporaryDirectory

from flwr.cli.build import build_fab_from_disk
from flwr.common.constant import NOOP_FLWR_AID
from flwr.supercore.constant import NOOP_FEDERATION_ID, TaskType
from flwr.supercore.date import now
from flwr.supercore.state.schema.corestate_models import Fab, FederationApp
from flwr.supercore.version import package_version
from sqlalchemy import create_engine, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from deploy.credentials import CONSORTIUM, CONSORTIUM_KEY, Store
from deploy.superlink_client import SuperLinkError
from deploy.topology import APP_SIGNATURE, PUBLIC, ROSTER_FILE
from gdpfed.errors import InputError
from gdpfed.identities import read_identity, read_roster
from gdpfed.installed import SOURCES
from gdpfed.launch.flower_run import copy_app
from gdpfed.signed_apps import DAY_SECONDS, DEFAULT_DAYS, SignedApp, read_file, sign_app

# Flower writes a bundle anew whenever it is submitted, and without signatures as an empty object.
_KEEP_SIGNATURES = """
CREATE TRIGGER IF NOT EXISTS gdpfed_keep_signatures BEFORE UPDATE OF verifications ON fab
WHEN NEW.verifications = '{}' BEGIN SELECT RAISE(IGNORE); END
"""


def store_app(database: Path, bundle: bytes, signed: SignedApp, consortium_key: bytes) -> None:
    """Write an app and its signatures into the database of a SuperLink, which may be running.

    Nodes check whether they fit each other. Raises SuperLinkError: there is no such database, or Flower has
    other tables in it.
    """
    if not database.is_file():
        raise SuperLinkError(f"--database {database} is not a file: name the database of the SuperLink")
    digest, engine = sha256(bundle).hexdigest(), create_engine(f"sqlite:///{database}")
    try:
        with Session(engine) as session, session.begin():
            verifications = json.dumps(signed.verifications(consortium_key))
            session.execute(text(_KEEP_SIGNATURES))
            session.merge(Fab(fab_hash=digest, content=bundle, verifications=verifications))
            named = {"federation_id": NOOP_FEDERATION_ID, "app_id": signed.statement.app}
            app = session.get(FederationApp, named) or FederationApp(**named, added_at=now())
            app.fab_hash, app.app_type, app.is_hub_app = digest, TaskType.SERVER_APP, False
            app.added_by, app.updated_at = NOOP_FLWR_AID, now()
            session.add(app)
    except (SQLAlchemyError, TypeError) as error:
        reason = str(error).partition("\n")[0]
        raise SuperLinkError(
            f"--database {database} cannot store an app of Flower {package_version} ({reason}): run the "
            "SuperLink and this command with the Flower version of uv.lock"
        ) from None
    finally:
        engine.dispose()


def build_bundle() -> bytes:
    """Build this source tree's Flower app as a bundle, like ``flwr build``; equal files give equal bytes."""
    with TemporaryDirectory() as folder:
        return build_fab_from_disk(copy_app(SOURCES, Path(folder) / "app"))


def provide_signature(store: Store) -> None:
    """Publish a new signature of this Flower app for the newest member list, unless a valid one exists.

    This is for who operates all parties: the consortium's key is here. Raises InputError: it cannot be read.
    """
    public = store.root / PUBLIC
    consortium = read_identity(store.root / CONSORTIUM / CONSORTIUM_KEY, store.owner)
    key, bundle = consortium.public_bytes(), build_bundle()
    number = read_roster(public / ROSTER_FILE, key).number
    # One of another app or roster, that is damaged or past half of its time is made anew.
    with suppress(InputError):
        signed = SignedApp.read(read_file(public / APP_SIGNATURE), key).statement
        signed.check(bundle, now=time.time() + DEFAULT_DAYS * DAY_SECONDS / 2)
        if signed.roster_number == number:
            return
    store.publish(APP_SIGNATURE, sign_app(bundle, consortium, number).to_json())
