"""`idiolect run`."""

import idiolect
from idiolect.cli.console import ProgressBar
from idiolect.cli.options import (
    ClientsOption,
    DataDirOption,
    JsonOption,
    SettingsArgument,
    data_dir_setting,
)


def run(
    settings: SettingsArgument,
    clients: ClientsOption = False,
    json: JsonOption = False,
    data_dir: DataDirOption = None,
) -> None:
    """Train one method and keep the run in a folder.

    Example: idiolect run method=apfl data=vowels rounds=50 method.mixing=adaptive

    Your own table: idiolect run data=patients.csv data.client=hospital data.target=outcome method=apfl
    """
    from idiolect.cli.results import print_run

    with ProgressBar() as bar:
        finished = idiolect.run(*settings, *data_dir_setting(data_dir), watch=bar.watch)
    print_run(finished, clients=clients, json=json)
