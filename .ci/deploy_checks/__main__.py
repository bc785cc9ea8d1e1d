"""Checks of systemd/, helm/ and deploy/. usage: python .ci/deploy_checks [FOLDER_OF_THE_THREE_PROGRAMS]; with
--write it writes the tables of docs/ and the chart anew

Needs on the PATH: systemd-analyze, helm, promtool, hadolint, docker-compose or docker with compose; in this Python:
kubernetes-validate. With the programs' folder it also starts them the way the units, the chart and the image do, and gives
them the commands and references of README, docs/, chart and compose files to read."""
import pathlib
import sys

import harness
import units, chart, monitoring, container, documents, packages, sizes  # noqa: E401,F401  (each registers its checks)

if sys.argv[1:] == ["--write"]:
    documents.write()
    sys.exit(0)
if len(sys.argv) > 1:
    import programs, commands, reference

    programs.FOLDER = commands.FOLDER = pathlib.Path(sys.argv[1]).resolve()
else:
    for what in ("the programs as the units, the chart and the image start them", "the commands and references of documents"):
        harness.not_run(what, "no folder of programs was given")

sys.exit(0 if harness.run_all() else 1)
