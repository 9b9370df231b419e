"""`encore browse`: show a study's pairs, replies and ratings in a browser."""

from __future__ import annotations

import sys

from encore.core.command_parser import JsonOption, command
from encore.core.config import option
from encore.core.number_text import counted
from encore.core.terminal import console, print_json, say, say_next
from encore.data.study_options import RunFilter, StudyConfig
from encore.serving.serve_options import allow_host_option


class BrowseConfig(RunFilter, StudyConfig):
    """Options of `encore browse`."""

    host: str = option("127.0.0.1")
    """Address to listen on; the default is this machine alone."""
    port: int = option(0, ge=0, le=65_535)
    """Port to listen on; 0: any free one."""
    allowed_hosts: tuple[str, ...] = allow_host_option()


@command
def browse(config: BrowseConfig, *, json: JsonOption = False) -> None:
    """Show a study's pairs, replies and ratings on a page of this machine.

    The page filters pairs by rule, rating, null, text, and by disagreement between the responses of
    a pair, between judges, or with people's labels. It sorts by every column, saves the list as
    CSV, and opens one pair with all its prompts and replies. Keys: j and k move, Enter opens, Esc
    goes back, e writes a note, / filters, ? lists all keys.

    The command changes nothing but STUDY/notes.json, and no request leaves the machine. The page
    shows the shards that were done when the command was started. Ctrl-C or SIGTERM stops it.

    Example: encore browse demo-study, then open the printed address
    """
    from encore.core.listening import listen, make_server, url_of
    from encore.data.study import open_study
    from encore.serving.host_guard import host_names
    from encore.tables.browse_app import browse_app
    from encore.tables.pair_index import open_pair_index

    study = open_study(config.study)
    with listen(config.host, config.port) as listener:
        url = url_of(listener)
        with (
            console.status("reading pairs and ratings") as reading,
            open_pair_index(study, run=config.run, judge=config.judge) as index,
        ):
            reading.stop()
            if json:
                print_json({"url": url, **index.summary})
                sys.stdout.flush()
            runs = counted(len(index.summary["runs"]), "run")
            pairs = counted(index.summary["num_pairs"], "pair")
            say(f"browse {pairs}, {runs}, on {url}; stop with Ctrl-C")
            if not index.summary["runs"]:
                say_next("rate", config.study, "--judge", "JUDGE")
            hosts = host_names(config.host, further=config.allowed_hosts)
            app = browse_app(index, hosts=hosts)
            make_server(app, stop_seconds=2).run(sockets=[listener])
