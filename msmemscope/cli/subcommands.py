"""Which first words of a command line mean a command of ours, and where that is."""

from __future__ import annotations

# Subcommand → module with its `command`. The first sentence of the command's help is shown in the overview.
SUBCOMMANDS = {
    "analyze": "msmemscope.cli.analyze",
    "summary": "msmemscope.cli.summary",
    "owner": "msmemscope.cli.owner",
    "export": "msmemscope.cli.export",
    "import": "msmemscope.cli.import_",
    "compare": "msmemscope.cli.compare",
    "doctor": "msmemscope.cli.doctor",
    "selftest": "msmemscope.cli.selftest",
    "build-torch-ext": "msmemscope.cli.build_torch_ext",
    "simulate-npu": "msmemscope.cli.simulate_npu",
}
