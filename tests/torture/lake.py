"""The destination's folder, and what a disk can do to it. It is a file system of
its own where it can be mounted, so that it can be full."""

import os
import shutil
import subprocess

from harness.cluster import server_user
from harness.waiting import wait_for

SIZE = "6g"
MODE = 0o755


class Lake:
    def __init__(self, folder):
        self.folder = folder
        # Why it cannot be full; None if it can.
        self.unmountable = self._mount()

    def _mount(self):
        user = server_user()
        if user is None:
            return "only root can mount it"
        owner = f"mode={MODE:o},uid={user.pw_uid},gid={user.pw_gid}"
        what = ["mount", "-t", "tmpfs", "-o", f"size={SIZE},{owner}", "wal2delta-torture", self.folder]
        done = subprocess.run(what, capture_output=True, text=True)
        return done.stderr.strip() if done.returncode else None

    def unmount(self, keep_as=None):
        """`keep_as`: a folder to which the content goes first."""
        if self.unmountable is None:
            if keep_as is not None:
                shutil.copytree(self.folder, keep_as)
            subprocess.run(["umount", self.folder], check=True)

    # --- no room

    def fill(self, room):
        """Leaves `room` bytes: the file system shrinks to what it holds, which
        is as full as one with a ballast and costs no memory."""
        wait_for(lambda: self._shrink(room), 10, "the lake to be full")

    def _shrink(self, room):
        used = os.statvfs(self.folder)
        # Refused if more was written since the look.
        return self._resize((used.f_blocks - used.f_bfree) * used.f_frsize + room)

    def make_room(self):
        assert self._resize(SIZE), "the lake cannot grow again"

    def _resize(self, size):
        what = ["mount", "-o", f"remount,size={size}", self.folder]
        return subprocess.run(what, stderr=subprocess.DEVNULL).returncode == 0

    # --- no permission

    def forbid(self, mode, dice):
        """Gives some of the histories' folders, and at times the destination's
        own, another mode."""
        histories = [folder for folder in self._folders() if dice.random() < 0.7]
        if dice.random() < 0.3:
            histories.append(self.folder)
        # From below, while the folders above can be entered.
        for folder in sorted(histories, reverse=True):
            folder.chmod(mode)

    def allow(self):
        self.folder.chmod(MODE)
        for folder in self._folders():
            folder.chmod(MODE)

    def _folders(self):
        for history in sorted(self.folder.iterdir()):
            yield history
            if (log := history / "_delta_log").is_dir():
                yield log
