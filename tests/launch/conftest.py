import pytest

from tests.launch import programs


@pytest.fixture(autouse=True)
def no_process_is_left():
    yield
    programs.kill_all()


@pytest.fixture(scope="session")
def trained(tmp_path_factory):
    """A folder with the run `whole`: two processes of two devices each, uninterrupted."""
    folder = tmp_path_factory.mktemp("launch")
    # A proxy that never answers: without our settings JAX would wait for it forever.
    process = programs.local(folder, "whole", "--processes", "2", "--devices", "2", http_proxy="http://127.0.0.1:9")
    code, output, _ = programs.finish(process)
    assert code == 0, output
    assert "process 1 of 2 (as set, coordinator 127.0.0.1:" in output
    assert "2 of 4 devices" in output
    return folder
