"""Permissions that also apply to root, so that tests of read-only places mean the same for every user."""

import contextlib
import ctypes
import os
import sys

import pytest

VERSION = 0x20080522  # of the structures of capget and capset
DAC_OVERRIDE, DAC_READ_SEARCH = 1 << 1, 1 << 2


@contextlib.contextmanager
def binding():
    """Inside, this thread obeys the permissions of files, even if it is root."""
    if os.geteuid():
        yield
        return
    if sys.platform != "linux":
        pytest.skip("the privileges of root are dropped on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    header, data = (ctypes.c_uint32 * 2)(VERSION, 0), (ctypes.c_uint32 * 6)()
    assert libc.capget(header, data) == 0
    effective = data[0]
    data[0] = effective & ~(DAC_OVERRIDE | DAC_READ_SEARCH)
    assert libc.capset(header, data) == 0
    try:
        yield
    finally:
        data[0] = effective
        assert libc.capset(header, data) == 0


@contextlib.contextmanager
def read_only(*folders):
    """Inside, these folders may only be read."""
    modes = {folder: folder.stat().st_mode for folder in folders}
    try:
        for folder in folders:
            folder.chmod(0o555)
        with binding():
            yield
    finally:
        for folder, mode in modes.items():
            folder.chmod(mode)
