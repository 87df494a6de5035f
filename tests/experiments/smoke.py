"""What every experiment promises of its smoke version."""

import json


def check_resumes(main, words, out, capsys):
    """Runs it twice, and with a record of other settings; returns the report.

    The second call makes no record again and reports the same; the third is refused.
    """
    stamps = lambda: {path: path.stat().st_mtime_ns for path in (out / "records").iterdir()}
    assert main(words) == 0
    text, first = (out / "report.md").read_text(), stamps()
    assert main(words) == 0
    assert ((out / "report.md").read_text(), stamps()) == (text, first)
    path = min(first)
    saved = path.read_text()
    path.write_text(json.dumps(json.loads(saved) | {"settings": "other"}))
    capsys.readouterr()
    assert main(words) == 2
    assert "must be a result of these settings, got others; choose another --out" in capsys.readouterr().err
    path.write_text(saved)
    return text
