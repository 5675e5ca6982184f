"""Build and sign the app of this checkout, and give a SuperLink an app together with its signatures.

A bundle that ``flwr run`` submits comes to nodes without signatures: a SuperLink keeps those of apps alone
that it fetches from Flower's hub. A run of an app that it has stored, named by the bundle's hash, brings the
signatures that are stored with it. So `store_app` writes the app into the SuperLink's database, by the tables
as Flower itself describes them, and `SuperLinkClient.start_stored` names it.
"""

import json
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
from sqlalchemy import create_engine
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from deploy.credentials import CONSORTIUM, CONSORTIUM_KEY, PUBLIC, Store
from deploy.superlink_client import SuperLinkError
from deploy.topology import APP_BUNDLE, ROSTER_FILE
from gdpfed.errors import InputError
from gdpfed.identities import read_identity, read_roster
from gdpfed.launch.flower_run import copy_app
from gdpfed.launch.home import PROJECT
from gdpfed.signed_apps import SignedApp, read_signed_bundle, sign_app, signature_path


def store_app(database: Path, bundle: bytes, signed: SignedApp, consortium_key: bytes) -> None:
    """Write an app and its signatures into the database of a SuperLink, which may be running.

    Nodes check whether they fit each other. Raises SuperLinkError: there is no such database, or Flower has
    other tables in it.
    """
    if not database.is_file():
        raise SuperLinkError(f"--database {database} is no file: name the database of the SuperLink")
    digest, engine = sha256(bundle).hexdigest(), create_engine(f"sqlite:///{database}")
    try:
        with Session(engine) as session, session.begin():
            verifications = json.dumps(signed.verifications(consortium_key))
            session.merge(Fab(fab_hash=digest, content=bundle, verifications=verifications))
            named = {"federation_id": NOOP_FEDERATION_ID, "app_id": signed.statement.app}
            app = session.get(FederationApp, named) or FederationApp(**named, added_at=now())
            app.fab_hash, app.app_type, app.is_hub_app = digest, TaskType.SERVER_APP, False
            app.added_by, app.updated_at = NOOP_FLWR_AID, now()
            session.add(app)
    except (SQLAlchemyError, TypeError) as error:
        raise SuperLinkError(
            f"--database {database} takes no app from Flower {package_version} ({_first_line(error)}): run "
            "SuperLink and train with the Flower of uv.lock"
        ) from None
    finally:
        engine.dispose()


def build_bundle() -> bytes:
    """Build the bundle of this checkout, as ``flwr build`` does; the same files make the same bytes."""
    with TemporaryDirectory() as folder:
        return build_fab_from_disk(copy_app(PROJECT, Path(folder) / "app"))


def provide_signed_app(store: Store) -> None:
    """Sign the app of this checkout for the newest roster, unless that is done, and publish both files.

    This is for who operates all parties: the consortium's key is here. Raises InputError: it cannot be read.
    """
    public = store.root / PUBLIC
    consortium = read_identity(store.root / CONSORTIUM / CONSORTIUM_KEY, store.owner)
    key, bundle = consortium.public_bytes(), build_bundle()
    number, path = read_roster(public / ROSTER_FILE, key).number, public / APP_BUNDLE
    # One of another roster, that has expired or is damaged is signed anew.
    with suppress(InputError):
        before, signed = read_signed_bundle(path, key)
        if before == bundle and signed.statement.roster_number == number:
            return
    store.publish(APP_BUNDLE, bundle)
    store.publish(signature_path(path).name, sign_app(bundle, consortium, number).to_json())


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
