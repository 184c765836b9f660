"""What the options ask of the analyses, settled before anything is recorded.

In: a Config. Out: the same, with the events that named analyses of other packages need; a UsageError for an unknown
analysis and for an option that is none. As a program (`isolated.py msmemscope.analysis.asked CONFIG`) for ranks, which
import no analysis: the answer is one JSON text on stdout.
"""

from __future__ import annotations

import json
import sys

from msmemscope.analysis import registry
from msmemscope.analysis.options import by_analysis
from msmemscope.errors import UsageError
from msmemscope.options.settings import ANALYSES, Config


def settle(config: Config) -> Config:
    """Checks, and completes what must be recorded."""
    others = tuple(name for name in config.analysis if name not in ANALYSES)
    registry.check(registry.Wanted(config.active_analysis, others, by_analysis(config.analysis_options)))
    return config.replaced(needed_events=registry.events_needed(others))


def main(arguments: list[str]) -> int:
    try:
        settled = settle(Config.from_dict(json.loads(arguments[0])))
    except UsageError as error:
        print(json.dumps({"error": str(error)}))
        return error.exit_status
    print(json.dumps({"config": settled.as_dict()}))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
