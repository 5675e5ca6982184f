"""Flower's ServerApp: makes a plan and a method from a configuration, and runs the training's rounds."""

from flwr.app import Context
from flwr.serverapp import Grid, ServerApp

from conf.load import split
from gdpfed.child_process import SIMULATION, begin_process, is_program
from gdpfed.errors import ConfigError, LearningError, PrivacyError, RunError
from gdpfed.installed import checkout
from gdpfed.runs.paths import below, check_paths, reserved, run_path
from gdpfed.runs.resume import load_run
from server_app.train import train

begin_process("flwr-serverapp")
begin_process(SIMULATION, ends_with_parent=True)
app = ServerApp()


@app.main()
def main(grid: Grid, context: Context) -> None:
    """Train with the settings (key=value) in Flower's run configuration."""
    try:
        overrides = split(str(context.run_config["overrides"]))
        check_paths(overrides)
        # A simulation's process works where somebody once started the SuperLink, in the folder of another
        # project, say: there, paths are relative to the source tree.
        folder = checkout() if is_program(SIMULATION) else None
        config = load_run(overrides if folder is None else below(folder, overrides))
        if folder is not None and config.run.directory is None and config.run.resume is None:
            new = run_path(None, config.dataset.name, config.method.name, folder)
            config.run.directory = str(reserved(new))
        train(grid, config, str(context.run_id))
    except (ConfigError, PrivacyError, LearningError, RunError) as error:
        # Flower's simulation prints what leaves here with its traceback, which is noise to the user.
        raise type(error)(str(error)).with_traceback(None) from None
