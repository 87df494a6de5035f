"""Files that are not named are asked for by the setting that names them."""

import pytest

from jaxformer.errors import DataError
from jaxformer.tasks.translation import DataConfig
from jaxformer.tasks.translation.corpora import load_corpora


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": 0}, "no validation data: give --data.validation-source"),
        ({"validation_target": "v"}, "--data.validation-target v is given, but no --data.validation-source"),
        ({"test_target": "t"}, "--data.test-target t is given, but no --data.test-source"),
    ],
)
def test_data_that_is_not_named(tmp_path, settings, message):
    (tmp_path / "a").write_text("one\n")
    with pytest.raises(DataError, match=message):
        load_corpora(DataConfig(source="a", target="a", directory=str(tmp_path), **settings), seed=0)
