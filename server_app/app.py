"""ServerApp: configuration -> plan -> method -> rounds."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from conf.load import split
from gdpfed.child_process import begin_process
from gdpfed.errors import ConfigError, LearningError, PrivacyError, RunError
from gdpfed.runs.paths import check_paths
from gdpfed.runs.resume import load_run
from server_app.train import train

begin_process("flwr-serverapp")
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train as the override string of the run configuration says."""
    try:
        overrides = split(str(context.run_config["overrides"]))
        check_paths(overrides)
        train(grid, load_run(overrides), str(context.run_id))
    except (ConfigError, PrivacyError, LearningError, RunError) as error:
        # Flower's simulation prints what leaves here with its traceback, which is noise to the user.
        raise type(error)(str(error)).with_traceback(None) from None
