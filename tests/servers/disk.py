"""A small disk: a tmpfs over a folder, which only this thread and what it starts can see, and which ends with them."""
import contextlib
import os
import subprocess

import pytest
from wire import call, libc

CLONE_NEWNS = 0x00020000


@contextlib.contextmanager
def small_disk(folder, megabytes):
    """Within this, the folder is a disk of that size, with the folder's owner and mode. Servers that work there are to
    end before it does."""
    if os.geteuid() != 0:
        pytest.skip("only root can mount a disk")
    place, here, like = os.open("/proc/thread-self/ns/mnt", os.O_RDONLY | os.O_CLOEXEC), os.getcwd(), os.stat(folder)
    call(libc.unshare(CLONE_NEWNS))
    try:
        subprocess.run(["mount", "--make-rprivate", "/"], check=True)
        options = f"size={megabytes}m,mode={like.st_mode & 0o777:o},uid={like.st_uid},gid={like.st_gid}"
        done = subprocess.run(["mount", "-t", "tmpfs", "-o", options, "none", folder], check=False)
        if done.returncode != 0:
            pytest.skip("this machine lets nobody mount a disk")
        yield Disk(folder)
    finally:
        call(libc.setns(place, CLONE_NEWNS))
        os.close(place)
        os.chdir(here)


class Disk:
    """What a test does to it."""

    def __init__(self, folder):
        self.filler = folder / "filler"

    def fill(self):
        """Takes what is free, to the last page."""
        with open(self.filler, "ab", buffering=0) as file, contextlib.suppress(OSError):
            for size in (1 << 20, 4096):
                with contextlib.suppress(OSError):
                    while file.write(bytes(size)) == size:
                        pass

    def empty(self):
        self.filler.unlink(missing_ok=True)
