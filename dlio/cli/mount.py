"""The verb that shows a SquashFS data set as a folder: mount."""

from __future__ import annotations

import argparse

from dlio.cli.options import dataset_argument, local_path
from dlio.cli.output import print_report, say
from dlio.cli.parser import Verbs, add_verb
from dlio.errors import EXIT_DONE, UsageError
from dlio.io.sizes import counted
from dlio.look.mount import Mount
from dlio.look.mount import mount as mounted


def add_verbs(verbs: Verbs) -> None:
    """Adds this verb to the command line."""
    verb = add_verb(
        verbs, mount, "mount packed /tmp/photos -- python train.py /tmp/photos", "mount packed /data --print"
    )
    dataset_argument(verb)
    verb.add_argument("folder", metavar="DIR", type=local_path, help="the mount point: an empty or a new folder")
    verb.add_argument(
        "command", metavar="COMMAND", nargs="*", default=[], help="the program to run, after -- (default: your shell)"
    )
    verb.add_argument("--print", action="store_true", help="print the commands for Apptainer, enroot and CSCS instead")


def mount(args: argparse.Namespace) -> int:
    """Mounts all images of the SquashFS data set DATASET as one folder DIR, and runs COMMAND; needs no root.

    If a copy is staged on this node, that copy is mounted. Only COMMAND and its child processes see the folder. It is
    unmounted when COMMAND ends. The exit code is that of COMMAND.

    This needs squashfuse, /dev/fuse and user namespaces. Without namespaces, fusermount3 mounts the images, and
    fuse-overlayfs joins several; then other processes see the folder, too.
    """
    planned = Mount.of(args.dataset, args.folder)
    if args.print:
        if args.command:
            raise UsageError("--print mounts nothing: give no COMMAND with it")
        if args.json:
            return print_report(args, {"images": [str(path) for path in planned.images], "path": str(planned.folder)})
        for line in planned.lines():
            say(args, line)
        return EXIT_DONE
    if not args.command:
        images = counted(len(planned.images), "image")
        say(args, f"{images} can be read at {planned.folder} in this shell: exit unmounts them")
    return mounted(args.dataset, args.folder, args.command)
