import pytest

from tests.launch import programs


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with `whole`, an uninterrupted run of two processes with two devices each."""
    folder = tmp_path_factory.mktemp("launch")
    # A proxy that answers nothing: JAX alone would wait for it for ever.
    process = programs.local(folder, "whole", "--processes", "2", "--devices", "2", http_proxy="http://127.0.0.1:9")
    code, said, _ = programs.finish(process)
    assert code == 0, said
    assert "process 1 of 2 (as set, coordinator 127.0.0.1:" in said
    assert "2 of 4 devices" in said
    return folder
