"""Tables of words and labels: sentences, comments, and the columns of CoNLL-2003 and CoNLL-U."""

from jaxformer.data.tagged import read_tagged

CONLL = "-DOCSTART- -X- O\n\nEU NNP B-ORG\nrejects VBZ O\n\n\nPeter NNP B-PER\n"
UNIVERSAL = (
    "# text = Il va au parc\n1\tIl\tPRON\n2\tva\tVERB\n3-4\tau\t_\n3\tà\tADP\n4\tle\tDET\n5\tparc\tNOUN\n5.1\t_\t_\n"
)


def test_the_usual_tables(tmp_path):
    path = tmp_path / "table"
    path.write_text(CONLL)
    read = read_tagged(path, columns=(0, 2), separator=" ")
    assert (read.sentences, read.labels) == ([("EU", "rejects"), ("Peter",)], ("B-ORG", "O", "B-PER"))
    path.write_text(UNIVERSAL + "\n\t\t\n" + UNIVERSAL)
    read = read_tagged(path, columns=(1, 2))
    assert read.sentences == [("Il", "va", "à", "le", "parc")] * 2
    assert read.classes == ("ADP", "DET", "NOUN", "PRON", "VERB")


def test_parts_keep_sentences_whole(tmp_path):
    """Equal sentences stay together, and the fingerprint sees where sentences end."""
    path = tmp_path / "table"
    path.write_text("a\tX\nb\tY\n\nc\tX\n\na\tY\nb\tY\n\nd\tX\n")
    whole = read_tagged(path)
    kept, part = whole.split(1)
    assert sorted([*kept.sentences, *part.sentences]) == sorted(whole.sentences)
    assert not {*kept.sentences} & {*part.sentences}
    path.write_text("a\tX\nb\tY\nc\tX\n\na\tY\nb\tY\n\nd\tX\n")
    assert read_tagged(path).fingerprint != whole.fingerprint
