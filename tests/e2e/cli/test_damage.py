"""A damaged block of the embedded store, as an operator meets it."""
# promise 12: what is damaged is an error, and never taken for absent.
import os
import re

import pytest
from conftest import HAPAX, end, wait_until


def test_a_damaged_block_is_told_by_every_command(hapax):
    """A byte of the largest file is flipped under a store that a keeper then has open: check calls it a danger once it
    was met; list and purge name the place and go on."""
    store = "rocksdb:s"
    assert hapax("bench", "--store", store, "--seconds", "1").code == 0
    hapax.completed(store, "last")
    all_of_them = len(hapax("list", "--json", "--limit", "1000000", "--store", store).out.splitlines())
    largest = max((hapax.folder / "s/db").glob("*.sst"), key=lambda path: path.stat().st_size)
    with open(largest, "r+b") as file:
        file.seek(largest.stat().st_size // 2)
        byte = file.read(1)[0]
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 0x40]))
    keeper = hapax.keep(store)
    assert "its files are damaged" not in hapax("check", "--store", store).out
    listed = hapax("list", "--json", "--limit", "1000000", "--store", store)
    place = re.search(r"passed over all records behind ([0-9a-f]{64}) up to ([0-9a-f]{64})", listed.err)
    assert listed.code == 3 and place and "1 damaged places were passed over" in listed.out + listed.err
    assert all_of_them - 40 < len([line for line in listed.out.splitlines() if '"state"' in line]) < all_of_them
    after, code = "start", 0
    while after and code == 0:  # a page ends after a second, maybe before that place
        paged = hapax("list", "--json", "--after", after, "--limit", "1000000", "--store", store)
        end_of = next(line for line in paged.lines if "after" in line)
        code, after = paged.code, end_of["more"] and end_of["after"]
    assert code == 3, paged.out[-500:]
    purged = hapax("purge", "--store", store)
    assert purged.code == 3 and "removed 0 expired" in purged.out and "passed over all records" in purged.err
    check = hapax("check", "--store", store)
    assert check.code == 1 and "danger  its files are damaged (restore a backup): " in check.out
    end(keeper)


def test_keep_logs_a_danger(hapax):
    with open(hapax.folder / "log", "w") as log:
        keeper = hapax.start("keep", "--store", "rocksdb:s?sync=off", stderr=log)
    wait_until(lambda: "hapax keep: danger: sync is off" in (hapax.folder / "log").read_text(),
               "the danger")
    end(keeper)


# A disk of 64 MiB, mounted where no other process sees it. Nearly empty it is fine, however small it is.
def test_a_disk_that_is_nearly_full_is_a_danger(hapax, folder):
    def alone(script):
        return hapax.run("unshare", "-rm", "sh", "-c", f"mount -t tmpfs -o size=64m none s && {script}", HAPAX)

    (folder / "s").mkdir()
    if alone("true").code != 0:
        pytest.skip("this machine lets nobody mount a disk of his own")
    made = '"$0" init --store rocksdb:s/x > s/log'
    roomy = alone(f'{made} && "$0" check --store rocksdb:s/x')
    assert roomy.code == 0 and re.search(r"^ok  +\d\d MiB of 64 MiB are free on its disk$", roomy.out, re.M), roomy.out
    full = alone(f'{made} && head -c 58m /dev/zero > s/filler && "$0" check --store rocksdb:s/x')
    assert re.search(r"^danger  \d MiB of 64 MiB are free on its disk: soon nothing more", full.out, re.M), full.out
    assert full.code == 1
